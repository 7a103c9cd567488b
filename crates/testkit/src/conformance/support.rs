//! Helpers of the cases: start a wait and be sure that it waits, inspect from outside.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::backend::{LockInfo, Loss};
use tenure_core::{ExportedLease, Guard, Locker};

use crate::wait::{in_time, until};

/// How long a state may take to come. A lock with the default ttl of 30 s is renewed every 10 s, so it has 20
/// s left whenever it is released: a change within this time is caused by the release, not by expiry.
const SOON: Duration = Duration::from_secs(15);
/// How late a loss may be signalled.
const LATE: Duration = Duration::from_secs(1);

/// Waits for `future`, for at most [`SOON`].
pub(super) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    in_time(SOON, what, future).await
}

/// Waits until `state` returns true, for at most [`SOON`].
pub(super) async fn eventually<F: Future<Output = bool>>(what: &str, state: impl FnMut() -> F) {
    within(what, until(state)).await;
}

/// A future that was polled once and is pending. Await it for its result.
pub struct Started<T>(Pin<Box<dyn Future<Output = T> + Send>>);

/// Polls `request` once, so that it is in the local queue.
///
/// # Panics
///
/// If the request is ready at once.
pub async fn start<R>(request: R) -> Started<R::Output>
where
    R: IntoFuture<IntoFuture: Send + 'static>,
{
    let mut future: Pin<Box<dyn Future<Output = R::Output> + Send>> =
        Box::pin(request.into_future());
    let done = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
    assert!(!done, "it was expected to wait, and did not");
    Started(future)
}

impl<T> Started<T> {
    /// Polls the request until `state` is ready: an engine may need more than one request to queue a claim.
    ///
    /// # Panics
    ///
    /// If the request becomes ready first.
    pub async fn until<S: Future>(&mut self, state: S) -> S::Output {
        let mut state = pin!(state);
        poll_fn(|cx| {
            assert!(self.0.as_mut().poll(cx).is_pending(), "it was expected to wait, and did not");
            state.as_mut().poll(cx)
        })
        .await
    }
}

impl<T> Future for Started<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().poll(cx)
    }
}

/// Waits for both: one may be ready only after the other, or at any time before.
pub(super) async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    tokio::join!(one, other)
}

/// Locks `key`, which must be free.
pub(super) async fn hold(locker: &Locker, key: &str) -> Guard {
    within("a free lock", locker.lock(key).into_future()).await.expect("a free lock is granted")
}

/// Whether `key` can be acquired now; it is released again before this returns.
pub(super) async fn can_be_had(locker: &Locker, key: &str) -> bool {
    let Some(guard) = locker.try_lock(key).await.expect("an attempt is answered") else {
        return false;
    };
    // No case expects this release to fail, and the cause of a failure must be seen.
    guard.release().await.expect("it is released");
    true
}

/// Waits until `key` can be acquired, for example after a release in the background.
pub(super) async fn becomes_free(locker: &Locker, key: &str) {
    eventually("the lock to become free", || can_be_had(locker, key)).await;
}

/// The engine's information about `key`.
pub(super) async fn look(locker: &Locker, key: &str) -> Option<LockInfo> {
    locker.inspect(key).await.expect("inspect answers")
}

/// What an operator who sees the token of the first holder of `key` could try to adopt.
pub(super) async fn exported(locker: &Locker, key: &str) -> ExportedLease {
    let shown = look(locker, key).await.expect("it is held");
    let token = shown.holders[0].token.expect("an engine that adopts shows the token");
    ExportedLease::from_token(&shown.key, token, Duration::from_secs(30))
}

/// Waits until the engine shows `count` waiters, if it knows its waiters at all.
pub(super) async fn waiters_are(locker: &Locker, key: &str, count: usize) {
    let shown = || async {
        match look(locker, key).await {
            Some(info) => info.waiters.is_none_or(|waiters| waiters.len() == count),
            None => count == 0,
        }
    };
    eventually(&format!("{count} waiters to be shown"), shown).await;
}

/// Waits for the loss of `guard` and checks its effects. The loss must be signalled by the time the lease
/// expires.
pub(super) async fn is_lost(guard: &Guard) -> Loss {
    let limit = guard.remaining().min(SOON) + LATE;
    let loss = in_time(limit, "the loss to be signalled", guard.lost()).await;
    assert!(!guard.is_held(), "a lost lock is not held");
    assert_eq!(guard.remaining(), Duration::ZERO, "nothing is left of a lost lock");
    loss
}

/// Acquires a lock that will be lost by `max_hold`, the one kind of loss on every engine.
pub(super) async fn soon_lost(locker: &Locker, key: &str) -> Guard {
    let request = locker.lock(key).max_hold(Duration::from_millis(50));
    request.await.expect("a free lock is granted")
}

/// Waits until `time` has passed on the locker's clock.
pub(super) async fn passes(locker: &Locker, time: Duration) {
    let clock = locker.clock();
    let until = clock.now().after(time);
    eventually("time to pass", || async { clock.now() >= until }).await;
}

/// Returns the error with which `request` must end.
pub(super) async fn refused<R, T, E>(request: R) -> tenure_core::Error
where
    R: IntoFuture<Output = Result<T, E>>,
    E: Into<tenure_core::Error>,
{
    match within("a refusal", request.into_future()).await {
        Ok(_) => panic!("it was expected to be refused"),
        Err(error) => error.into(),
    }
}

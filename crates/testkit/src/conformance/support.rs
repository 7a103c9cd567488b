//! What cases share: starting a wait and knowing that it waits, looking from outside.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::backend::{LockInfo, Loss};
use tenure_core::{Guard, Locker};

use crate::wait::{in_time, until};

/// How long a state may take to come. A lock with the default ttl of 30 s is renewed every 10 s, so it has 20 s left
/// whenever it is released: what comes in this time comes by the release, not by expiry.
const SOON: Duration = Duration::from_secs(15);
/// How late a loss may be.
const LATE: Duration = Duration::from_secs(1);

/// Waits for `future`, for at most [`SOON`].
pub(super) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    in_time(SOON, what, future).await
}

/// Waits until `state` holds, for at most [`SOON`].
pub(super) async fn eventually<F: Future<Output = bool>>(what: &str, state: impl FnMut() -> F) {
    within(what, until(state)).await;
}

/// A future that has been polled once and waits. Await it for the rest.
pub struct Started<T>(Pin<Box<dyn Future<Output = T> + Send>>);

/// Polls `request` once: it now waits, in its place in the local queue.
///
/// # Panics
///
/// If it is done at once.
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
    /// Keeps it waiting until `state` has come: an engine may need more than one request to queue it.
    ///
    /// # Panics
    ///
    /// If it is done before.
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

/// Locks `key` at once, for ever.
pub(super) async fn hold(locker: &Locker, key: &str) -> Guard {
    within("a free lock", locker.lock(key).into_future()).await.expect("a free lock is granted")
}

/// Whether `key` can be had right now; it is given back before this returns.
pub(super) async fn can_be_had(locker: &Locker, key: &str) -> bool {
    let Some(guard) = locker.try_lock(key).await.expect("an attempt is answered") else {
        return false;
    };
    // What keeps a lock from being released is worth knowing, and no case expects it.
    guard.release().await.expect("it is released");
    true
}

/// Waits until `key` can be had: after a release in the background, say.
pub(super) async fn becomes_free(locker: &Locker, key: &str) {
    eventually("the lock to become free", || can_be_had(locker, key)).await;
}

/// What the engine shows for `key`.
pub(super) async fn look(locker: &Locker, key: &str) -> Option<LockInfo> {
    locker.inspect(key).await.expect("inspect answers")
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

/// Waits for the loss of `guard`, and checks that it is one in every respect: it is told when nothing is left of the
/// lease, at the latest.
pub(super) async fn is_lost(guard: &Guard) -> Loss {
    let limit = guard.remaining().min(SOON) + LATE;
    let loss = in_time(limit, "the loss to be signalled", guard.lost()).await;
    assert!(!guard.is_held(), "a lost lock is not held");
    assert_eq!(guard.remaining(), Duration::ZERO, "nothing is left of a lost lock");
    loss
}

/// A lock that is lost by `max_hold`: the one way that every engine has.
pub(super) async fn soon_lost(locker: &Locker, key: &str) -> Guard {
    let request = locker.lock(key).max_hold(Duration::from_millis(50));
    request.await.expect("a free lock is granted")
}

/// Waits on the clock until `time` has passed since `guard`'s locker was asked.
pub(super) async fn passes(locker: &Locker, time: Duration) {
    let clock = locker.clock();
    let until = clock.now().after(time);
    eventually("time to pass", || async { clock.now() >= until }).await;
}

/// `request` ends with an error; which.
pub(super) async fn refused<R, T>(request: R) -> tenure_core::Error
where
    R: IntoFuture<Output = Result<T, tenure_core::Error>>,
{
    match within("a refusal", request.into_future()).await {
        Ok(_) => panic!("it was expected to be refused"),
        Err(error) => error,
    }
}

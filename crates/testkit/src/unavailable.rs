//! A server that is unavailable while claims wait for a lock: the caller's time limit decides. The tests of each engine
//! call this with their own way to make a server unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::backend::{Backend, BoxFuture, Fault};
use tenure_core::{Claim, Error, Locker};

use crate::intercept::{Intercepted, Interceptor};
use crate::wait::{eventually, within};

/// Longer than any test: a wait that ends earlier ended because the server was unavailable.
pub const LONG: Duration = Duration::from_secs(600);
/// The connect time-out of these tests; with it, a wait without a limit ends after 0.9 s.
pub const TIMEOUT: Duration = Duration::from_millis(400);

/// Whether the error says that the server was unavailable, and not that the lock was busy.
pub fn is_away(error: &Error) -> bool {
    (error.is_unavailable() || error.is_unknown()) && !error.is_busy()
}

/// While the server is `away`, tasks of one process wait for it: those with a limit, and those that wait for
/// ever, get the lock when it is `back`. A task with `unavailable_after` fails meanwhile, whether it is first
/// in the queue or behind the others.
///
/// # Panics
///
/// If a wait does not end as described.
pub async fn bounds_are_kept(locker: &Locker, away: impl FnOnce(), back: impl FnOnce()) {
    locker.lock("k").await.unwrap().release().await.unwrap();
    away();
    let soon = Duration::from_millis(300);
    let front = tokio::spawn(locker.lock("k").wait(LONG).unavailable_after(soon).into_future());
    tokio::task::yield_now().await;
    let bounded = tokio::spawn(locker.lock("k").wait(LONG).into_future());
    let forever = tokio::spawn(locker.lock("f").wait_forever().into_future());
    let behind = locker.lock("k").wait(LONG).unavailable_after(soon).into_future();
    for fast in [front, tokio::spawn(behind)] {
        let error = within("the end of a wait", fast).await.unwrap().unwrap_err();
        assert!(is_away(&error), "{error:?}");
    }
    // If no failover is expected, a request without a limit fails soon, although others continue to wait.
    if locker.capabilities().reachable_within == TIMEOUT {
        let error = within("an error", locker.lock("k").into_future()).await.unwrap_err();
        assert!(is_away(&error), "{error:?}");
    }
    assert!(!bounded.is_finished() && !forever.is_finished());
    back();
    for wait in [bounded, forever] {
        let guard = within("the lock", wait).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// Counts the claims that were abandoned.
#[derive(Default)]
struct Undone(AtomicUsize);

impl Interceptor for Undone {
    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            inner.abandon(claim).await?;
            self.0.fetch_add(1, Ordering::AcqRel);
            Ok(())
        })
    }
}

/// A claim that was never sent to a server that is `away` for good is abandoned at once: no work is left in the
/// background.
///
/// # Panics
///
/// If the server can be used, or a claim is not abandoned.
pub async fn nothing_to_undo(backend: Arc<dyn Backend>, away: impl FnOnce()) {
    const TRIES: usize = 200;
    let undone = Arc::new(Undone::default());
    let locker = Locker::builder(Intercepted::new(backend, undone.clone())).ttl(LONG);
    let locker = locker.build().unwrap();
    locker.lock("k").await.unwrap().release().await.unwrap();
    away();
    // The first request may be sent on the broken connection, and its result is unknown then.
    let refused =
        || async { locker.try_lock("k").await.is_err_and(|error| error.is_unavailable()) };
    eventually("the loss of the connection", refused).await;
    for number in 0..TRIES {
        let error = locker.try_lock(format!("try{number}")).await.err().unwrap();
        assert!(error.is_unavailable(), "{error:?}");
    }
    let wait = locker.lock("wait").wait(Duration::from_millis(200)).await;
    assert!(wait.unwrap_err().is_unavailable());
    let done = || async { undone.0.load(Ordering::Acquire) > TRIES };
    eventually("all of them to be done with", done).await;
}

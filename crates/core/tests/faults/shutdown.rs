//! Shutdowns: what happens before the backend is closed, and what does not depend on the caller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, BoxFuture, Fault, Release};
use tenure_core::{Claim, Lease, Locker};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::within;
use tokio::sync::Semaphore;

use crate::support::{becomes_free, meddled, queue_is, still};

/// Records which calls reach the backend.
#[derive(Default)]
struct Order(Mutex<Vec<&'static str>>);

impl Interceptor for Order {
    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.0.lock().unwrap().push("abandon");
        inner.abandon(claim)
    }

    fn close<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        self.0.lock().unwrap().push("close");
        inner.close()
    }
}

/// A shutdown abandons the claims of waiters before it closes the backend.
#[tokio::test]
async fn a_shutdown_closes_last() {
    let (memory, order) = (still().1, Arc::new(Order::default()));
    let (locker, rival) = (meddled(&memory, &order), Locker::new(memory));
    let _guard = rival.lock("k").await.unwrap();
    let waiter = tokio::spawn(locker.lock("k").into_future());
    queue_is(&rival, "k", 1).await;
    within("the shutdown", locker.shutdown(Duration::ZERO)).await;
    assert_eq!(*order.0.lock().unwrap(), ["abandon", "close"]);
    queue_is(&rival, "k", 0).await;
    let error = within("the waiter's end", waiter).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error:?}");
}

/// Delays releases until they are let through.
struct Late(Semaphore);

impl Interceptor for Late {
    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move {
            let _permit = self.0.acquire().await;
            inner.release(lease, then).await
        })
    }
}

/// A shutdown that is dropped while it releases locks still releases them.
#[tokio::test]
async fn a_dropped_shutdown_releases() {
    let (memory, late) = (still().1, Arc::new(Late(Semaphore::new(0))));
    let (locker, rival) = (meddled(&memory, &late), Locker::new(memory));
    let guard = locker.lock("k").await.unwrap();
    let closed = locker.clone();
    drop(start(async move { closed.shutdown(Duration::ZERO).await }).await);
    assert!(!guard.is_held());
    late.0.add_permits(1);
    becomes_free(&rival, "k").await;
    within("a second shutdown", locker.shutdown(Duration::ZERO)).await;
}

/// A shutdown that takes a lock from its guard respects the guard's `min_hold`.
#[tokio::test]
async fn a_shutdown_keeps_min_hold() {
    let (clock, memory) = still();
    let (locker, rival) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = locker.lock("k").min_hold(Duration::from_secs(60)).await.unwrap();
    let plain = locker.lock("plain").await.unwrap();
    let report = within("the shutdown", locker.shutdown(Duration::ZERO)).await;
    assert_eq!((report.released, report.unreleased.len()), (2, 0));
    assert!(!guard.is_held() && !plain.is_held());
    assert!(rival.try_lock("plain").await.unwrap().is_some());
    assert!(rival.try_lock("k").await.unwrap().is_none(), "closed for the rest");
    clock.advance(Duration::from_secs(60));
    assert!(rival.try_lock("k").await.unwrap().is_some());
}

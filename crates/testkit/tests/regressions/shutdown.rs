//! Shutdowns: what comes before the end of the backend, and what does not depend on the caller.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Backend, BoxFuture, Fault, Release, Then};
use tenure_core::{Claim, Lease, Locker};
use tenure_testkit::conformance::start;
use tenure_testkit::meddle::Meddler;
use tenure_testkit::wait::within;
use tokio::sync::Semaphore;

use crate::support::{becomes_free, meddled, queue_is, still};

/// Notes what reaches the backend.
#[derive(Default)]
struct Order(Mutex<Vec<&'static str>>);

impl Meddler for Order {
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

/// A shutdown abandons the claims of those who wait before it closes the backend.
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

/// Holds releases back until they are let through.
struct Late(Semaphore);

impl Meddler for Late {
    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move {
            let _permit = self.0.acquire().await;
            inner.release(lease, then).await
        })
    }
}

/// A shutdown that is dropped while it gives locks back gives them back all the same.
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

/// The `at_least` of a guard is kept by a shutdown that takes its lock away.
#[tokio::test]
async fn a_shutdown_keeps_at_least() {
    let (clock, memory) = still();
    let (locker, rival) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = locker.lock("k").at_least(Duration::from_secs(60)).await.unwrap();
    let plain = locker.lock("plain").await.unwrap();
    let report = within("the shutdown", locker.shutdown(Duration::ZERO)).await;
    assert_eq!((report.released, report.unreleased.len()), (2, 0));
    assert!(!guard.is_held() && !plain.is_held());
    assert!(rival.try_lock("plain").await.unwrap().is_some());
    assert!(rival.try_lock("k").await.unwrap().is_none(), "closed for the rest");
    clock.advance(Duration::from_secs(60));
    assert!(rival.try_lock("k").await.unwrap().is_some());
}

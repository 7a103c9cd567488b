//! What a release leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, BoxFuture, Fault, FaultKind, Release};
use tenure_core::{Lease, Locker, Owner};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::{eventually, within};

use crate::support::{becomes_free, meddled, still};

const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(100);

/// Two processes of one shared owner hold with these `min_hold`s and release in this order: the lock stays
/// closed for the longer time.
async fn closed_for_the_longer(order: [Duration; 2]) {
    let (clock, memory) = still();
    let [a, b, rival] = [(); 3].map(|()| Locker::new(memory.clone()));
    let owner = Owner::shared("mates");
    let first = a.lock("k").owner(owner.clone()).min_hold(order[0]).await.unwrap();
    let second = b.lock("k").owner(owner).min_hold(order[1]).await.unwrap();
    first.release().await.unwrap();
    second.release().await.unwrap();
    clock.advance(LONG - SHORT);
    assert!(rival.try_lock("k").await.unwrap().is_none(), "{order:?}");
    clock.advance(SHORT);
    assert!(rival.try_lock("k").await.unwrap().is_some(), "{order:?}");
}

/// A release never shortens the time for which another one has closed the lock.
#[tokio::test]
async fn a_closed_lock_stays_closed_for_the_longest() {
    closed_for_the_longer([LONG, SHORT]).await;
    closed_for_the_longer([SHORT, LONG]).await;
}

/// Counts releases; while `is` is set, none of them gets a reply.
#[derive(Default)]
struct Deaf {
    is: AtomicBool,
    asked: AtomicU64,
}

impl Interceptor for Deaf {
    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        match self.is.load(Ordering::Acquire) {
            true => Box::pin(async { Err(Fault::new(FaultKind::Unknown, "deaf")) }),
            false => inner.release(lease, then),
        }
    }
}

/// A release without a reply is repeated for as long as the server may keep the lock: the ttl of the task
/// that the lease was handed to last, not that of the first one.
#[tokio::test]
async fn an_unanswered_release_is_repeated_long_enough() {
    let (clock, memory) = still();
    let deaf = Arc::new(Deaf::default());
    let (locker, rival) = (meddled(&memory, &deaf), Locker::new(memory));
    let first = locker.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    let next = start(locker.lock("k").ttl(Duration::from_secs(60))).await;
    first.release().await.unwrap();
    let second = within("the hand-over", next).await.unwrap();

    deaf.is.store(true, Ordering::Release);
    assert!(second.release().await.unwrap_err().is_unknown());
    for _ in 0..5 {
        let before = deaf.asked.load(Ordering::Acquire);
        clock.advance(Duration::from_secs(1));
        eventually("another try", || async { deaf.asked.load(Ordering::Acquire) > before }).await;
    }
    deaf.is.store(false, Ordering::Release);
    clock.advance(Duration::from_secs(1));
    becomes_free(&rival, "k").await;
}

/// A silent loss without a waiting task is detected at the release: the engine's result is passed on.
#[tokio::test]
async fn a_silent_loss_is_found_at_the_release() {
    let memory = still().1;
    let locker = Locker::new(memory.clone());
    let guard = locker.lock("k").await.unwrap();
    assert!(memory.expire("k").unwrap());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
}

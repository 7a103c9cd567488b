//! A lease that is handed from task to task: the limits of the new holder's wait, and fairness to other processes.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, BoxFuture, Fault};
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Fence, Guard, Lease, LockRequest, Locker};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::{eventually, within};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::support::{Renewals, becomes_free, meddled, queue_is, still};

const SHORT: Duration = Duration::from_secs(3);

/// A task that was handed a lease with too little time left, and whose renewal hangs.
struct Handed {
    clock: Clock,
    locker: Locker,
    rival: Locker,
    waiter: JoinHandle<Result<Guard, Error>>,
}

impl Handed {
    async fn over(request: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        let (clock, memory) = still();
        let renewals = Arc::new(Renewals::default());
        let (locker, rival) = (meddled(&memory, &renewals), Locker::new(memory));
        let guard = locker.lock("k").ttl(SHORT).await.unwrap();
        let waiter = start(request(locker.lock("k"))).await;
        renewals.swallow.store(true, Ordering::Release);
        guard.release().await.unwrap();
        let waiter = tokio::spawn(waiter);
        eventually("the renewal", || async { renewals.begun.load(Ordering::Acquire) > 0 }).await;
        Handed { clock, locker, rival, waiter }
    }

    /// The error that ended the wait. The lock that was handed over in vain is released.
    async fn error(self) -> Error {
        let error = within("the end of the wait", self.waiter).await.unwrap().unwrap_err();
        becomes_free(&self.rival, "k").await;
        error
    }
}

/// G6: a wait ends with its limit, also if the lease that was handed over must be renewed first. The server has not
/// answered, so the result is unknown, and not that another holds the lock.
#[tokio::test]
async fn a_limit_bounds_the_renewal_of_a_handed_lease() {
    let limit = Duration::from_secs(1);
    let handed = Handed::over(|request| request.wait(limit)).await;
    handed.clock.advance(limit);
    let error = handed.error().await;
    assert!(error.is_unknown() && !error.is_busy(), "{error:?}");
}

/// G6: the same for several keys, if one must be renewed when the last is granted. Nobody else is in the way.
#[tokio::test]
async fn a_limit_bounds_the_renewal_of_the_other_keys() {
    let ((clock, memory), renewals) = (still(), Arc::new(Renewals::default()));
    let (locker, rival) = (meddled(&memory, &renewals), Locker::new(memory));
    renewals.swallow.store(true, Ordering::Release);
    let busy = rival.lock("b").ttl(Duration::from_secs(600)).await.unwrap();
    let limit = Duration::from_secs(7);
    let all = locker.lock_all(["a", "b"]).ttl(Duration::from_secs(10)).wait(limit);
    let all = tokio::spawn(all.into_future());
    queue_is(&rival, "b", 1).await;
    clock.advance(Duration::from_secs(6));
    busy.release().await.unwrap();
    eventually("b to be granted", || async { locker.holds("b") }).await;
    clock.advance(Duration::from_secs(1));
    let error = within("the end of the wait", all).await.unwrap().unwrap_err();
    assert!(error.is_unknown() && !error.is_busy(), "{error:?}");
}

/// A wait that is cancelled ends at once, also during the renewal of a lease that was handed over.
#[tokio::test]
async fn a_cancel_ends_the_renewal_of_a_handed_lease() {
    let cancel = Arc::new(Notify::new());
    let signal = cancel.clone();
    let handed =
        Handed::over(|request| request.cancel_on(async move { signal.notified().await })).await;
    cancel.notify_one();
    let error = handed.error().await;
    assert!(error.is_cancelled(), "{error:?}");
}

/// A shutdown ends a wait during the renewal of a lease that was handed over.
#[tokio::test]
async fn a_shutdown_ends_the_renewal_of_a_handed_lease() {
    let handed = Handed::over(|request| request).await;
    let locker = handed.locker.clone();
    let closing = tokio::spawn(async move { locker.shutdown(Duration::from_secs(1)).await });
    let error = handed.error().await;
    assert!(error.is_closed(), "{error:?}");
    within("the shutdown", closing).await.unwrap();
}

/// Attempts that never return.
#[derive(Default)]
struct Hung(AtomicU64);

impl Interceptor for Hung {
    fn try_acquire<'a>(
        &'a self,
        _: &'a dyn Backend,
        _: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Box::pin(std::future::pending())
    }
}

/// A cancel ends a hanging attempt of a request with a limited number of attempts.
#[tokio::test]
async fn a_cancel_ends_an_attempt_that_hangs() {
    let (hung, cancel) = (Arc::new(Hung::default()), Arc::new(Notify::new()));
    let (locker, signal) = (meddled(&still().1, &hung), cancel.clone());
    let request = locker.lock("k").attempts(2);
    let attempts = start(request.cancel_on(async move { signal.notified().await })).await;
    assert_eq!(hung.0.load(Ordering::Acquire), 1);
    cancel.notify_one();
    let error = within("the end of the wait", attempts).await.unwrap_err();
    assert!(error.is_cancelled(), "{error:?}");
}

/// Records the leases whose contention the engine asks to watch.
#[derive(Default)]
struct WatchedLeases(Mutex<Vec<Arc<Lease>>>);

impl Interceptor for WatchedLeases {
    fn watch_contention(&self, inner: &dyn Backend, lease: &Arc<Lease>) {
        self.0.lock().unwrap().push(lease.clone());
        inner.watch_contention(lease);
    }
}

impl WatchedLeases {
    fn leases(&self) -> Vec<Arc<Lease>> {
        self.0.lock().unwrap().clone()
    }
}

/// The engine asks the backend once to watch a lease that tasks wait for, also if they queued before its grant.
#[tokio::test]
async fn tasks_that_queued_before_the_grant_count() {
    let (memory, watched) = (still().1, Arc::new(WatchedLeases::default()));
    let (locker, rival) = (meddled(&memory, &watched), Locker::new(memory));
    let guard = rival.lock("k").await.unwrap();
    let first = start(locker.lock("k")).await;
    let second = start(locker.lock("k")).await;
    assert!(watched.leases().is_empty(), "no lease is there yet");
    guard.release().await.unwrap();
    let first = within("the first one's turn", first).await.unwrap();
    assert_eq!(watched.leases().len(), 1);
    first.release().await.unwrap();
    drop(within("the second one's turn", second).await.unwrap());
    assert_eq!(watched.leases().len(), 1, "one lease, handed over");
}

/// The time for which a lease stays in its process counts from when another process was known to wait, not
/// from the first local hand-over after that: a rival that has waited long goes first.
#[tokio::test]
async fn a_rival_that_has_waited_long_goes_first() {
    let ((clock, memory), watched) = (still(), Arc::new(WatchedLeases::default()));
    let (locker, rival) = (meddled(&memory, &watched), Locker::new(memory));
    let guard = locker.lock("k").await.unwrap();
    let local = start(locker.lock("k")).await;
    let remote = start(rival.lock("k")).await;
    let lease = watched.leases().remove(0);
    eventually("the rival to be known", || async { lease.is_contended() }).await;
    clock.advance(Duration::from_millis(400));
    guard.release().await.unwrap();
    let first = within("the rival's turn", remote).await.unwrap();
    let fence = first.fence();
    first.release().await.unwrap();
    let second = within("the local task's turn", local).await.unwrap();
    assert!(fence < second.fence());
}

/// t118: a lock that was handed to a task whose future is dropped before it runs is free at once: `min_hold` counts
/// from the creation of a guard.
#[tokio::test]
async fn a_dropped_hand_over_closes_nothing() {
    let memory = still().1;
    let (locker, rival) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = locker.lock("k").await.unwrap();
    let waiter = start(locker.lock("k").min_hold(Duration::from_secs(600))).await;
    guard.release().await.unwrap();
    drop(waiter);
    becomes_free(&rival, "k").await;
}

/// t119: a holder with a short ttl that dies keeps others out for its own ttl, not for that of the task that held the
/// lock before it.
#[tokio::test]
async fn a_long_lease_is_not_handed_to_a_short_ttl() {
    let ((clock, memory), renewals) = (still(), Arc::new(Renewals::default()));
    let (locker, rival) = (meddled(&memory, &renewals), Locker::new(memory));
    let short_ttl = Duration::from_secs(2);
    let long = locker.lock("k").ttl(Duration::from_secs(600)).await.unwrap();
    let short = tokio::spawn(start(locker.lock("k").ttl(short_ttl)).await);
    // As if the process died after the hand-over.
    renewals.swallow.store(true, Ordering::Release);
    long.release().await.unwrap();
    let short = within("the next task's turn", short).await.unwrap().unwrap();
    assert!(short.remaining() <= short_ttl);
    clock.advance(short_ttl);
    assert!(rival.try_lock("k").await.unwrap().is_some(), "the short ttl has passed");
}

/// A lock with a short `max_hold` needs no renewal before it is handed to the next holder.
#[tokio::test]
async fn a_short_max_hold_costs_no_renewal() {
    let renewals = Arc::new(Renewals::default());
    let locker = meddled(&still().1, &renewals);
    let request = || locker.lock("k").max_hold(Duration::from_secs(1));
    let mut guard = request().await.unwrap();
    for _ in 0..3 {
        let next = start(request()).await;
        guard.release().await.unwrap();
        guard = within("the hand-over", next).await.unwrap();
    }
    assert_eq!(renewals.begun.load(Ordering::Acquire), 0);
    assert!(guard.fence() > Fence::NONE);
}

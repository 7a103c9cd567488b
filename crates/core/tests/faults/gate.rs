//! Tasks of one process that queue behind each other: which result the later ones get.

use std::future::{IntoFuture, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, BoxFuture, Capabilities, Fault, FaultKind, Grant, Release,
};
use tenure_core::{Claim, Error, Lease, Locker, Renew, WaitStatus, WithinProcess};
use tenure_testkit::conformance::{Started, start};
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::{eventually, within};
use tokio::sync::{Notify, Semaphore};

use crate::support::{meddled, still};

const SECOND: Duration = Duration::from_secs(1);

/// Delays attempts until they are let through; then they are answered, or fail.
struct Attempts {
    asked: AtomicU64,
    fails: AtomicBool,
    let_through: Semaphore,
}

impl Attempts {
    fn new(fails: bool) -> Arc<Self> {
        let (asked, fails) = (AtomicU64::new(0), AtomicBool::new(fails));
        Arc::new(Attempts { asked, fails, let_through: Semaphore::new(0) })
    }
}

impl Interceptor for Attempts {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        Box::pin(async move {
            let _permit = self.let_through.acquire().await;
            match self.fails.load(Ordering::Acquire) {
                true => Err(Fault::new(FaultKind::Unknown, "the server is silent")),
                false => inner.try_acquire(claim).await,
            }
        })
    }
}

/// If an attempt gets no reply, the result of an attempt queued behind it in the same process is unknown,
/// too, and not busy; the server gets one request.
#[tokio::test]
async fn a_try_behind_a_silent_try_is_unknown() {
    let attempts = Attempts::new(true);
    let locker = meddled(&still().1, &attempts);
    let first = start(locker.try_lock("k")).await;
    let second = start(locker.try_lock("k")).await;
    let third = start(locker.lock("k").wait(Duration::ZERO)).await;
    attempts.let_through.add_permits(1);
    for error in [
        within("the first answer", first).await.unwrap_err(),
        within("the second answer", second).await.unwrap_err(),
        within("the third answer", third).await.unwrap_err(),
    ] {
        assert!(error.is_unknown() && !error.is_busy(), "{error:?}");
    }
    assert_eq!(attempts.asked.load(Ordering::Acquire), 1);
}

/// An attempt queued behind another one of its process shares its result: `None` if another process holds the
/// lock, and `None` if the first attempt has acquired it.
#[tokio::test]
async fn a_try_behind_a_try_shares_the_answer() {
    let (memory, attempts) = (still().1, Attempts::new(false));
    let (locker, rival) = (meddled(&memory, &attempts), Locker::new(memory));
    for held in [true, false] {
        let guard = if held { Some(rival.lock("k").await.unwrap()) } else { None };
        let asked = attempts.asked.load(Ordering::Acquire);
        let first = start(locker.try_lock("k")).await;
        let second = start(locker.try_lock("k")).await;
        attempts.let_through.add_permits(1);
        let first = within("the first answer", first).await.unwrap();
        assert_eq!(first.is_none(), held);
        assert!(within("the second answer", second).await.unwrap().is_none());
        assert_eq!(attempts.asked.load(Ordering::Acquire), asked + 1);
        attempts.let_through.forget_permits(1);
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
    }
}

/// If an attempt is dropped before its reply, the attempt behind it sends its own request.
#[tokio::test]
async fn a_try_behind_a_dropped_try_asks() {
    let attempts = Attempts::new(false);
    let locker = meddled(&still().1, &attempts);
    let first = start(locker.try_lock("k")).await;
    let second = start(locker.try_lock("k")).await;
    attempts.let_through.add_permits(2);
    drop(first);
    assert!(within("the answer", second).await.unwrap().is_some());
    assert_eq!(attempts.asked.load(Ordering::Acquire), 2);
}

/// A server that never answers a wait, and can be made to report a fault.
#[derive(Default)]
struct Silent {
    asked: AtomicU64,
    spares: AtomicU64,
    trouble: Notify,
    hung_releases: AtomicBool,
}

impl Interceptor for Silent {
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        if self.spares.load(Ordering::Acquire) > 0 {
            self.spares.fetch_sub(1, Ordering::AcqRel);
            return inner.acquire(claim);
        }
        self.asked.fetch_add(1, Ordering::AcqRel);
        Box::pin(async move {
            self.trouble.notified().await;
            let fault = Fault::new(FaultKind::Unavailable, "connection refused");
            claim.report_wait(WaitStatus::unanswered(fault, inner.clock().now()));
            std::future::pending().await
        })
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        match self.hung_releases.load(Ordering::Acquire) {
            true => Box::pin(std::future::pending()),
            false => inner.release(lease, then),
        }
    }
}

/// Tasks queued behind a task without a reply have no reply either: if a wait ends then, its result is
/// unknown, for the first task and for those behind it.
#[tokio::test]
async fn a_wait_behind_a_silent_server_is_unknown() {
    let ((clock, memory), silent) = (still(), Arc::new(Silent::default()));
    let locker = meddled(&memory, &silent);
    let waits =
        [start(locker.lock("k").wait(SECOND)).await, start(locker.lock("k").wait(SECOND)).await];
    clock.advance(SECOND);
    for wait in waits {
        let error = within("the end of the wait", wait).await.unwrap_err();
        assert!(error.is_unknown() && !error.is_busy(), "{error:?}");
    }
}

/// G6: readers and permits too: an attempt behind two tasks without a reply is unavailable, and not busy.
#[tokio::test]
async fn a_try_to_hold_together_waits_for_the_first_reply() {
    async fn is_unavailable<G>(silent: &Silent, tried: Started<Result<G, Error>>) {
        silent.trouble.notify_one();
        let error = within("the answer of a try", tried).await.map(drop).unwrap_err();
        assert!(error.is_unavailable() && !error.is_busy(), "{error:?}");
    }
    let silent = Arc::new(Silent::default());
    let locker = meddled(&still().1, &silent);
    let _writers = [(); 2].map(|()| tokio::spawn(locker.lock("k").into_future()));
    eventually("a writer to ask", || async { silent.asked.load(Ordering::Acquire) == 1 }).await;
    is_unavailable(&silent, start(locker.try_read("k")).await).await;

    let silent = Arc::new(Silent::default());
    let permits = meddled(&still().1, &silent).semaphore("k", 8);
    let _others = [(); 2].map(|()| tokio::spawn(permits.acquire().into_future()));
    eventually("a task to ask", || async { silent.asked.load(Ordering::Acquire) == 1 }).await;
    is_unavailable(&silent, start(permits.try_acquire()).await).await;
}

/// A fault that the first task sees is passed to the tasks behind it: to attempts before and after the fault,
/// to a request that does not queue, and to a wait that ends.
#[tokio::test]
async fn errors_reach_the_tasks_behind() {
    let ((clock, memory), silent) = (still(), Arc::new(Silent::default()));
    let locker = meddled(&memory, &silent);
    let first = tokio::spawn(start(locker.lock("k")).await);
    let early = start(locker.try_lock("k")).await;
    let wait = start(locker.lock("k").wait(SECOND)).await;
    silent.trouble.notify_one();
    let early = within("the answer of an early try", early).await.unwrap_err();
    let late = within("the answer of a try", locker.try_lock("k").into_future()).await.unwrap_err();
    let fails = locker.lock("k").within_process(WithinProcess::Fail).into_future();
    let fails = within("the answer of one that does not queue", fails).await.unwrap_err();
    clock.advance(SECOND);
    let wait = within("the end of the wait", wait).await.unwrap_err();
    for error in [early, late, fails, wait] {
        assert!(error.is_unavailable() && !error.is_busy(), "{error:?}");
    }
    first.abort();
}

/// A wait that ends in the moment between two holders is busy if the server replies: the lock was held for
/// the whole wait. If the release itself gets no reply, the result is unknown.
#[tokio::test]
async fn a_wait_that_ends_between_two_holders() {
    for answered in [true, false] {
        let ((clock, memory), silent) = (still(), Arc::new(Silent::default()));
        let locker = meddled(&memory, &silent);
        silent.spares.store(1, Ordering::Release);
        let guard = locker.lock("k").await.unwrap();
        // A request without renewal never takes over a lease: it sends its own request.
        let next = tokio::spawn(start(locker.lock("k").renew(Renew::Off)).await);
        let wait = start(locker.lock("k").wait(SECOND)).await;
        silent.hung_releases.store(!answered, Ordering::Release);
        let release = tokio::spawn(guard.release());
        match answered {
            true => drop(within("the release", release).await.unwrap().unwrap()),
            false => eventually("the hold to end", || async { locker.hold_count("k") == 0 }).await,
        }
        clock.advance(SECOND);
        let error = within("the end of the wait", wait).await.unwrap_err();
        assert_eq!((error.is_timeout(), error.is_unknown()), (answered, !answered), "{error:?}");
        next.abort();
    }
}

/// An engine whose waiters poll and are not visible, so a process pauses before its next request. Its releases get no
/// answer if `mute` is set.
#[derive(Default)]
struct Polling {
    mute: bool,
    releases: AtomicU64,
}

impl Interceptor for Polling {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut can = inner.capabilities();
        can.polling_waiters = true;
        can
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.releases.fetch_add(1, Ordering::AcqRel);
        let mute = Fault::new(FaultKind::Unknown, "the server is silent");
        if self.mute { Box::pin(ready(Err(mute))) } else { inner.release(lease, then) }
    }
}

/// An attempt behind a task that leaves the lock to other processes for a while is busy at once: there is no
/// reply to wait for.
#[tokio::test]
async fn a_try_behind_a_pause_is_busy() {
    let (clock, memory) = still();
    let locker = meddled(&memory, &Arc::new(Polling::default()));
    let guard = locker.lock("k").retry_interval(Duration::from_secs(600)).await.unwrap();
    let _next = tokio::spawn(start(locker.lock("k")).await);
    clock.advance(Duration::from_secs(11));
    guard.release().await.unwrap();
    let tried = within("the answer", locker.try_lock("k").into_future()).await.unwrap();
    assert!(tried.is_none());
}

/// A wait that ends in such a pause is unknown if the release before it got no answer, and else busy.
#[tokio::test]
async fn a_wait_that_ends_in_a_pause() {
    for mute in [true, false] {
        let (clock, memory) = still();
        let polling = Arc::new(Polling { mute, ..Polling::default() });
        let locker = meddled(&memory, &polling);
        let guard = locker.lock("k").retry_interval(Duration::from_secs(600)).await.unwrap();
        let next = tokio::spawn(start(locker.lock("k").wait(SECOND * 12)).await);
        clock.advance(SECOND * 11);
        assert_eq!(within("the release", guard.release()).await.is_err(), mute);
        // The first repetition in the background lets the next task ask.
        let released = || async { !mute || polling.releases.load(Ordering::Acquire) > 2 };
        eventually("the next task's turn", released).await;
        clock.advance(SECOND);
        let error = within("the end of the wait", next).await.unwrap().unwrap_err();
        assert_eq!((error.is_unknown(), error.is_busy()), (mute, !mute), "{error:?}");
    }
}

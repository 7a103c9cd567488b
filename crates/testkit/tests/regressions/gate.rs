//! Tasks of one process behind each other: what the ones behind are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    Attempt, Backend, BoxFuture, Capabilities, Fault, FaultKind, Grant, Release, Then,
};
use tenure_core::{Claim, Lease, Locker, Renew, Sight, WithinProcess};
use tenure_redis::Redis;
use tenure_testkit::conformance::start;
use tenure_testkit::meddle::Meddler;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};
use tokio::sync::{Notify, Semaphore};

use crate::support::{meddled, still};

const SECOND: Duration = Duration::from_secs(1);

/// Holds attempts back until they are let through; they are answered, or fail.
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

impl Meddler for Attempts {
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

/// An attempt behind another attempt of its process that gets no answer is unknown, too, and not
/// "held by another"; the server is asked once.
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

/// An attempt behind another attempt of its process shares its answer: `None` if another process
/// holds the lock, and `None` if the first attempt has got it.
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

/// An attempt whose predecessor is dropped before it was answered asks for itself.
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

/// A server that is asked to wait and says nothing, until it is told to see trouble.
#[derive(Default)]
struct Silent {
    spares: AtomicU64,
    trouble: Notify,
    hung_releases: AtomicBool,
}

impl Meddler for Silent {
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        if self.spares.load(Ordering::Acquire) > 0 {
            self.spares.fetch_sub(1, Ordering::AcqRel);
            return inner.acquire(claim);
        }
        Box::pin(async move {
            self.trouble.notified().await;
            claim.saw(Sight::trouble(Fault::new(FaultKind::Unavailable, "connection refused")));
            std::future::pending().await
        })
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        match self.hung_releases.load(Ordering::Acquire) {
            true => Box::pin(std::future::pending()),
            false => inner.release(lease, then),
        }
    }
}

/// Tasks behind one of their own that has heard nothing have heard nothing either: a wait that ends
/// then is unknown, for the first and for those behind it.
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

/// Tasks behind one of their own that sees trouble with the server are told of it: those that try,
/// those that try and came before it, those that fail at once, and those whose wait ends.
#[tokio::test]
async fn trouble_reaches_the_tasks_behind() {
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

/// A wait that ends in the moment between two holders is busy on a server that answers: the lock was
/// held for as long as it waited. If the release itself is not answered, it is unknown.
#[tokio::test]
async fn a_wait_that_ends_between_two_holders() {
    for answered in [true, false] {
        let ((clock, memory), silent) = (still(), Arc::new(Silent::default()));
        let locker = meddled(&memory, &silent);
        silent.spares.store(1, Ordering::Release);
        let guard = locker.lock("k").await.unwrap();
        // One that does not renew is never handed a lease: it asks the server.
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

/// An engine whose waiters poll unseen, so that a process pauses before it asks again.
struct Polling;

impl Meddler for Polling {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut can = inner.capabilities();
        can.unseen_waiters = true;
        can
    }
}

/// An attempt behind a task of its process that leaves the lock to others for a while is busy at once:
/// there is no answer to wait for.
#[tokio::test]
async fn a_try_behind_a_pause_is_busy() {
    let (clock, memory) = still();
    let locker = meddled(&memory, &Arc::new(Polling));
    let guard = locker.lock("k").retry_interval(Duration::from_secs(600)).await.unwrap();
    let _next = tokio::spawn(start(locker.lock("k")).await);
    clock.advance(Duration::from_secs(11));
    guard.release().await.unwrap();
    let tried = within("the answer", locker.try_lock("k").into_future()).await.unwrap();
    assert!(tried.is_none());
}

/// On a server that stands still, no task of a process is told "held by another".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_redis_is_unknown_to_every_task() {
    let server = RedisServer::start();
    let locker = Locker::new(Redis::connect(&server.url()).await.unwrap());
    locker.lock("warm").await.unwrap().release().await.unwrap();
    server.pause();
    let tries: Vec<_> = (0..4).map(|_| tokio::spawn(locker.try_lock("k").into_future())).collect();
    let waits: Vec<_> = (0..4)
        .map(|_| tokio::spawn(locker.lock("w").wait(Duration::from_secs(3)).into_future()))
        .collect();
    for tried in tries {
        let error = within("an answer", tried).await.unwrap().unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
    }
    for wait in waits {
        let error = within("the end of a wait", wait).await.unwrap().unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
    }
    server.go_on();
}

//! Replies that never arrived: the result is unknown until it is resolved.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, BoxFuture, Fault, FaultKind, Grant, Release,
};
use tenure_core::{Claim, Lease, Locker, Memory};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::{eventually, nothing_is_left, within};

use crate::support::Store;

/// So long that no lock here is freed by expiry.
const TTL: Duration = Duration::from_secs(600);

/// Loses the next replies of each kind. The server has executed the request, or has not.
#[derive(Default)]
struct Lossy {
    /// Acquires that are executed without a reply.
    acquires: AtomicI64,
    /// Releases that are executed without a reply.
    releases_done: AtomicI64,
    /// Releases that are neither executed nor answered.
    releases_lost: AtomicI64,
    /// Abandons that are neither executed nor answered.
    abandons_lost: AtomicI64,
    released: AtomicU64,
    abandoned: AtomicU64,
}

fn unknown() -> Fault {
    Fault::new(FaultKind::Unknown, "the reply was lost")
}

/// Whether this reply is lost; counts down.
fn loses(left: &AtomicI64) -> bool {
    left.fetch_sub(1, Ordering::AcqRel) > 0
}

impl Interceptor for Lossy {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(async move {
            let attempt = inner.try_acquire(claim).await;
            if loses(&self.acquires) { Err(unknown()) } else { attempt }
        })
    }

    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(async move {
            let grant = inner.acquire(claim).await;
            if loses(&self.acquires) { Err(unknown()) } else { grant }
        })
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move {
            self.released.fetch_add(1, Ordering::AcqRel);
            if loses(&self.releases_lost) {
                return Err(unknown());
            }
            let release = inner.release(lease, then).await;
            if loses(&self.releases_done) { Err(unknown()) } else { release }
        })
    }

    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.abandoned.fetch_add(1, Ordering::AcqRel);
            if loses(&self.abandons_lost) {
                return Err(unknown());
            }
            inner.abandon(claim).await
        })
    }
}

fn lossy(space: &str) -> (Arc<Lossy>, Locker, Locker) {
    let (memory, lossy) = (Memory::space(space), Arc::new(Lossy::default()));
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), lossy.clone()));
    (lossy, locker, memory.locker())
}

/// t04: a grant whose reply is lost is either resolved into a lock, or reported as unknown and undone. It is
/// never reported as busy, and never left behind.
#[tokio::test]
async fn t04_a_lost_grant_is_resolved() {
    let (lossy, locker, rival) = lossy("t04");
    for wait in [None, Some(Duration::ZERO), Some(Duration::from_secs(20))] {
        lossy.acquires.store(1, Ordering::Release);
        let mut request = locker.lock("k").ttl(TTL);
        if let Some(wait) = wait {
            request = request.wait(wait);
        }
        match within("an answer", request.into_future()).await {
            Ok(guard) => guard.release().await.map(drop).unwrap(),
            Err(error) => assert!(error.is_unknown() && !error.is_busy(), "{error:?}"),
        }
        nothing_is_left(&rival, "k").await;
    }
    lossy.acquires.store(1, Ordering::Release);
    match locker.try_lock("k").ttl(TTL).await {
        Ok(guard) => drop(guard),
        Err(error) => assert!(error.is_unknown(), "{error:?}"),
    }
    nothing_is_left(&rival, "k").await;
}

/// t04: the tasks queued behind one whose grant is unknown get the lock, or the same error.
#[tokio::test]
async fn t04_a_lost_grant_with_tasks_behind() {
    let (lossy, locker, rival) = lossy("t04-behind");
    let guard = rival.lock("k").await.unwrap();
    let waits: Vec<_> =
        (0..3).map(|_| tokio::spawn(locker.lock("k").ttl(TTL).into_future())).collect();
    eventually("one of them to wait at the server", || async {
        let info = rival.inspect("k").await.unwrap().unwrap();
        info.waiters.is_some_and(|waiters| waiters.len() == 1)
    })
    .await;
    lossy.acquires.store(1, Ordering::Release);
    guard.release().await.unwrap();
    for wait in waits {
        match within("each one's answer", wait).await.unwrap() {
            Ok(guard) => guard.release().await.map(drop).unwrap(),
            Err(error) => assert!(error.is_unknown(), "{error:?}"),
        }
    }
    nothing_is_left(&rival, "k").await;
}

/// t05: an abandon without a reply is repeated until there is one.
#[tokio::test]
async fn t05_an_unanswered_abandon_is_repeated() {
    let (lossy, locker, rival) = lossy("t05");
    let guard = rival.lock("k").await.unwrap();
    lossy.abandons_lost.store(3, Ordering::Release);
    let error = locker.lock("k").ttl(TTL).wait(Duration::from_millis(20)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    eventually("it to be repeated", || async { lossy.abandoned.load(Ordering::Acquire) == 4 })
        .await;
    guard.release().await.unwrap();
    nothing_is_left(&rival, "k").await;
}

/// t50: a release without a reply is reported as unknown, and repeated until there is one, but not longer.
#[tokio::test]
async fn t50_an_unanswered_release_is_repeated() {
    let (lossy, locker, rival) = lossy("t50");
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    lossy.releases_lost.store(3, Ordering::Release);
    let error = guard.release().await.unwrap_err();
    assert!(error.is_unknown() && !error.is_lost(), "{error:?}");
    nothing_is_left(&rival, "k").await;
    let asked = lossy.released.load(Ordering::Acquire);
    assert_eq!(asked, 4, "three were lost");
    nothing_is_left(&locker, "k").await;
    // The release of `nothing_is_left` itself, and no more.
    assert!(lossy.released.load(Ordering::Acquire) <= asked + 1);
}

/// t50: the same for a guard that is dropped, with another task of the process queued next.
#[tokio::test]
async fn t50_an_unanswered_drop_is_repeated() {
    let (lossy, locker, rival) = lossy("t50-drop");
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    lossy.releases_lost.store(3, Ordering::Release);
    drop(guard);
    let next =
        within("the next one's turn", locker.lock("k").ttl(TTL).into_future()).await.unwrap();
    assert!(next.is_held() && rival.try_lock("k").await.unwrap().is_none());
    next.release().await.unwrap();
    nothing_is_left(&rival, "k").await;
}

/// t50: a release that was executed without a reply is repeated, and does not affect the next holder.
#[tokio::test]
async fn t50_a_repeated_release_hits_nobody() {
    let (lossy, locker, rival) = lossy("t50-done");
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    lossy.releases_done.store(1, Ordering::Release);
    let waiting = tokio::spawn(rival.lock("k").into_future());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    let next = within("the rival's turn", waiting).await.unwrap().unwrap();
    eventually("the repetition", || async { lossy.released.load(Ordering::Acquire) == 2 }).await;
    assert!(locker.try_lock("k").await.unwrap().is_none());
    next.renew().await.unwrap();
    assert!(next.is_held());
}

/// t50: a shutdown that cannot release everything reports what is left.
#[tokio::test]
async fn t50_a_shutdown_reports_what_is_left() {
    let (lossy, locker, rival) = lossy("t50-shutdown");
    let guards = [locker.lock("a").await.unwrap(), locker.lock("b").await.unwrap()];
    lossy.releases_lost.store(1, Ordering::Release);
    let report = within("the shutdown", locker.shutdown(Duration::ZERO)).await;
    assert_eq!((report.released, report.unreleased.len()), (1, 1), "one reply was lost");
    assert!(guards.iter().all(|guard| !guard.is_held()));
    for key in ["a", "b"] {
        let left = report.unreleased.iter().any(|unreleased| unreleased.as_str() == key);
        assert_eq!(rival.is_locked(key).await.unwrap(), left, "{key}: {report:?}");
    }
}

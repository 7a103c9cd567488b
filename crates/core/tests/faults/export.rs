//! Leases that are exported and adopted.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answers, Backend, BoxFuture, Fault};
use tenure_core::{ExportedLease, Fence, Key, Lease, Locker, Owner, Released, Renew};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::{eventually, within};

use crate::support::{Stall, becomes_free, meddled, still};

/// The lease ends by our clock, but not yet by the server's, while it is relinquished; the thread that would
/// handle its end is stalled.
struct EndsMeanwhile(Stall);

impl Interceptor for EndsMeanwhile {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.0.renew(inner, leases, answers)
    }

    fn relinquish<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        let clock = inner.clock();
        clock.advance(lease.valid_until().since(clock.now()));
        assert!(!lease.is_valid());
        inner.relinquish(lease)
    }
}

/// A lease that ends while it is exported is not exported: the thread that sees its end releases it, and
/// would release it under its adopter.
#[tokio::test]
async fn what_ends_meanwhile_is_not_written_down() {
    let ((clock, memory), (go_on, stall)) = (still(), Stall::new());
    let ends = Arc::new(EndsMeanwhile(stall));
    let (locker, rival) = (meddled(&memory, &ends), Locker::new(memory));
    let guard = locker.lock("k").ttl(Duration::from_secs(10)).await.unwrap();
    clock.advance(Duration::from_secs(4));
    ends.0.has_come().await;
    let error = within("an answer", guard.detach().export()).await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(rival.try_lock("k").await.unwrap().is_none(), "the server still has it");
    drop(go_on);
    becomes_free(&rival, "k").await;
}

/// A detached hold that was released by key cannot be exported, and the owner's other guard keeps the lock.
#[tokio::test]
async fn a_released_hold_carries_no_other_guard_away() {
    let memory = still().1;
    let (locker, rival, owner) = (Locker::new(memory.clone()), Locker::new(memory), Owner::new());
    let guard = locker.lock("k").owner(owner.clone()).await.unwrap();
    let detached = locker.lock("k").owner(owner).await.unwrap().detach();
    assert_eq!(locker.release("k").await.unwrap(), Released::StillHeld(1));
    let error = detached.export().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(guard.is_held() && rival.try_lock("k").await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    becomes_free(&rival, "k").await;
}

/// A lease can be adopted by a locker that held the lock before and has not yet noticed the end of its own lease.
#[tokio::test]
async fn an_ended_lease_is_not_in_an_adopters_way() {
    let ((clock, memory), (go_on, stall)) = (still(), Stall::new());
    let stall = Arc::new(stall);
    let (locker, other) = (meddled(&memory, &stall), Locker::new(memory));
    let old = locker.lock("k").ttl(Duration::from_secs(20)).renew(Renew::Off).await.unwrap();
    let renewed = locker.lock("renewed").await.unwrap();
    clock.advance(Duration::from_secs(11));
    stall.has_come().await;
    clock.advance(Duration::from_secs(9));
    let paper = other.lock("k").await.unwrap().detach().export().await.unwrap();
    let adopted = within("an answer", locker.adopt(&paper)).await.unwrap();
    assert!(adopted.is_held() && !old.is_held() && adopted.fence() > old.fence());
    drop(go_on);
    eventually("the thread to go on", || async { renewed.remaining().as_secs() > 25 }).await;
    drop(old);
    adopted.renew().await.unwrap();
    assert!(adopted.is_held());
}

/// A lease that was adopted by its token has no fence to hand over: a task that waits for a fence gets its own grant.
#[tokio::test]
async fn a_lease_adopted_by_token_is_not_handed_over_without_a_fence() {
    let memory = still().1;
    let (here, there) = (Locker::new(memory.clone()), Locker::new(memory));
    let token = here.lock("k").await.unwrap().detach().export().await.unwrap().token();
    let known = ExportedLease::from_token(&Key::new("k").unwrap(), token, Duration::from_secs(30));
    let adopted = there.adopt(&known).await.unwrap();
    assert_eq!(adopted.fence(), Fence::NONE);
    let fenced = tokio::spawn(start(there.lock("k")).await);
    adopted.release().await.unwrap();
    let fenced = within("the next task's turn", fenced).await.unwrap().unwrap();
    assert!(fenced.fence() > Fence::NONE);
}

//! Each grant has a fence, higher than all earlier ones.

use tenure_core::{Fence, FenceCheck, Locker};

use super::Fixture;
use super::support::{hold, is_lost, soon_lost, start, within};

/// Locks, releases, and returns the fence.
async fn next_fence(locker: &Locker, key: &str) -> Fence {
    let guard = hold(locker, key).await;
    let fence = guard.fence();
    guard.release().await.unwrap();
    fence
}

/// A22: the fence rises from grant to grant, within a process and between processes.
pub async fn it_rises_with_each_grant<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut fences = Vec::new();
    for _ in 0..10 {
        fences.extend([next_fence(&a, &key).await, next_fence(&a, &key).await]);
        fences.push(next_fence(&b, &key).await);
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert!(fences[0] > Fence::NONE);
}

/// A22: the fence rises when a lock is handed over from task to task, and is positive as an `i64`.
pub async fn it_rises_within_a_process<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let mut guard = hold(&a, &key).await;
    for _ in 0..20 {
        let next = start(a.lock(&key)).await;
        let fence = guard.fence();
        guard.release().await.unwrap();
        guard = within("the next task's turn", next).await.unwrap();
        assert!(guard.fence() > fence);
        assert!(i64::try_from(guard.fence().get()).is_ok_and(|number| number > 0));
    }
}

/// A22: the fence rises after a loss, also for a process that connects later.
pub async fn it_rises_over_a_loss<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let lost = soon_lost(&a, &key).await;
    is_lost(&lost).await;
    let newcomer = f.locker().await;
    assert!(next_fence(&newcomer, &key).await > lost.fence());
}

/// A lock without fencing still excludes others, is handed over, and has no fence. A request with fencing
/// never gets a lease without a fence.
pub async fn it_can_be_switched_off<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = a.lock(&key).fencing(false).await.unwrap();
    assert_eq!(guard.fence(), Fence::NONE);
    assert!(f.locker().await.try_lock(&key).await.unwrap().is_none());
    let bare = start(a.lock(&key).fencing(false)).await;
    let fenced = start(a.lock(&key)).await;
    guard.release().await.unwrap();
    let guard = within("the turn without a fence", bare).await.unwrap();
    assert_eq!(guard.fence(), Fence::NONE);
    guard.release().await.unwrap();
    let guard = within("the turn with a fence", fenced).await.unwrap();
    assert!(guard.fence() > Fence::NONE);
    guard.release().await.unwrap();
}

/// A22, A23, t25: the resource rejects the fence of an earlier holder after it has seen a later one.
pub async fn t25_a_resource_refuses_the_stale<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let check = FenceCheck::new();
    let stale = soon_lost(&a, &key).await;
    check.accept(&key, stale.fence()).unwrap();
    is_lost(&stale).await;
    let fresh = hold(&b, &key).await;
    check.accept(&key, fresh.fence()).unwrap();
    assert!(check.accept(&key, stale.fence()).is_err());
    check.accept(&key, fresh.fence()).unwrap();
}

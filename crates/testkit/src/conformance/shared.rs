//! An owner that several processes declare to be the same.

use tenure_core::{Owner, Released};

use super::Fixture;
use super::support::{becomes_free, can_be_had, refused, within};

/// A17: two processes of one shared owner hold a lock together, and the last release frees it. An engine
/// without shared owners returns `Unsupported`.
pub async fn processes_share_an_owner<F: Fixture>(f: &F) {
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let owner = Owner::shared("run-7");
    let request = a.lock(&key).owner(owner.clone());
    if !f.capabilities().await.shared_owners {
        return assert!(refused(request).await.is_unsupported());
    }
    let one = request.await.unwrap();
    let two = within("the owner's other process", b.lock(&key).owner(owner).into_future()).await;
    assert!(!can_be_had(&c, &key).await);
    assert_eq!(one.release().await.unwrap(), Released::StillHeld(1));
    assert!(!can_be_had(&c, &key).await);
    assert_eq!(two.unwrap().release().await.unwrap(), Released::Freed);
    becomes_free(&c, &key).await;
}

/// A17: other owners, shared or not, are kept out.
pub async fn other_owners_are_kept_out<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    if !f.capabilities().await.shared_owners {
        let tried = a.try_lock(&key).owner(Owner::shared("one"));
        return assert!(refused(tried).await.is_unsupported());
    }
    let _one = a.lock(&key).owner(Owner::shared("one")).await.unwrap();
    assert!(b.try_lock(&key).owner(Owner::shared("two")).await.unwrap().is_none());
    assert!(b.try_lock(&key).owner(Owner::new()).await.unwrap().is_none());
    assert!(a.try_lock(&key).await.unwrap().is_none());
}

/// A17: a shared owner's lease is never handed over to a task of another owner. Otherwise another process of
/// the shared owner could enter beside that task.
pub async fn a_shared_lease_is_not_handed_over<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let owner = Owner::shared("run-7");
    if !f.capabilities().await.shared_owners {
        return assert!(refused(a.lock(&key).owner(owner)).await.is_unsupported());
    }
    let shared = a.lock(&key).owner(owner.clone()).await.unwrap();
    let task = super::start(a.lock(&key)).await;
    shared.release().await.unwrap();
    let task = within("the task's turn", task).await.unwrap();
    assert!(b.try_lock(&key).owner(owner).await.unwrap().is_none());
    assert!(task.is_held());
}

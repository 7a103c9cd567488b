//! An owner acquires a lock again that it holds, with a count.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{Fence, Guard, Locker, Owner, Reentry, Released};

use super::Fixture;
use super::support::{can_be_had, hold, is_lost, refused, soon_lost, start, within};

async fn take(locker: &Locker, key: &str, owner: &Owner) -> Guard {
    let request = locker.lock(key).owner(owner.clone());
    within("a re-entry", request.into_future()).await.unwrap()
}

/// A16: an owner acquires its lock again with a higher depth; each release returns the remaining depth.
pub async fn an_owner_reenters<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let outer = take(&a, &key, &owner).await;
    let inner = take(&a, &key, &owner).await;
    assert_eq!((outer.depth(), inner.depth(), a.hold_count(&key)), (1, 2, 2));
    assert_eq!(outer.fence(), inner.fence(), "one grant has one fence");
    assert_eq!(inner.release().await.unwrap(), Released::StillHeld(1));
    assert!(outer.is_held() && !can_be_had(&b, &key).await);
    assert_eq!(outer.release().await.unwrap(), Released::Freed);
    assert!(can_be_had(&b, &key).await);
}

/// A16: the guards of one owner can be released in any order; the last release frees the lock.
pub async fn any_order_of_release<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let (outer, inner) = (take(&a, &key, &owner).await, take(&a, &key, &owner).await);
    assert_eq!(outer.release().await.unwrap(), Released::StillHeld(1));
    assert!(inner.is_held() && !can_be_had(&b, &key).await);
    drop(inner);
    super::support::becomes_free(&b, &key).await;
}

/// A16: an owner in scope re-enters without being passed to the request.
pub async fn an_owner_in_scope_reenters<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let nested = async {
        let _outer = hold(&a, &key).await;
        let inner = hold(&a, &key).await;
        let tried = a.try_lock(&key).await.unwrap().expect("an attempt re-enters too");
        (inner.depth(), tried.depth())
    };
    assert_eq!(Owner::new().scope(nested).await, (2, 3));
}

/// A16, A18: a request without an owner never re-enters.
pub async fn without_an_owner_nothing_reenters<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let _outer = hold(&a, &key).await;
    assert!(a.try_lock(&key).await.unwrap().is_none());
    assert!(refused(a.lock(&key).wait(Duration::from_millis(20))).await.is_timeout());
}

/// A16: another owner of the same process does not re-enter.
pub async fn another_owner_waits<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let outer = take(&a, &key, &Owner::new()).await;
    assert!(a.try_lock(&key).owner(Owner::new()).await.unwrap().is_none());
    let other = start(a.lock(&key).owner(Owner::new())).await;
    outer.release().await.unwrap();
    assert_eq!(within("the other owner's turn", other).await.unwrap().depth(), 1);
}

/// A16: an owner in another process does not re-enter, unless it is declared shared.
pub async fn an_owner_is_local<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let _outer = take(&a, &key, &owner).await;
    assert!(b.try_lock(&key).owner(owner).await.unwrap().is_none());
}

/// A16: two tasks of one owner that wait at the same time both get the lock, and share it.
pub async fn waiters_of_one_owner_share<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    for holder in [&a, &b] {
        let guard = hold(holder, &key).await;
        let one = tokio::spawn(start(a.lock(&key).owner(owner.clone())).await);
        let two = tokio::spawn(start(a.lock(&key).owner(owner.clone())).await);
        guard.release().await.unwrap();
        // Neither guard is released before both are held.
        let one = within("one mate's turn", one).await.unwrap().unwrap();
        let two = within("the other mate's turn", two).await.unwrap().unwrap();
        assert_eq!(a.hold_count(&key), 2);
        assert_eq!(one.release().await.unwrap(), Released::StillHeld(1));
        assert_eq!(two.release().await.unwrap(), Released::Freed);
    }
}

/// A18: an owner that refuses re-entry gets an error instead of waiting for itself.
pub async fn reentry_can_be_refused<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let guard = take(&a, &key, &owner).await;
    let again = a.lock(&key).owner(owner.clone()).reentry(Reentry::Refuse);
    let error = refused(again).await;
    assert!(error.is_already_held(), "{error:?}");
    let tried = refused(a.try_lock(&key).owner(owner).reentry(Reentry::Refuse)).await;
    assert!(tried.is_already_held(), "{tried:?}");
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// A16, A22: an owner that holds the lock without a fence gets an error if it asks again with fencing,
/// because the re-entry has no fence. Without fencing it re-enters.
pub async fn a_fence_is_not_made_up<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let outer = a.lock(&key).owner(owner.clone()).fencing(false).await.unwrap();
    for error in [
        refused(a.lock(&key).owner(owner.clone())).await,
        refused(a.try_lock(&key).owner(owner.clone())).await,
    ] {
        assert!(error.is_invalid() && error.to_string().contains(&key), "{error:?}");
    }
    let inner = a.lock(&key).owner(owner).fencing(false).await.unwrap();
    assert_eq!((inner.depth(), inner.fence()), (2, Fence::NONE));
    drop((inner, outer));
}

/// A15, A16: the loss of a lock is signalled to every guard of its owner.
pub async fn a_loss_reaches_every_depth<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let request = a.lock(&key).owner(owner.clone()).max_hold(Duration::from_millis(1_500));
    let outer = request.await.unwrap();
    let inner = take(&a, &key, &owner).await;
    assert_eq!(is_lost(&inner).await, Loss::MaxHold);
    assert_eq!(is_lost(&outer).await, Loss::MaxHold);
    assert!(refused(inner.release()).await.is_lost());
    assert!(refused(outer.release()).await.is_lost());
}

/// A16: an owner does not hold a lost lock: a new request gets a new grant or the loss, never a re-entry.
pub async fn a_lost_lock_is_not_reentered<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let lost = owner.scope(async { soon_lost(&a, &key).await }).await;
    is_lost(&lost).await;
    let next = a.lock(&key).owner(owner).await;
    match next {
        Ok(next) => assert!(next.depth() == 1 && next.fence() > lost.fence()),
        Err(error) => assert!(error.is_lost(), "{error:?}"),
    }
    assert!(!lost.is_held());
}

/// A16: an owner that has dropped its lost guard holds nothing: a new request is not a re-entry, and never an
/// error. Many rounds, because another thread handles the loss at the same time.
pub async fn after_a_loss_an_owner_acquires_again<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    for round in 0..200 {
        let request = a.lock(&key).owner(owner.clone()).max_hold(Duration::from_millis(10));
        let guard = match within("a lock", request.into_future()).await {
            Ok(guard) => guard,
            Err(error) => panic!("round {round}: {error:?}"),
        };
        within("the loss", guard.lost()).await;
        drop(guard);
    }
}

//! The validity of a lock: renewal, limits, and what the holder can read of them.

use std::time::Duration;

use tenure_core::Renew;
use tenure_core::backend::Loss;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, is_lost, look, passes, within};

/// A14: renewal keeps a lock beyond its ttl.
pub async fn renewal_keeps_a_lock<F: Fixture>(f: &F) {
    let (a, b, key, ttl) = (f.locker().await, f.locker().await, f.key("k"), f.short_ttl());
    let guard = a.lock(&key).ttl(ttl).await.unwrap();
    passes(&a, ttl * 2).await;
    assert!(guard.is_held());
    assert!(!can_be_had(&b, &key).await);
    guard.release().await.unwrap();
}

/// A14: without renewal a lock expires after its ttl, and the holder is notified. On an engine whose leases
/// do not expire the ttl has no effect.
pub async fn without_renewal_it_ends<F: Fixture>(f: &F) {
    let (a, b, key, ttl) = (f.locker().await, f.locker().await, f.key("k"), f.short_ttl());
    let guard = a.lock(&key).ttl(ttl).renew(Renew::Off).await.unwrap();
    if !f.capabilities().await.expires {
        passes(&a, ttl + ttl / 2).await;
        return assert!(guard.is_held() && !can_be_had(&b, &key).await);
    }
    assert_eq!(is_lost(&guard).await, Loss::Expired);
    becomes_free(&b, &key).await;
}

/// A14: `max_hold` ends a lock although it is renewed: the holder is notified, and the lock becomes free.
pub async fn max_hold_ends_a_lock<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let longest = Duration::from_millis(100);
    let before = a.clock().now();
    let guard = a.lock(&key).max_hold(longest).await.unwrap();
    assert!(guard.remaining() <= longest);
    assert_eq!(is_lost(&guard).await, Loss::MaxHold);
    assert!(a.clock().now().since(before) >= longest);
    becomes_free(&b, &key).await;
}

/// A14: `max_hold` starts anew for each holder, also when the lease is handed over from task to task.
pub async fn max_hold_is_each_holders_own<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let first = a.lock(&key).max_hold(Duration::from_secs(60)).await.unwrap();
    let second = super::start(a.lock(&key).max_hold(Duration::from_millis(1_000))).await;
    let third = super::start(a.lock(&key)).await;
    first.release().await.unwrap();
    let second = within("the second's turn", second).await.unwrap();
    assert_eq!(is_lost(&second).await, Loss::MaxHold);
    let third = within("the third's turn", third).await.unwrap();
    assert!(third.is_held() && third.remaining() > Duration::from_secs(5));
}

/// A14: a manual renewal is confirmed, and extends the lease.
pub async fn renewal_by_hand<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = a.lock(&key).renew(Renew::Off).await.unwrap();
    let before = guard.valid_until();
    passes(&a, Duration::from_millis(5)).await;
    guard.renew().await.unwrap();
    match f.capabilities().await.expires {
        true => assert!(guard.valid_until() > before),
        false => assert_eq!(guard.valid_until(), before),
    }
}

/// A13: the remaining time of a lease is never longer than the engine's.
pub async fn remaining_is_honest<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = a.lock(&key).renew(Renew::Off).await.unwrap();
    let ours = guard.remaining();
    let shown = look(&a, &key).await.expect("it is held").holders[0].holder.lease_left;
    if f.capabilities().await.expires {
        let shown = shown.expect("an expiring lease has an end");
        assert!(guard.remaining() <= shown, "{ours:?} relied on, {shown:?} left at the server");
    }
}

/// The holder can be warned before the loss.
pub async fn a_warning_comes_before_the_loss<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = a.lock(&key).max_hold(Duration::from_millis(1_000)).await.unwrap();
    within("the warning", guard.expiring(Duration::from_millis(800))).await;
    assert!(guard.remaining() <= Duration::from_millis(800));
    is_lost(&guard).await;
    // After the loss the warning resolves at once.
    within("a late warning", guard.expiring(Duration::ZERO)).await;
}

/// A28: after an early release a lock with `min_hold` stays closed for the rest of that time, and then is
/// free.
pub async fn min_hold_keeps_it_closed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(1_500);
    let before = a.clock().now();
    let guard = a.lock(&key).min_hold(shortest).await.unwrap();
    guard.release().await.unwrap();
    let info = look(&b, &key).await;
    if a.clock().now().since(before) < shortest {
        let info = info.expect("it is closed");
        assert!(info.holders[0].holder.cooling_down, "released, and closed for the rest");
    }
    becomes_free(&b, &key).await;
    assert!(a.clock().now().since(before) >= shortest, "nobody had it before its time");
}

/// A28: a release after `min_hold` frees the lock at once.
pub async fn min_hold_is_no_more<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(30);
    let guard = a.lock(&key).min_hold(shortest).await.unwrap();
    passes(&a, shortest).await;
    guard.release().await.unwrap();
    assert!(can_be_had(&b, &key).await);
}

/// A28: a closed lock also keeps out the process that closed it.
pub async fn a_closed_lock_is_closed_to_all<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(1_500);
    let before = a.clock().now();
    a.lock(&key).min_hold(shortest).await.unwrap().release().await.unwrap();
    let again = hold(&a, &key).await;
    assert!(a.clock().now().since(before) >= shortest);
    assert!(again.is_held());
}

/// A28: a waiter gets a closed lock when it opens, not when the old lease would have expired.
pub async fn a_waiter_gets_a_closed_lock<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for waiter in [&a, &b] {
        let request =
            a.lock(&key).ttl(Duration::from_secs(600)).min_hold(Duration::from_millis(300));
        let guard = request.await.unwrap();
        let wait = super::start(waiter.lock(&key).ttl(Duration::from_secs(600))).await;
        guard.release().await.unwrap();
        let next = within("the lock to open", wait).await.unwrap();
        next.release().await.unwrap();
    }
}

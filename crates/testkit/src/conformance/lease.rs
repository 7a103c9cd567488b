//! How long a lock lasts: renewal, its bounds, and what the holder can see of it.

use std::time::Duration;

use tenure_core::Renew;
use tenure_core::backend::Loss;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, is_lost, look, passes, within};

/// A14: a lock is kept past its ttl by renewal.
pub async fn renewal_keeps_a_lock<F: Fixture>(f: &F) {
    let (a, b, key, ttl) = (f.locker().await, f.locker().await, f.key("k"), f.short_ttl());
    let guard = a.lock(&key).ttl(ttl).await.unwrap();
    passes(&a, ttl * 2).await;
    assert!(guard.is_held());
    assert!(!can_be_had(&b, &key).await);
    guard.release().await.unwrap();
}

/// A14: without renewal a lock ends with its ttl, and the holder hears it; where leases have no end
/// the ttl has no effect.
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

/// A14: `max_hold` ends a lock that is renewed: the holder hears it, and the next one gets it.
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

/// A14: `max_hold` counts for each holder anew, also when the lease is handed from task to task.
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

/// A14: a renewal by hand is confirmed, and never shortens the lease.
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

/// A14: a holder with a shorter ttl than the one that handed it the lease renews: the engine keeps
/// the lock as long as it would have before, since we go on counting with that.
pub async fn a_renewal_never_shortens<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let first = a.lock(&key).ttl(Duration::from_secs(600)).await.unwrap();
    let second = super::start(a.lock(&key).ttl(Duration::from_secs(2))).await;
    first.release().await.unwrap();
    let second = within("the hand-over", second).await.unwrap();
    second.renew().await.unwrap();
    let left = look(&a, &key).await.expect("it is held").holders[0].holder.lease_left;
    assert!(left.is_none_or(|left| left >= second.remaining()), "{left:?}");
}

/// A13: what is left of a lease is what the engine shows, never more.
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
    within("the warning", guard.endangered(Duration::from_millis(800))).await;
    assert!(guard.remaining() <= Duration::from_millis(800));
    is_lost(&guard).await;
    // After the loss there is nothing left to wait for.
    within("a late warning", guard.endangered(Duration::ZERO)).await;
}

/// A28: a lock with a minimum time stays closed after an early release, and then it is free.
pub async fn at_least_keeps_it_closed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(1_500);
    let before = a.clock().now();
    let guard = a.lock(&key).at_least(shortest).await.unwrap();
    guard.release().await.unwrap();
    let info = look(&b, &key).await;
    if a.clock().now().since(before) < shortest {
        let info = info.expect("it is closed");
        assert!(info.holders[0].holder.closing, "released, and closed for the rest");
    }
    becomes_free(&b, &key).await;
    assert!(a.clock().now().since(before) >= shortest, "nobody had it before its time");
}

/// A28: a release after the minimum time frees the lock at once.
pub async fn at_least_is_no_more<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(30);
    let guard = a.lock(&key).at_least(shortest).await.unwrap();
    passes(&a, shortest).await;
    guard.release().await.unwrap();
    assert!(can_be_had(&b, &key).await);
}

/// A28: a closed lock keeps out the process that closed it as well.
pub async fn a_closed_lock_is_closed_to_all<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let shortest = Duration::from_millis(1_500);
    let before = a.clock().now();
    a.lock(&key).at_least(shortest).await.unwrap().release().await.unwrap();
    let again = hold(&a, &key).await;
    assert!(a.clock().now().since(before) >= shortest);
    assert!(again.is_held());
}

/// A28: whoever waited already gets a closed lock when it opens, not when its old lease would have ended.
pub async fn a_waiter_gets_a_closed_lock<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for waiter in [&a, &b] {
        let request =
            a.lock(&key).ttl(Duration::from_secs(600)).at_least(Duration::from_millis(300));
        let guard = request.await.unwrap();
        let wait = super::start(waiter.lock(&key).ttl(Duration::from_secs(600))).await;
        guard.release().await.unwrap();
        let next = within("the lock to open", wait).await.unwrap();
        next.release().await.unwrap();
    }
}

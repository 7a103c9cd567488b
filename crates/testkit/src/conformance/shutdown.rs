//! The shutdown of a locker: no new claims, and no locks left behind.

use std::time::Duration;

use tenure_core::backend::Loss;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, is_lost, refused, start, within};

/// A26: after a shutdown every request fails as closed, and other processes are not affected.
pub async fn nothing_new<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    a.shutdown(Duration::ZERO).await;
    assert!(refused(a.lock(&key)).await.is_closed());
    assert!(refused(a.try_lock(&key)).await.is_closed());
    assert!(refused(a.clone().lock(&key)).await.is_closed(), "clones are the same locker");
    assert!(can_be_had(&b, &key).await);
}

/// A26: a lock that is still held after the drain time is lost and freed; its holder is notified.
pub async fn what_is_held_is_freed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    within("the shutdown", a.shutdown(Duration::from_millis(50))).await;
    assert_eq!(is_lost(&guard).await, Loss::Shutdown);
    assert!(refused(guard.release()).await.is_lost());
    becomes_free(&b, &key).await;
}

/// A26: holders that release within the drain time do not lose their locks.
pub async fn holders_may_finish<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let closing = start({
        let a = a.clone();
        // Longer than any wait here: the shutdown ends with the last release, or the test fails.
        async move { a.shutdown(crate::wait::DEADLINE * 2).await }
    })
    .await;
    assert!(guard.is_held(), "it has time");
    guard.release().await.expect("it was not lost");
    within("the shutdown, with nothing left to wait for", closing).await;
    assert!(can_be_had(&b, &key).await);
}

/// A26: waits end as closed, and leave no queue entry.
pub async fn waits_are_closed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&b, &key).await;
    let waits = [start(a.lock(&key)).await, start(a.lock(&key)).await];
    within("the shutdown", a.shutdown(Duration::ZERO)).await;
    for wait in waits {
        assert!(refused(wait).await.is_closed());
    }
    guard.release().await.unwrap();
    becomes_free(&b, &key).await;
}

/// A26: a second shutdown has no further effect.
pub async fn twice_is_once<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    within("the first shutdown", a.shutdown(Duration::ZERO)).await;
    within("the second shutdown", a.shutdown(Duration::ZERO)).await;
    within("a shutdown of a clone", a.clone().shutdown(Duration::ZERO)).await;
    assert!(refused(a.lock(&key)).await.is_closed());
}

/// A26: two shutdowns at the same time both end.
pub async fn two_at_once<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let both = async { tokio::join!(a.shutdown(Duration::ZERO), a.shutdown(Duration::ZERO)) };
    within("both shutdowns", both).await;
    becomes_free(&b, &key).await;
}

/// A26: an unused locker can be shut down.
pub async fn an_unused_locker<F: Fixture>(f: &F) {
    let a = f.locker().await;
    within("the shutdown", a.shutdown(Duration::from_secs(5))).await;
    assert!(refused(a.lock(f.key("k"))).await.is_closed());
}

//! The loss of a lock is signalled to its holder.

use std::time::Duration;

use tenure_core::backend::Loss;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, is_lost, refused, soon_lost, start, within};

/// A15: `lost` resolves, `is_held` becomes false, and `release` returns the loss with its cause.
pub async fn a_loss_is_signalled<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = soon_lost(&a, &key).await;
    assert_eq!(is_lost(&guard).await, Loss::MaxHold);
    assert!(a.clock().now() >= guard.valid_until());
    let error = refused(guard.release()).await;
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(error.loss(), Some(&Loss::MaxHold));
}

/// A15: every `Held` view learns of the loss, and can ask again later.
pub async fn every_view_is_notified<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = soon_lost(&a, &key).await;
    let (one, two) = (guard.held(), guard.held().clone());
    let waiting = tokio::spawn(async move { one.ended().await });
    assert_eq!(within("the waiting view", waiting).await.unwrap(), Some(Loss::MaxHold));
    assert_eq!(within("the later view", two.ended()).await, Some(Loss::MaxHold));
    assert!(!two.is_held());
    assert_eq!(is_lost(&guard).await, Loss::MaxHold);
}

/// A15: a lock that is held and renewed is not lost.
pub async fn no_loss_without_cause<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let early = tokio::time::timeout(Duration::from_millis(50), guard.lost()).await;
    assert!(early.is_err() && guard.is_held());
}

/// A lost lock is not handed over to the next task: that task asks the server, and gets its own grant.
pub async fn a_lost_lock_is_not_handed_over<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let lost = soon_lost(&a, &key).await;
    let next = tokio::spawn(start(a.lock(&key)).await);
    is_lost(&lost).await;
    let next = within("the next task's turn", next).await.unwrap().unwrap();
    assert!(next.fence() > lost.fence() && next.is_held());
    assert!(refused(lost.release()).await.is_lost());
    assert!(next.is_held() && !can_be_had(&b, &key).await);
}

/// A5, t02, t03: a late release, drop or renewal of a lost lock does not affect the next holder.
pub async fn t02_a_late_release_hits_nobody<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for late in ["release", "drop", "renew"] {
        let lost = soon_lost(&a, &key).await;
        is_lost(&lost).await;
        let rival = hold(&b, &key).await;
        match late {
            "release" => assert!(refused(lost.release()).await.is_lost()),
            "renew" => assert!(refused(lost.renew()).await.is_lost()),
            _ => drop(lost),
        }
        assert!(rival.is_held());
        assert!(!can_be_had(&a, &key).await);
        rival.release().await.unwrap();
        becomes_free(&a, &key).await;
    }
}

//! Locks without a guard: released by key, or exported as text.

use std::str::FromStr;

use tenure_core::{ExportedLease, Owner, Released};

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, passes, refused, soon_lost};

/// A27: a detached lock stays held and renewed, and is released by its key.
pub async fn released_by_key<F: Fixture>(f: &F) {
    let (a, b, key, ttl) = (f.locker().await, f.locker().await, f.key("k"), f.short_ttl());
    let _ = a.lock(&key).ttl(ttl).await.unwrap().detach();
    passes(&a, ttl + ttl / 2).await;
    assert!(!can_be_had(&b, &key).await);
    assert_eq!(a.hold_count(&key), 1);
    assert_eq!(a.release(&key).await.unwrap(), Released::Freed);
    assert!(can_be_had(&b, &key).await);
}

/// A27: a lock that was not detached by this locker cannot be released by key.
pub async fn nothing_is_not_held<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    assert!(refused(a.release(&key)).await.is_not_held());
    let guard = hold(&a, &key).await;
    assert!(refused(a.release(&key)).await.is_not_held(), "a guard has it");
    assert!(refused(b.release(&key)).await.is_not_held(), "another process has it");
    assert!(guard.is_held());
    let _ = guard.detach();
    a.release(&key).await.unwrap();
    assert!(refused(a.release(&key)).await.is_not_held(), "it is released already");
}

/// A27: a lease is exported, adopted by another process, and released there. An engine that cannot do this
/// returns `Unsupported`.
pub async fn written_down_and_adopted<F: Fixture>(f: &F) {
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let fence = guard.fence();
    let written = guard.detach().export().await;
    if !f.capabilities().await.adoptable {
        let error = match written {
            Err(error) => error,
            Ok(written) => refused(b.adopt(&written)).await,
        };
        return assert!(error.is_unsupported(), "{error:?}");
    }
    let text = written.unwrap().to_string();
    assert!(!can_be_had(&c, &key).await, "nobody gets it on its way");
    let read = ExportedLease::from_str(&text).unwrap();
    let adopted = b.adopt(&read).await.unwrap();
    assert_eq!(adopted.key().as_str(), key);
    assert!(adopted.fence() >= fence && adopted.is_held());
    assert_eq!((a.hold_count(&key), b.hold_count(&key)), (0, 1));
    adopted.release().await.unwrap();
    becomes_free(&c, &key).await;
}

/// A27: a lease that has ended cannot be adopted, and the attempt does not affect another holder.
pub async fn what_has_ended_is_not_adopted<F: Fixture>(f: &F) {
    if !f.capabilities().await.adoptable {
        return written_down_and_adopted(f).await;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let written = hold(&a, &key).await.detach().export().await.unwrap();
    a.adopt(&written).await.unwrap().release().await.unwrap();
    let rival = hold(&a, &key).await;
    let error = refused(b.adopt(&written)).await;
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
    assert!(rival.is_held() && !can_be_had(&b, &key).await);
}

/// A15, A27: a release by key of a lock that was lost meanwhile returns the loss, once.
pub async fn a_loss_is_reported_at_the_release<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    drop(soon_lost(&a, &key).await.detach());
    becomes_free(&b, &key).await;
    let error = refused(a.release(&key)).await;
    assert!(error.is_lost(), "{error:?}");
    assert!(refused(a.release(&key)).await.is_not_held());
    assert_eq!(a.hold_count(&key), 0);
}

/// A16, A27: a detached re-entry counts as one level of its owner's depth.
pub async fn a_detached_depth_is_released_by_key<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let outer = a.lock(&key).owner(owner.clone()).await.unwrap();
    drop(a.lock(&key).owner(owner).await.unwrap().detach());
    assert_eq!(a.hold_count(&key), 2);
    assert_eq!(outer.release().await.unwrap(), Released::StillHeld(1));
    assert!(!can_be_had(&b, &key).await);
    assert_eq!(a.release(&key).await.unwrap(), Released::Freed);
    becomes_free(&b, &key).await;
}

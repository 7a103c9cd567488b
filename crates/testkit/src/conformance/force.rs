//! An operator releases a lock by force, or the error names the process to end.

use std::time::Duration;

use tenure_core::backend::{Loss, Release};
use tenure_core::{Locker, Token};

use super::Fixture;
use super::support::{
    becomes_free, can_be_had, hold, is_lost, look, refused, start, waiters_are, within,
};

/// The token that an operator sees.
async fn seen(locker: &Locker, key: &str) -> Option<Token> {
    look(locker, key).await.expect("it is held").holders[0].token
}

/// A25: a lock is released by force and its holder is notified; an engine without this feature names the
/// process to end.
pub async fn it_is_taken_away<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    if !f.capabilities().await.force_release {
        return it_is_refused(&b, &key).await;
    }
    let token = seen(&b, &key).await.expect("a forcible engine shows the token");
    let freed = b.force_release(&key, token, "ann: stuck").await.unwrap();
    assert_eq!(freed, Release::Freed);
    assert_eq!(is_lost(&guard).await, Loss::Forced("ann: stuck".into()));
    let next = hold(&b, &key).await;
    assert!(next.fence() > guard.fence());
}

/// The error names the process.
async fn it_is_refused(operator: &Locker, key: &str) {
    let token = seen(operator, key).await.unwrap_or_else(|| Token::random().unwrap());
    let error = refused(operator.force_release(key, token, "ann")).await;
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

/// A25: the token of an earlier claim does not affect a newer claim.
pub async fn a_newer_claim_is_not_hit<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    if !f.capabilities().await.force_release {
        let _guard = hold(&a, &key).await;
        return it_is_refused(&b, &key).await;
    }
    let old = hold(&a, &key).await;
    let token = seen(&b, &key).await.expect("a forcible engine shows the token");
    old.release().await.unwrap();
    let newer = hold(&a, &key).await;
    assert_eq!(b.force_release(&key, token, "ann").await.unwrap(), Release::NotHeld);
    assert!(newer.is_held());
    newer.release().await.unwrap();
    becomes_free(&b, &key).await;
}

/// Acquires and releases the lock so that it stays closed for an hour. Returns the token that an operator
/// sees.
async fn close(locker: &Locker, key: &str) -> Token {
    let guard = locker.lock(key).min_hold(Duration::from_secs(3600)).await.unwrap();
    guard.release().await.unwrap();
    assert!(look(locker, key).await.expect("it is closed").holders[0].holder.cooling_down);
    seen(locker, key).await.expect("a closed lock shows the token of its last holder")
}

/// A25, A28: a lock that is only closed by `min_hold` can be opened on every engine; a waiter gets it at
/// once.
pub async fn a_closed_lock_is_opened<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let token = close(&a, &key).await;
    assert!(!can_be_had(&b, &key).await, "it is closed");
    assert_eq!(b.force_release(&key, token, "ann").await.unwrap(), Release::Freed);
    hold(&b, &key).await.release().await.unwrap();

    let token = close(&a, &key).await;
    let mut waiting = start(b.lock(&key)).await;
    waiting.until(waiters_are(&a, &key, 1)).await;
    assert_eq!(a.force_release(&key, token, "ann").await.unwrap(), Release::Freed);
    within("the lock that was opened", waiting).await.unwrap().release().await.unwrap();
}

/// A25: the token of an earlier claim neither opens a lock that a later claim keeps closed, nor affects a
/// holder.
pub async fn a_newer_closed_lock_is_not_opened<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let old = close(&a, &key).await;
    assert_eq!(a.force_release(&key, old, "ann").await.unwrap(), Release::Freed);
    let newer = close(&a, &key).await;
    assert_eq!(b.force_release(&key, old, "ann").await.unwrap(), Release::NotHeld);
    assert!(!can_be_had(&b, &key).await, "it is still closed");
    assert_eq!(b.force_release(&key, newer, "ann").await.unwrap(), Release::Freed);
    let held = hold(&a, &key).await;
    assert_eq!(b.force_release(&key, newer, "ann").await.unwrap(), Release::NotHeld);
    assert!(held.is_held());
    held.release().await.unwrap();
}

//! An operator takes a lock away, or is told whom to ask.

use tenure_core::backend::{Loss, Release};
use tenure_core::{Locker, Token};

use super::Fixture;
use super::support::{becomes_free, hold, is_lost, look, refused};

/// The token that an operator sees.
async fn seen(locker: &Locker, key: &str) -> Option<Token> {
    look(locker, key).await.expect("it is held").holders[0].token
}

/// A25: a lock is taken from its holder, who hears it; an engine that cannot says whose process to end.
pub async fn it_is_taken_away<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    if !f.capabilities().await.forcible {
        return it_is_refused(&b, &key).await;
    }
    let token = seen(&b, &key).await.expect("a forcible engine shows the token");
    let freed = b.force_release(&key, token, "ann: stuck").await.unwrap();
    assert_eq!(freed, Release::Freed);
    assert_eq!(is_lost(&guard).await, Loss::Forced("ann: stuck".into()));
    let next = hold(&b, &key).await;
    assert!(next.fence() > guard.fence());
}

/// The refusal names the process.
async fn it_is_refused(operator: &Locker, key: &str) {
    let token = seen(operator, key).await.unwrap_or_else(|| Token::random().unwrap());
    let error = refused(operator.force_release(key, token, "ann")).await;
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

/// A25: the token of an earlier claim takes nothing from a newer one.
pub async fn a_newer_claim_is_not_hit<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    if !f.capabilities().await.forcible {
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

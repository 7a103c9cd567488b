//! Actions of operators: delete keys, force releases, compact, restart.

use std::time::{Duration, Instant};

use tenure_core::backend::{Loss, Release};
use tenure_core::time::Clock;
use tenure_core::{ExportedLease, Guard, Key, Locker};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Way};
use tenure_testkit::wait::{eventually, within};

use crate::support::{
    LONG, SHORT, SLACK, claims, claims_are, lease_of, locker, of_ttl, proxied, through, whole,
};

/// A lock is renewed each time this share of its ttl has passed.
const RENEWAL: u32 = 3;

/// Deletes the key of the lock `k`. Its holder is notified at its next renewal.
async fn loss_after_deletion(server: &EtcdServer, guard: &Guard, ttl: Duration) -> Loss {
    let (clock, every) = (Clock::system(), ttl / RENEWAL);
    let mut due = guard.valid_until().before(ttl - every);
    server.delete(&claims(server, "k")[0]);
    // The lock was renewed before the key was deleted.
    while due < clock.now() {
        due = due.after(every);
    }
    let loss = within("the loss", guard.lost()).await;
    let late = clock.now().since(due);
    assert!(late < SLACK, "{late:?} after the renewal");
    loss
}

/// A holder whose key is deleted by hand has lost the lock, although its session lives. It is notified at its
/// next renewal, and a waiter gets the lock.
#[tokio::test]
async fn a_deleted_key_is_a_loss() {
    let server = EtcdServer::start();
    let ttl = Duration::from_secs(6);
    let (a, b) = (of_ttl(&server.url(), ttl).await, locker(&server.url()).await);
    let (guard, other) = (a.lock("k").await.unwrap(), a.lock("other").await.unwrap());
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let loss = loss_after_deletion(&server, &guard, ttl).await;
    assert!(matches!(loss, Loss::Gone), "{loss:?}");
    let next = within("the next one's turn", waiting).await.unwrap().unwrap();
    assert!(next.is_held() && !guard.is_held() && other.is_held(), "the session lives");
}

/// The key of a lock with a separate session is deleted, without a waiter.
#[tokio::test]
async fn a_deleted_key_of_a_session_of_its_own() {
    let server = EtcdServer::start();
    let (a, ttl) = (locker(&server.url()).await, Duration::from_secs(6));
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    loss_after_deletion(&server, &guard, ttl).await;
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
}

/// A key that is deleted and put again by hand is not the same claim: its create revision differs, so its
/// former holder has lost the lock.
#[tokio::test]
async fn a_key_put_again_by_hand() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    let claim = claims(&server, "k")[0].clone();
    let lease = lease_of(&server, &claim);
    server.delete(&claim);
    server.ctl(&["put", &claim, "by hand", "--lease", &lease]);
    within("the loss", guard.lost()).await;
    assert!(!guard.is_held());
}

/// t68: a forced release: the holder is notified with the operator's name, the fence rises, and the token
/// that was seen hits no newer claim.
#[tokio::test]
async fn t68_force_release() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let seen = b.inspect("k").await.unwrap().unwrap().holders[0].token.unwrap();
    assert_eq!(b.force_release("k", seen, "eve: stuck").await.unwrap(), Release::Freed);
    let at = Instant::now();
    let loss = within("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::Forced("eve: stuck".into()));
    assert!(at.elapsed() < SLACK, "notified, not found at the next renewal: {:?}", at.elapsed());
    let next = b.lock("k").await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(b.force_release("k", seen, "eve: again").await.unwrap(), Release::NotHeld);
    assert!(next.is_held() && claims(&server, "k").len() == 1);
}

/// What `tenure release KEY --token` knows about the lock `key`.
async fn known(locker: &Locker, key: &str) -> ExportedLease {
    let shown = locker.inspect(key).await.unwrap().unwrap();
    ExportedLease::from_token(&Key::new(key).unwrap(), shown.holders[0].token.unwrap(), SHORT)
}

/// A release by token ends that lock and no other: the shared session of the holder lives on.
#[tokio::test]
async fn a_release_by_token_spares_the_other_locks() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (_one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    let session = lease_of(&server, &claims(&server, "two")[0]);
    b.adopt(&known(&b, "one").await).await.unwrap().release().await.unwrap();
    // Its remaining requests are done when this returns.
    b.shutdown(LONG).await;
    assert!(claims(&server, "one").is_empty());
    assert_eq!(claims(&server, "two").len(), 1, "the session lives");
    assert!(server.leases().contains(&session) && two.is_held());
}

/// An exported lock has a session of its own, which ends with the lock, whichever process releases it.
#[tokio::test]
async fn a_release_by_token_ends_a_session_of_one_lock() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    for ttl in [LONG, LONG * 2] {
        let guard = a.lock("k").ttl(ttl).await.unwrap();
        let written = guard.detach().export().await.unwrap();
        let session = lease_of(&server, &claims(&server, "k")[0]);
        b.adopt(&written).await.unwrap().release().await.unwrap();
        eventually("its session to end", || async { !server.leases().contains(&session) }).await;
    }
}

/// A process that adopts a lock and loses it does not end the other locks of the former holder.
#[tokio::test]
async fn an_adopted_lock_that_is_lost_spares_the_others() {
    let (server, proxy) = proxied();
    let ttl = SHORT * 2;
    let (a, b) = (of_ttl(&server.url(), ttl).await, of_ttl(&through(&proxy), LONG).await);
    let (_one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    let adopted = b.adopt(&known(&b, "one").await).await.unwrap();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    within("the loss", adopted.lost()).await;
    proxy.cut(Cut::Reset);
    proxy.heal();
    within("the lock to be deleted", claims_are(&server, "one", 0)).await;
    drop(adopted);
    within("a lock", b.lock("other").into_future()).await.unwrap().release().await.unwrap();
    b.shutdown(LONG).await;
    assert_eq!(claims(&server, "two").len(), 1, "the session lives");
    assert!(two.is_held());
}

/// Compaction does not affect a held lock.
#[tokio::test]
async fn compaction_while_held() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    for _ in 0..4 {
        server.ctl(&["put", "something", "else"]);
        server.compact();
        tenure_testkit::wait::lapse(SHORT / 2).await;
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A full server refuses new locks with a typed error. Held locks stay, and are deleted when they are
/// released, not when their ttl is over.
#[tokio::test]
async fn t41_a_full_server() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes=200000"]);
    let (a, b) = (of_ttl(&server.url(), SHORT).await, locker(&server.url()).await);
    let (kept, guard) = (a.lock("kept").await.unwrap(), b.lock("k").await.unwrap());
    let filling = "x".repeat(100_000);
    while server.try_ctl(&["put", "filling", &filling]).is_ok() {}
    for locker in [&a, &b] {
        let error = within("a refusal", locker.try_lock("other").into_future()).await.unwrap_err();
        assert!(error.is_refused() && whole(&error).contains("is full"), "{error:?}");
    }
    tenure_testkit::wait::lapse(SHORT * 2).await;
    assert!(kept.is_held(), "keep-alives need no room");
    for (guard, key) in [(kept, "kept"), (guard, "k")] {
        guard.release().await.unwrap();
        assert!(claims(&server, key).is_empty(), "it was said to be released");
    }
}

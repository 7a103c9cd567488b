//! What operators do: delete keys, take locks away, compact, restart.

use std::time::{Duration, Instant};

use tenure_core::backend::{Loss, Release};
use tenure_core::time::Clock;
use tenure_core::{Guard, Key, Locker, WrittenLease};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Way};
use tenure_testkit::wait::{eventually, within};

use crate::support::{
    LONG, SHORT, SLACK, claims, claims_are, lease_of, locker, of_ttl, proxied, through, whole,
};

/// How often a lock of this ttl is renewed.
const RENEWAL: u32 = 3;

/// Deletes the key of the lock `k`. Its holder hears of it at its next renewal.
async fn deleted_and_heard(server: &EtcdServer, guard: &Guard, ttl: Duration) -> Loss {
    let (clock, every) = (Clock::system(), ttl / RENEWAL);
    let mut due = guard.valid_until().before(ttl - every);
    server.delete(&claims(server, "k")[0]);
    // It was renewed before the key went.
    while due < clock.now() {
        due = due.after(every);
    }
    let loss = within("the loss", guard.lost()).await;
    let late = clock.now().since(due);
    assert!(late < SLACK, "{late:?} after the renewal");
    loss
}

/// A holder whose key is deleted by hand has lost the lock, though its session lives: it hears of it
/// within a renewal's time, and whoever waits gets the lock.
#[tokio::test]
async fn a_deleted_key_is_a_loss() {
    let server = EtcdServer::start();
    let ttl = Duration::from_secs(6);
    let (a, b) = (of_ttl(&server.url(), ttl).await, locker(&server.url()).await);
    let (guard, other) = (a.lock("k").await.unwrap(), a.lock("other").await.unwrap());
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let loss = deleted_and_heard(&server, &guard, ttl).await;
    assert!(matches!(loss, Loss::Gone), "{loss:?}");
    let next = within("the next one's turn", waiting).await.unwrap().unwrap();
    assert!(next.is_held() && !guard.is_held() && other.is_held(), "the session lives");
}

/// The same with nobody waiting, and a ttl of its own.
#[tokio::test]
async fn a_deleted_key_of_a_session_of_its_own() {
    let server = EtcdServer::start();
    let (a, ttl) = (locker(&server.url()).await, Duration::from_secs(6));
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    deleted_and_heard(&server, &guard, ttl).await;
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
}

/// A key that was deleted and put back by hand is not the claim that it was: its create revision is
/// another, so its former holder has lost the lock.
#[tokio::test]
async fn a_key_put_back_by_hand() {
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

/// t68: a lock that is taken away by force: the holder hears by whom, the fence grows, and the token
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
    assert!(at.elapsed() < SLACK, "told, not found at the next renewal: {:?}", at.elapsed());
    let next = b.lock("k").await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(b.force_release("k", seen, "eve: again").await.unwrap(), Release::NotHeld);
    assert!(next.is_held() && claims(&server, "k").len() == 1);
}

/// What `tenure release KEY --token` knows of the lock `key`.
async fn known(locker: &Locker, key: &str) -> WrittenLease {
    let shown = locker.inspect(key).await.unwrap().unwrap();
    WrittenLease::from_token(&Key::new(key).unwrap(), shown.holders[0].token.unwrap(), SHORT)
}

/// A release by token ends that lock and no other: the session that the holder's locks share lives on.
#[tokio::test]
async fn a_release_by_token_spares_the_other_locks() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (_one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    let session = lease_of(&server, &claims(&server, "two")[0]);
    b.adopt(&known(&b, "one").await).await.unwrap().release().await.unwrap();
    // What it still has to do at the server is done when this returns.
    b.shutdown(LONG).await;
    assert!(claims(&server, "one").is_empty());
    assert_eq!(claims(&server, "two").len(), 1, "the session lives");
    assert!(server.leases().contains(&session) && two.is_held());
}

/// One that is written down has a session of its own, which ends with it, whoever releases it.
#[tokio::test]
async fn a_release_by_token_ends_a_session_of_one_lock() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    for ttl in [LONG, LONG * 2] {
        let guard = a.lock("k").ttl(ttl).await.unwrap();
        let written = guard.detach().write_down().await.unwrap();
        let session = lease_of(&server, &claims(&server, "k")[0]);
        b.adopt(&written).await.unwrap().release().await.unwrap();
        eventually("its session to end", || async { !server.leases().contains(&session) }).await;
    }
}

/// Nor does a process end the others by adopting a lock and losing it.
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

/// Compaction hurts nobody who holds.
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

/// A server that is full refuses new locks with a typed error that says so; what is held is kept, and goes when it is
/// released, not when its ttl is over.
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

//! A server whose wall clock is changed, and a server that evicts a lock.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::doctor::Verdict;
use tenure_testkit::register::Register;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{get, locker, pttl, whole};

const LOCK: &str = "tenure:lock:k";

/// t11: the server's clock is set a minute forward. A rival may acquire the lock, the holder's next renewal
/// reports the loss, and the fence grows.
#[tokio::test]
async fn t11_the_servers_clock_is_put_forward() {
    let server = RedisServer::start_with_clock(&[]);
    let (a, b) = (locker(&server).await, locker(&server).await);
    let ttl = Duration::from_secs(3);
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    server.clock().set("+60s");
    let rival = within("the rival's turn", b.lock("k").into_future()).await.unwrap();
    assert!(rival.fence() > guard.fence());
    let until = guard.valid_until();
    assert_eq!(within("the loss", guard.lost()).await, Loss::Gone);
    assert!(a.clock().now() < until, "by the renewal, before its time");
    assert!(rival.is_held());
}

/// t12: the server's clock is set a minute back. The validity of a lease does not grow, a waiter polls as
/// often as before, and fences continue to rise.
#[tokio::test]
async fn t12_the_servers_clock_is_put_back() {
    let server = RedisServer::start_with_clock(&[]);
    let (a, b) = (locker(&server).await, locker(&server).await);
    let ttl = Duration::from_secs(2);
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    server.clock().set("-60s");
    assert!(pttl(&server, LOCK) > 50_000, "the server keeps it for a minute more");
    lapse(ttl).await;
    assert!(guard.is_held(), "it is renewed as before");
    assert!(guard.remaining() <= ttl, "our view is not the server's");
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    let next = next.expect("not a minute later").unwrap().unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
    assert!(a.lock("k").await.unwrap().fence() > fence);
}

/// t12: a lock whose holder died is kept for as long as the server's clock says. A bounded wait still ends
/// with its bound, and its error names the holder and the remaining time.
#[tokio::test]
async fn t12_a_wait_is_bounded_by_our_clock() {
    let server = RedisServer::start_with_clock(&[]);
    let b = locker(&server).await;
    server.client().command(&["SET", LOCK, "theirs", "PX", "1000"]);
    server.clock().set("-60s");
    let wait = Duration::from_millis(300);
    let error = within("an answer", b.lock("k").wait(wait).into_future()).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let left = error.holder().and_then(|holder| holder.lease_left);
    assert!(left > Some(Duration::from_secs(50)), "{}", whole(&error));
}

/// t10: a full server evicts the lock. The holder's next renewal reports the loss, and the next fence is higher.
#[tokio::test]
async fn t10_an_evicted_lock_is_a_loss() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(3)).await.unwrap();
    let mut raw = server.client();
    raw.command(&["CONFIG", "SET", "maxmemory", "1"]);
    eventually("the lock to be evicted", || {
        // The server frees memory when a command needs more.
        let _ = raw.command(&["SET", "more", "x"]);
        let gone = raw.command(&["EXISTS", LOCK]) == Reply::Int(0);
        async move { gone }
    })
    .await;
    raw.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let evicted = server.client().text(&["INFO", "stats"]).unwrap();
    assert!(!evicted.contains("evicted_keys:0"), "{evicted}");
    let next = b.lock("k").await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(within("the loss", guard.lost()).await, Loss::Gone);
    assert!(!guard.is_held() && next.is_held());
}

/// t10: the doctor warns that such a server may evict locks before it does.
#[tokio::test]
async fn t10_the_doctor_warns_beforehand() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "volatile-lru"]);
    let a = locker(&server).await;
    let verdict = async || {
        let findings = a.diagnose().await.unwrap();
        findings.iter().find(|finding| finding.check == "eviction").unwrap().verdict
    };
    assert_eq!(verdict().await, Verdict::Warning);
    server.client().command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    assert_eq!(verdict().await, Verdict::Unsafe);
    server.client().command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(verdict().await, Verdict::Good);
}

/// t25: a holder that has lost its lock writes late, and the resource refuses the write because of its fence.
#[tokio::test]
async fn t25_the_stale_holder_is_refused() {
    let server = RedisServer::start();
    let (a, b, register) = (locker(&server).await, locker(&server).await, Register::new());
    for _ in 0..10 {
        let old = a.lock("k").await.unwrap();
        let stale = register.read("k", old.fence());
        server.client().command(&["DEL", LOCK]);
        let new = b.lock("k").await.unwrap();
        let fresh = register.read("k", new.fence());
        assert!(!register.write("k", stale), "the old holder comes too late");
        assert!(register.write("k", fresh));
        new.release().await.unwrap();
        drop(old);
    }
    let tally = register.tally();
    assert_eq!((tally.fenced_lost(), tally.plain_lost(), tally.refused), (0, 10, 10));
}

/// t68: an operator forces the release. The holder's next renewal reports who did it, a newer claim is not
/// affected, and the fence grows.
#[tokio::test]
async fn t68_force_release() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(2)).await.unwrap();
    let info = b.inspect("k").await.unwrap().expect("it is held");
    let seen = info.holders[0].token.expect("ours has one");
    b.force_release("k", seen, "ann: stuck deploy").await.unwrap();
    let next = b.lock("k").await.unwrap();
    assert!(next.fence() > guard.fence());
    let loss = within("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::Forced("ann: stuck deploy".into()));
    assert!(guard.release().await.unwrap_err().is_lost());
    let again = b.force_release("k", seen, "ann").await.unwrap();
    assert_eq!(again, tenure_core::Release::NotHeld);
    assert!(next.is_held() && get(&server, LOCK).is_some());
}

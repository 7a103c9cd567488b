//! Who holds a lock, whatever the server forgets.

use std::time::Duration;

use tenure_core::Renew;
use tenure_core::backend::{AfterRelease, Attempt, Backend, Loss, Release, Renewal};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{SLACK, claim, get, granted, lease, locker, pttl, redis, size, whole};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(60);
const LOCK: &str = "tenure:lock:k";

/// A5, t02, t03: the old holder neither releases nor renews a lock that expired and was acquired by a rival.
#[tokio::test]
async fn t02_t03_a_rival_is_not_touched() {
    let server = RedisServer::start();
    let (old, new) = (redis(&server).await, redis(&server).await);
    let expired = lease(&old, "k", SHORT).await;
    let rival = claim("k", LONG);
    within("the rival's grant", new.acquire(&rival)).await.unwrap();
    let (value, left) = (get(&server, LOCK), pttl(&server, LOCK));
    assert_eq!(old.release(&expired, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    let closed = AfterRelease::Cooldown(LONG);
    assert_eq!(old.release(&expired, closed).await.unwrap(), Release::NotHeld);
    let answers = renewals(&old, &[expired]).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(Loss::Gone))]), "{answers:?}");
    assert_eq!(get(&server, LOCK), value);
    assert!(pttl(&server, LOCK) <= left);
}

/// t04, t28: a claim that is sent again makes one lease, with a fence not lower and a ttl not shorter.
#[tokio::test]
async fn t04_granted_again_is_one_lease() {
    let server = RedisServer::start();
    let (store, one) = (redis(&server).await, claim("k", LONG));
    let first = granted(&store, &one).await;
    let value = get(&server, LOCK).unwrap();
    server.client().command(&["PEXPIRE", LOCK, "60000"]);
    let second = granted(&store, &one).await;
    assert!(second.fence >= first.fence);
    let value = value.strip_suffix(&first.fence.to_string()).expect("the fence comes last");
    assert_eq!(get(&server, LOCK), Some(format!("{value}{}", second.fence)), "else it stays");
    assert!(pttl(&server, LOCK) > 30_000, "a longer lease is not shortened");
    assert_eq!(size(&server), 2, "one lock, one fence");
}

/// t09: after `FLUSHALL` the next renewal reports the loss, and the next fence is still higher.
#[tokio::test]
async fn t09_flushall_is_a_loss() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_millis(900)).await.unwrap();
    server.client().command(&["FLUSHALL"]);
    let next = b.lock("k").await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(within("the loss", guard.lost()).await, Loss::Gone);
    assert!(!guard.is_held() && next.is_held());
}

/// t15: a server that restarts empty has lost the lock: the holder is notified, and fences continue to rise.
#[tokio::test]
async fn t15_a_restart_without_data_is_a_loss() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(3)).await.unwrap();
    server.restart();
    let next = within("a lock on the new server", b.lock("k").into_future()).await.unwrap();
    assert!(next.fence() > guard.fence());
    within("the loss", guard.lost()).await;
    assert!(!guard.is_held() && next.is_held());
    assert!(within("a new lock", a.lock("other").into_future()).await.unwrap().is_held());
}

/// t21: other prefixes and other databases are other locks.
#[tokio::test]
async fn t21_prefixes_and_databases_are_apart() {
    let server = RedisServer::start();
    let one = locker(&server).await;
    let prefixed = tenure_redis::Redis::builder(&server.url()).prefix("other");
    let prefixed = tenure_core::Locker::new(prefixed.connect().await.unwrap());
    let database = tenure_redis::Redis::connect(&format!("{}/3", server.url())).await.unwrap();
    let database = tenure_core::Locker::new(database);
    let _guard = one.lock("k").await.unwrap();
    let _other = prefixed.try_lock("k").await.unwrap().expect("another prefix");
    let _third = database.try_lock("k").await.unwrap().expect("another database");
    assert_eq!(one.list("*").await.unwrap().len(), 1);
}

/// The value of a lock's key, with a token.
const VALUE: &str = "-t1:0123456789abcdef:0123456789abcdef0123456789abcdef:1800000000000:h:1:u:p";

/// t26, t66: a corrupt fence counter grants no lock and is not overwritten, neither by the fast script nor,
/// the second time, by the full script. Errors do not show its content, which may be a token.
#[tokio::test]
async fn t26_a_corrupt_fence_grants_nothing() {
    let server = RedisServer::start();
    let (a, mut raw) = (locker(&server).await, server.client());
    for corrupt in
        ["text", "9223372036854775807", "9007199254740993", "-1", "1e3", "", "0x10", VALUE]
    {
        raw.command(&["SET", "tenure:fence", corrupt]);
        for key in [0, 0, 1].map(|number| format!("k-{}-{number}", corrupt.len())) {
            let error = within("a refusal", a.lock(&key).into_future()).await.unwrap_err();
            assert!(error.is_refused(), "{corrupt}: {error:?}");
            let expected = format!("`tenure:fence` holds no count, but {} bytes", corrupt.len());
            let text = format!("{} {error:?}", whole(&error));
            assert!(text.contains(&expected) && !text.contains("0123456789abcdef"), "{text}");
            assert_eq!(get(&server, "tenure:fence").as_deref(), Some(corrupt));
            let lock = get(&server, &format!("tenure:lock:{key}"));
            assert_eq!(lock, None, "{corrupt}: no lock is left");
        }
    }
    raw.command(&["DEL", "tenure:fence"]);
    raw.command(&["LPUSH", "tenure:fence", "1"]);
    let error = a.try_lock("k").await.unwrap_err();
    assert!(error.is_refused() && whole(&error).contains("not a string"), "{}", whole(&error));
    assert_eq!(get(&server, LOCK), None);
}

/// A fence counter that is ahead of the clock counts on from its value.
#[tokio::test]
async fn a_fence_ahead_of_the_clock_counts_on() {
    let server = RedisServer::start();
    let ahead = 1_u64 << 49;
    server.client().command(&["SET", "tenure:fence", &ahead.to_string()]);
    let store = redis(&server).await;
    assert_eq!(granted(&store, &claim("a", LONG)).await.fence, ahead + 1);
    assert_eq!(granted(&store, &claim("b", LONG)).await.fence, ahead + 2);
}

/// t32: the lock of a dead holder can be acquired when its ttl has passed, and not before.
#[tokio::test]
async fn t32_the_ttl_frees_what_nobody_renews() {
    let server = RedisServer::start();
    let (store, b) = (redis(&server).await, locker(&server).await);
    let dead = lease(&store, "k", Duration::from_millis(1_500)).await;
    let guard = within("the lock", b.lock("k").into_future()).await.unwrap();
    let (now, until) = (store.clock().now(), dead.valid_until());
    assert!(now >= until && now < until.after(SLACK), "{:?} after its end", now.since(until));
    assert!(guard.is_held());
}

/// A lease that is not renewed is lost by the clock, and its key is deleted, even if the server would keep it.
#[tokio::test]
async fn an_unrenewed_lease_ends_on_time() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    let guard = a.lock("k").ttl(Duration::from_millis(200)).renew(Renew::Off).await.unwrap();
    assert_eq!(server.client().command(&["PEXPIRE", LOCK, "300000"]), Reply::Int(1));
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    let (now, until) = (a.clock().now(), guard.valid_until());
    assert!(now >= until && now < until.after(SLACK), "{:?} after its end", now.since(until));
    eventually("the key to be gone", || async { get(&server, LOCK).is_none() }).await;
}

/// A waiter does not sleep beyond the end of the holder's lease.
#[tokio::test]
async fn a_wait_ends_with_the_lease_it_waits_for() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let held = lease(&store, "k", Duration::from_millis(200)).await;
    let slow = tenure_core::ClaimOptions::new(LONG).retry_interval(Duration::from_secs(60));
    let token = tenure_core::Token::random().unwrap();
    let waiter =
        std::sync::Arc::new(tenure_core::Claim::new(held.claim().key().clone(), token, slow));
    within("the grant", store.acquire(&waiter)).await.unwrap();
    let other = store.try_acquire(&claim("k", LONG)).await.unwrap();
    assert!(matches!(other, Attempt::Held(_)));
}

/// t24: a blocked application runtime does not stop renewals.
#[tokio::test]
async fn t24_a_blocked_runtime_loses_nothing() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    tenure_testkit::wait::pass(Duration::from_millis(2_500));
    assert!(guard.is_held(), "the renewals have a thread and a connection of their own");
    assert!(b.try_lock("k").await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// A lock can be acquired and released without a runtime, on connections of the engine's thread.
#[test]
fn without_a_runtime() {
    let server = RedisServer::start();
    let later = || tenure_redis::Redis::builder(&server.url()).connect_later().unwrap();
    let blocking = || tenure_core::blocking::Locker::new(tenure_core::Locker::new(later()));
    let (a, b) = (blocking(), blocking());
    let guard = a.lock("k").acquire().unwrap();
    assert!(b.try_lock("k").acquire().unwrap().is_none());
    guard.release().unwrap();
    assert!(b.try_lock("k").acquire().unwrap().is_some());
}

/// If the runtime that connected ends, the next one connects again.
#[test]
fn a_runtime_that_ends_takes_only_its_connection() {
    let server = RedisServer::start();
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = run();
    let (a, guard) = first.block_on(async {
        let a = locker(&server).await;
        let guard = a.lock("k").ttl(Duration::from_secs(2)).await.unwrap();
        (a, guard)
    });
    drop(first);
    run().block_on(async {
        assert!(guard.is_held());
        assert!(a.try_lock("other").await.unwrap().is_some());
        guard.release().await.unwrap();
        assert_eq!(get(&server, LOCK), None);
    });
}

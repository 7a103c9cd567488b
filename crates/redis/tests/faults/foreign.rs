//! Other programs on the same keys.

use std::time::Duration;

use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{entries, get, locker, whole};

const LOCK: &str = "tenure:lock:k";

/// t60: a key of another type is a typed error at once, not an endless wait, and is left unchanged.
#[tokio::test]
async fn t60_a_key_of_another_type() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["LPUSH", LOCK, "x"]);
    let error = within("a refusal", a.lock("k").into_future()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let at = format!("redis `127.0.0.1:{}`", server.port());
    assert_eq!(
        whole(&error),
        format!("lock `k`: refused by the engine: {at}: the key `tenure:lock:k` is not a string")
    );
    assert_eq!(server.client().text(&["TYPE", LOCK]).as_deref(), Some("list"));
    assert!(a.inspect("k").await.unwrap().is_none(), "it is no lock");
}

/// t60: a key of another type that appears while a claim waits is left unchanged when another claim is given up.
#[tokio::test]
async fn t60_a_key_of_another_type_is_not_granted() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, locker(&server).await, locker(&server).await);
    let _held = a.lock("k").await.unwrap();
    let [first, second] = [b, c].map(|locker| tokio::spawn(locker.lock("k").into_future()));
    eventually("both waiters", || async { entries(&server).len() == 2 }).await;
    server.client().command(&["DEL", LOCK]);
    server.client().command(&["HSET", LOCK, "theirs", "1"]);
    second.abort();
    eventually("a waiter to leave", || async { entries(&server).len() < 2 }).await;
    assert_eq!(server.client().text(&["TYPE", LOCK]).as_deref(), Some("hash"));
    first.abort();
}

/// A2, t60: a key without an expiry is a typed error, because a wait for it would never end.
#[tokio::test]
async fn t60_a_key_without_an_expiry() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["SET", LOCK, "x"]);
    let error = within("a refusal", a.lock("k").into_future()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(whole(&error).ends_with("has no expiry: it is no lock"), "{}", whole(&error));
    assert_eq!(get(&server, LOCK).as_deref(), Some("x"));
}

/// t60: a lock of a `SET NX` client keeps us out, is shown without a known holder, is not changed, and can be
/// waited for.
#[tokio::test]
async fn t60_theirs_keeps_us_out() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["SET", LOCK, "theirs", "NX", "PX", "600"]);
    assert!(a.try_lock("k").await.unwrap().is_none());
    let info = a.inspect("k").await.unwrap().expect("it is held");
    let holding = &info.holders[0];
    assert!(holding.holder.process.is_none() && holding.token.is_none());
    assert!(holding.holder.lease_left.is_some_and(|left| left <= Duration::from_millis(600)));
    assert_eq!(get(&server, LOCK).as_deref(), Some("theirs"));
    let guard = within("the lock", a.lock("k").into_future()).await.unwrap();
    assert!(guard.is_held());
}

/// t60: our lock keeps a `SET NX` client out, and the client's release by value deletes only its own lock.
#[tokio::test]
async fn t60_ours_keeps_them_out() {
    let server = RedisServer::start();
    let (a, mut raw) = (locker(&server).await, server.client());
    let take = ["SET", LOCK, "theirs", "NX", "PX", "60000"];
    let give = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let give = ["EVAL", give, "1", LOCK, "theirs"];
    let guard = a.lock("k").await.unwrap();
    assert_eq!(raw.command(&take), Reply::Nil);
    assert_eq!(raw.command(&give), Reply::Int(0));
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_eq!(raw.command(&take), Reply::Text("OK".into()));
    assert!(a.try_lock("k").await.unwrap().is_none());
    assert_eq!(raw.command(&give), Reply::Int(1));
    assert!(a.try_lock("k").await.unwrap().is_some());
}

/// A29: a lock in a newer format counts as held by another process: it keeps us out and is not changed.
#[tokio::test]
async fn a29_a_newer_format_keeps_us_out() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    let newer = "-t2:0123456789abcdef:00000000000000000000000000000000:1";
    server.client().command(&["SET", LOCK, newer, "PX", "60000"]);
    assert!(a.try_lock("k").await.unwrap().is_none());
    assert_eq!(get(&server, LOCK).as_deref(), Some(newer));
}

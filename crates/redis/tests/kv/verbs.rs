//! Every verb does what its name says, under the prefix (D2, D3, D8).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tenure_core::Locker;
use tenure_redis::{Client, KvExt, Redis};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::eventually;

use crate::support::{LONG, User, ann, client, pttl, raw};

/// D2: get, set with and without ttl, delete, exists, expire, incr, decr.
#[tokio::test]
async fn d2_values() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert_eq!(redis.get::<User>("user:1").await.unwrap(), None);
    redis.set("user:1", &ann()).await.unwrap();
    assert_eq!(redis.get("user:1").await.unwrap(), Some(ann()));
    assert_eq!(raw(&server, "tenure:user:1").unwrap(), r#"{"id":1,"name":"Ann"}"#);
    assert_eq!(pttl(&server, "tenure:user:1"), -1);
    redis.set("user:1", "plain").ttl(LONG).await.unwrap();
    assert_eq!(raw(&server, "tenure:user:1").unwrap(), "plain");
    assert!((1..=600_000).contains(&pttl(&server, "tenure:user:1")));
    assert!(redis.exists("user:1").await.unwrap());
    assert!(redis.delete("user:1").await.unwrap());
    assert!(!redis.delete("user:1").await.unwrap() && !redis.exists("user:1").await.unwrap());
    assert!(!redis.expire("user:1", LONG).await.unwrap());
    assert_eq!((redis.incr("n").await.unwrap(), redis.incr("n").await.unwrap()), (1, 2));
    assert_eq!(redis.decr("n").await.unwrap(), 1);
    assert_eq!(redis.get::<u8>("n").await.unwrap(), Some(1));
    assert!(redis.expire("n", LONG).await.unwrap());
    assert!((1..=600_000).contains(&pttl(&server, "tenure:n")));
}

/// D2: a value expires with its ttl; fractions of a millisecond are rounded up, never to zero.
#[tokio::test]
async fn d2_a_ttl_ends() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("short", &1).ttl(Duration::from_nanos(1)).await.unwrap();
    redis.set("later", &1).await.unwrap();
    assert!(redis.expire("later", Duration::from_millis(30)).await.unwrap());
    eventually("both to be gone", || async {
        !redis.exists("short").await.unwrap() && !redis.exists("later").await.unwrap()
    })
    .await;
}

/// D3: hashes.
#[tokio::test]
async fn d3_hashes() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert_eq!(redis.hget_all::<u8>("h").await.unwrap(), HashMap::new());
    assert!(redis.hset("h", "a", &1).await.unwrap());
    assert!(!redis.hset("h", "a", &2).await.unwrap());
    assert!(redis.hset("h", "b", &3).await.unwrap());
    assert_eq!(redis.hget("h", "a").await.unwrap(), Some(2));
    assert_eq!(redis.hget::<u8>("h", "none").await.unwrap(), None);
    let all = HashMap::from([("a".to_owned(), 2), ("b".to_owned(), 3)]);
    assert_eq!(redis.hget_all::<u8>("h").await.unwrap(), all);
}

/// D3: lists.
#[tokio::test]
async fn d3_lists() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert_eq!(redis.lpop::<User>("l").await.unwrap(), None);
    assert_eq!(redis.rpush("l", "b").await.unwrap(), 1);
    assert_eq!(redis.rpush("l", "c").await.unwrap(), 2);
    assert_eq!(redis.lpush("l", "a").await.unwrap(), 3);
    assert_eq!(redis.lrange::<String>("l", 0, -1).await.unwrap(), ["a", "b", "c"]);
    assert_eq!(redis.lrange::<char>("l", -2, 1).await.unwrap(), ['b']);
    assert!(redis.lrange::<char>("none", 0, -1).await.unwrap().is_empty());
    assert_eq!(redis.lpop("l").await.unwrap(), Some('a'));
}

/// D3: sets.
#[tokio::test]
async fn d3_sets() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert!(redis.sadd("s", &1).await.unwrap() && redis.sadd("s", &2).await.unwrap());
    assert!(!redis.sadd("s", &1).await.unwrap());
    let members: BTreeSet<u8> = redis.smembers("s").await.unwrap().into_iter().collect();
    assert_eq!(members, BTreeSet::from([1, 2]));
    assert!(redis.smembers::<u8>("none").await.unwrap().is_empty());
}

/// D8: the client and the locks share one prefix, and no verb reaches a lock.
#[tokio::test]
async fn d8_locks_are_out_of_reach() {
    let server = RedisServer::start();
    let redis = Client::builder(&server.url()).prefix("shop").client().await.unwrap();
    let locker = Locker::new(Redis::with(&redis));
    let guard = locker.lock("order:1").await.unwrap();
    redis.set("order:1", &7).await.unwrap();
    assert_eq!(raw(&server, "shop:order:1").unwrap(), "7");
    assert!(raw(&server, "shop:lock:order:1").is_some());
    let error = redis.delete("lock:order:1").await.unwrap_err();
    assert!(error.is_invalid());
    assert_eq!(
        error.to_string(),
        "delete `lock:order:1`: keys named `lock:` belong to the locks under the same prefix"
    );
    for key in ["lock:order:1", "queue:k", "beat:k", "holders:k", "fence", "forced:t", "inbox:c"] {
        assert!(redis.set(key, &1).await.unwrap_err().is_invalid(), "{key}");
        assert!(redis.get::<String>(key).await.unwrap_err().is_invalid(), "{key}");
        let error = redis.pipeline(|p| p.delete(key)).await.unwrap_err();
        assert!(error.is_invalid() && error.position() == Some(1), "{key}");
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// A key is any bytes: with line breaks, zeros, invalid UTF-8, or empty.
#[tokio::test]
async fn keys_of_any_bytes() {
    let server = RedisServer::start();
    let redis = Client::builder(&server.url()).pool_size(3).client().await.unwrap();
    let every: Vec<u8> = (0..=255).collect();
    let keys =
        [every, b"\r\n*1\r\n".to_vec(), vec![0], vec![0xff; 300], b"\xc3\x28".to_vec(), vec![]];
    for (index, key) in keys.iter().enumerate() {
        redis.set(key, &index).await.unwrap();
        redis.hset("fields", key, &index).await.unwrap();
    }
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(redis.get(key).await.unwrap(), Some(index), "{key:?}");
        assert_eq!(redis.hget("fields", key).await.unwrap(), Some(index), "{key:?}");
    }
    assert_eq!(server.client().command(&["DBSIZE"]), Reply::Int(7));
    let error = redis.get::<bool>(b"\xff\n").await.map(drop);
    assert!(error.is_ok());
}

/// An invalid ttl is refused before anything is sent.
#[tokio::test]
async fn a_ttl_is_checked() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let error = redis.set("k", &1).ttl(Duration::ZERO).await.unwrap_err();
    assert!(error.is_invalid());
    assert_eq!(error.to_string(), "set `k`: ttl (0ns) must be above zero and at most a century");
    assert!(redis.expire("k", Duration::MAX).await.unwrap_err().is_invalid());
    let error = redis.remember("k", Duration::ZERO, || async { Ok::<_, String>(1) }).await;
    assert!(error.unwrap_err().is_invalid());
    assert!(!redis.exists("k").await.unwrap());
}

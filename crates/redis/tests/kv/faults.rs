//! A server that is down, slow, full, or says no: typed errors, and no wait past the time-outs.

use std::time::{Duration, Instant};

use tenure_redis::kv::{Bytes, Error};
use tenure_redis::{Client, KvExt};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};

use crate::support::{SLACK, TIMEOUT, client};

/// A server that is down: unavailable at once, with its address; back, it is used again.
#[tokio::test]
async fn down_and_restarted() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).await.unwrap();
    server.kill();
    let started = Instant::now();
    // The first may have been under way when the connection broke.
    let _ = within("an error", redis.get::<u8>("k")).await.unwrap_err();
    for _ in 0..3 {
        let error = within("an error", redis.get::<u8>("k")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
        let start = format!("get `k`: server unavailable: redis `127.0.0.1:{}`: ", server.port());
        assert!(error.to_string().starts_with(&start), "{error}");
        let error = redis.pipeline(|p| p.incr("n")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
    assert!(started.elapsed() < 8 * TIMEOUT + SLACK);
    server.restart();
    eventually("the server to be back", || async { redis.set("k", &2).await.is_ok() }).await;
    assert_eq!(redis.get("k").await.unwrap(), Some(2));
}

/// A server that stands still: unknown within the time-out, and afterwards everyone gets their own.
#[tokio::test]
async fn slow() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", "before").await.unwrap();
    server.pause();
    let started = Instant::now();
    let error = within("an error", redis.set("k", "after").into_future()).await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    assert!(started.elapsed() >= TIMEOUT && started.elapsed() < TIMEOUT + SLACK);
    assert!(
        error.to_string().starts_with("set `k`: no answer, it may have been done: "),
        "{error}"
    );
    let error = within("an error", redis.get::<String>("k")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    server.go_on();
    eventually("the server to be back", || async { redis.exists("k").await.is_ok() }).await;
    for round in 0..50 {
        redis.set("own", &round).await.unwrap();
        assert_eq!(redis.get("own").await.unwrap(), Some(round));
        assert!(!redis.exists("none").await.unwrap());
    }
}

/// A pipeline that a slow server does not answer is unknown, within the time-out too.
#[tokio::test]
async fn slow_pipeline() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    server.pause();
    let started = Instant::now();
    let filled = redis.pipeline(|p| (p.incr("n"), p.incr("n"))).into_future();
    let error = within("an error", filled).await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    assert!(started.elapsed() < TIMEOUT + SLACK);
    server.go_on();
}

/// The verb does not fit what the key holds.
#[tokio::test]
async fn wrong_type() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.rpush("list", &1).await.unwrap();
    redis.set("text", "x").await.unwrap();
    let errors: [Error; 4] = [
        redis.get::<u8>("list").await.unwrap_err(),
        redis.hset("list", "f", &1).await.unwrap_err(),
        redis.sadd("text", &1).await.unwrap_err(),
        redis.remember("list", SLACK, || async { Ok::<_, String>(1) }).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_wrong_type() && error.is_refused(), "{error:?}");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    }
    let error = redis.incr("text").await.unwrap_err();
    assert!(error.is_refused() && !error.is_wrong_type(), "a string that is no number: {error:?}");
}

/// A full server refuses what needs memory, and goes on giving.
#[tokio::test]
async fn full() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).await.unwrap();
    server.client().command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = redis.set("k", &2).await.unwrap_err();
    assert!(error.is_full() && error.is_refused(), "{error:?}");
    assert!(error.to_string().starts_with("set `k`: refused: redis `"), "{error}");
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
    assert!(redis.delete("k").await.unwrap());
    let loaded = redis.remember("k", SLACK, || async { Ok::<_, String>(3) }).await.unwrap();
    assert_eq!(loaded, 3, "what was loaded is good, though it cannot be kept");
}

/// A wrong password and a missing right are told apart from everything else, and never shown.
#[tokio::test]
async fn denied() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    for url in ["redis://:hunter2@127.0.0.1", "redis://127.0.0.1"] {
        let url = format!("{url}:{}", server.port());
        let redis = Client::builder(&url).client_later().unwrap();
        let error = redis.get::<u8>("k").await.unwrap_err();
        assert!(error.is_denied() && error.is_refused(), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let url = format!("redis://:right@127.0.0.1:{}", server.port());
    let redis = Client::connect(&url).await.unwrap();
    redis.set("k", &1).await.unwrap();
    let mut raw = server.client();
    raw.command(&["AUTH", "right"]);
    raw.command(&["ACL", "SETUSER", "default", "-set"]);
    let error = redis.set("k", &2).await.unwrap_err();
    assert!(error.is_denied(), "{error:?}");
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
}

/// 64 MiB there and back, with others on the same connection meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_64_mib() {
    let server = RedisServer::start();
    let timeout = Duration::from_secs(4);
    let redis = Client::builder(&server.url()).response_timeout(timeout).client().await.unwrap();
    let big = Bytes((0..64 << 20).map(|at: usize| (at % 251) as u8).collect());
    let (set, beside) = tokio::join!(redis.set("big", &big).into_future(), redis.incr("n"));
    set.unwrap();
    assert_eq!(beside.unwrap(), 1);
    let (got, beside) = tokio::join!(redis.get::<Bytes>("big"), redis.incr("n"));
    assert!(got.unwrap() == Some(big), "it comes back as it went");
    assert_eq!(beside.unwrap(), 2);
}

/// A client that is closed connects again when it is asked for something.
#[tokio::test]
async fn closed_and_asked_again() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).await.unwrap();
    redis.close();
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
}

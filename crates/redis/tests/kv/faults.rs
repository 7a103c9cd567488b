//! A server that is down, slow, full, or refuses: typed errors, and no wait beyond the time-outs.

use std::time::{Duration, Instant};

use tenure_redis::kv::{Bytes, Error};
use tenure_redis::{Client, KvExt};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};

use crate::support::{SLACK, TIMEOUT, client};

/// If the server is down, calls fail as unavailable at once, with its address; after a restart it is used again.
#[tokio::test]
async fn down_and_restarted() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).await.unwrap();
    server.kill();
    let started = Instant::now();
    // The first request may have been under way when the connection broke.
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

/// If the server is paused, a call fails as unknown within the time-out, and later calls get their own replies.
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

/// A pipeline without a reply fails as unknown within the time-out, too.
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

/// A verb that does not fit the type of the key is a typed error.
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

/// A full server refuses writes that need memory, and still answers reads.
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

/// `Debug` of an error shows its message, with the key as text.
#[tokio::test]
async fn debug_is_the_message() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.sadd("set", &1).await.unwrap();
    let error = redis.get::<u8>("set").await.unwrap_err();
    let at = format!("get `set`: redis `127.0.0.1:{}`: ", server.port());
    let said = "the key holds a value of another type: WRONGTYPE Operation";
    assert!(error.to_string().starts_with(&format!("{at}{said}")), "{error}");
    assert_eq!(format!("{error:?}"), format!("Error({error})"));
}

/// A wrong password and a missing right are errors of their own kind, and a password is never shown.
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
    let text = error.to_string();
    assert!(text.contains(": the user lacks a right: NOPERM "), "not the rights of locks: {text}");
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
}

/// A value of 64 MiB is written and read back, while other calls use the same connection.
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

/// A client that was closed connects again at the next call.
#[tokio::test]
async fn closed_and_asked_again() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).await.unwrap();
    redis.close();
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
}

//! Many commands in one round trip (D7).

use std::time::Duration;

use tenure_redis::{Kv, KvExt};
use tenure_testkit::servers::RedisServer;

use crate::support::{LONG, User, ann, calls, client, pttl, raw};

/// D7: every queued verb has its typed result.
#[tokio::test]
async fn d7_typed_results() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("old", &1).await.unwrap();
    let (deleted, up, down, field, first) = redis
        .pipeline(|p| {
            p.set("user:1", &ann()).ttl(LONG);
            let kept = (p.delete("old"), p.incr("n"), p.decr("m"), p.hset("h", "f", &1));
            p.rpush("l", &2);
            (kept.0, kept.1, kept.2, kept.3, p.lpush("l", &1))
        })
        .await
        .unwrap();
    assert_eq!((deleted, up, down, field, first), (true, 1, -1, true, 2));
    let (user, list, all, set, there) = redis
        .pipeline(|p| {
            p.sadd("s", "x");
            p.expire("n", LONG);
            (
                p.get::<User>("user:1"),
                p.lrange::<u8>("l", 0, -1),
                p.hget_all::<u8>("h"),
                p.smembers::<char>("s"),
                (p.exists("none"), p.hget::<u8>("h", "f"), p.lpop::<u8>("l")),
            )
        })
        .await
        .unwrap();
    assert_eq!((user, list, all["f"], set), (Some(ann()), vec![1, 2], 1, vec!['x']));
    assert_eq!(there, (false, Some(1), Some(1)));
    assert!(pttl(&server, "tenure:user:1") > 0 && pttl(&server, "tenure:n") > 0);
}

/// D7: there are as many results as requested, in order; a pipeline may also be empty.
#[tokio::test]
async fn d7_many_results() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let counts = redis.pipeline(|p| (0..100).map(|_| p.incr("n")).collect::<Vec<_>>()).await;
    assert_eq!(counts.unwrap(), (1..=100).collect::<Vec<_>>());
    redis.pipeline(|_| ()).await.unwrap();
    redis.pipeline(|_| ()).atomic().await.unwrap();
}

/// Checks that an error names its command, and that the other commands were executed.
async fn says_which(redis: &dyn Kv, atomic: bool) {
    redis.set("text", "x").await.unwrap();
    let pipeline = redis.pipeline(|p| {
        p.incr("before");
        p.incr("text");
        p.incr("after");
    });
    let error = if atomic { pipeline.atomic().await } else { pipeline.await }.unwrap_err();
    assert_eq!((error.position(), error.key()), (Some(2), Some(&b"text"[..])));
    let text = error.to_string();
    assert!(text.starts_with("pipeline command 2, incr `text`: refused: redis `"), "{text}");
    let done = redis.pipeline(|p| (p.get::<u8>("before"), p.get::<u8>("after"))).await.unwrap();
    assert_eq!(done, (Some(1), Some(1)));
}

/// D7: an error names its command.
#[tokio::test]
async fn d7_an_error_says_which() {
    let server = RedisServer::start();
    says_which(&client(&server).await, false).await;
}

/// D7: an error names its command also inside a transaction, which Redis does not roll back.
#[tokio::test]
async fn d7_an_error_in_a_transaction_says_which() {
    let server = RedisServer::start();
    says_which(&client(&server).await, true).await;
    assert_eq!((calls(&server, "multi"), calls(&server, "exec")), (1, 1));
}

/// D7: a result of another type than requested names its command, and so does a value that cannot be written.
#[tokio::test]
async fn d7_a_wrong_type_says_which() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let error = redis
        .pipeline(|p| {
            p.set("k", "text");
            p.get::<u8>("k")
        })
        .await
        .unwrap_err();
    assert!(error.is_undecodable() && error.position() == Some(2), "{error}");
    let error = redis
        .pipeline(|p| {
            p.set("k", "other");
            p.set("k", &1).ttl(Duration::ZERO);
        })
        .await
        .unwrap_err();
    assert!(error.is_invalid() && error.position() == Some(2), "{error}");
    assert_eq!(raw(&server, "tenure:k").unwrap(), "text", "nothing was asked");
}

/// D7: with `.atomic()`, if one command cannot be queued, none is executed.
#[tokio::test]
async fn d7_atomic_is_all_or_nothing() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    server.client().command(&["ACL", "SETUSER", "default", "-set"]);
    let error = redis
        .pipeline(|p| {
            p.incr("a");
            p.set("b", &1);
        })
        .atomic()
        .await
        .unwrap_err();
    assert!(error.is_denied() && error.position() == Some(2), "{error}");
    let (one, two) = redis.pipeline(|p| (p.incr("a"), p.incr("a"))).atomic().await.unwrap();
    assert_eq!((one, two), (1, 2));
}

/// D7: transactions of many tasks on one connection never mix, and each sees its two steps together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_transactions_do_not_mix() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let tasks = (0..16).map(|_| {
        let redis = redis.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                let pair = redis.pipeline(|p| (p.incr("n"), p.incr("n"))).atomic().await.unwrap();
                assert_eq!(pair.0 + 1, pair.1);
                redis.incr("other").await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(redis.get("n").await.unwrap(), Some(1600));
}

/// D7: a pipeline is one round trip, not one for each command.
#[tokio::test]
async fn d7_one_round_trip() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &0).await.unwrap();
    let reads = |server: &RedisServer| {
        let info = server.client().text(&["INFO", "stats"]).unwrap();
        let field = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        field.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = reads(&server);
    redis.pipeline(|p| (0..50).map(|_| p.incr("k")).collect::<Vec<_>>()).await.unwrap();
    // Our request and those of the test itself: far below one read for each command.
    assert!(reads(&server) - before < 20);
}

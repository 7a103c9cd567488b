//! Writes that are refused because of a newer fence (A23).

use std::time::Duration;

use tenure_core::{Fence, Locker};
use tenure_redis::{KvExt, Redis};
use tenure_testkit::servers::RedisServer;

use crate::support::{LONG, client, pttl, raw};

const DAY_MS: i64 = 24 * 3600 * 1000;

/// A23: a holder that lost its lock cannot overwrite the value of the next holder.
#[tokio::test]
async fn a23_a_stale_holder_is_refused() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let locker = Locker::new(Redis::with(&redis));
    let first = locker.lock("account").await.unwrap();
    let stale = first.fence();
    redis.set("balance", &10).fenced(stale).await.unwrap();
    redis.set("balance", &11).fenced(stale).await.unwrap();
    first.release().await.unwrap();
    let second = locker.lock("account").await.unwrap();
    redis.set("balance", &20).fenced(second.fence()).await.unwrap();
    let error = redis.set("balance", &12).fenced(stale).await.unwrap_err();
    assert!(error.is_stale_fence());
    let newer = second.fence();
    assert_eq!(
        error.to_string(),
        format!("set `balance`: stale fence {stale}: {newer} has been seen")
    );
    assert_eq!(redis.get("balance").await.unwrap(), Some(20));
    assert_eq!(raw(&server, "tenure:fenced:balance").unwrap(), newer.to_string());
}

/// A23: fences are compared as integers, beyond the precision of a double, and of any length.
#[tokio::test]
async fn a23_fences_of_63_bits() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let rising = [9, 10, 99, 1 << 53, (1 << 53) + 1, i64::MAX as u64 - 1, i64::MAX as u64];
    for (index, fence) in rising.into_iter().enumerate() {
        redis.set("k", &index).fenced(Fence::from_raw(fence)).await.unwrap();
        for older in &rising[..index] {
            let error = redis.set("k", "old").fenced(Fence::from_raw(*older)).await.unwrap_err();
            assert!(error.is_stale_fence(), "{older} after {fence}: {error}");
        }
        assert_eq!(redis.get("k").await.unwrap(), Some(index));
    }
}

/// A23: the stored fence outlives the value, and its ttl never gets shorter.
#[tokio::test]
async fn a23_the_mark_outlives_the_value() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let write = |fence, ttl: Option<Duration>| {
        let set = redis.set("k", &1).fenced(Fence::from_raw(fence));
        if let Some(ttl) = ttl { set.ttl(ttl) } else { set }
    };
    write(5, Some(LONG)).await.unwrap();
    assert!((1..=600_000).contains(&pttl(&server, "tenure:k")));
    let long = pttl(&server, "tenure:fenced:k");
    assert!(long > DAY_MS && long <= DAY_MS + 600_000, "{long}");
    write(6, Some(Duration::from_millis(1))).await.unwrap();
    assert!(pttl(&server, "tenure:fenced:k") > DAY_MS + 500_000);
    assert_eq!(raw(&server, "tenure:fenced:k").unwrap(), "6");
    redis.delete("k").await.unwrap();
    assert!(write(5, None).await.unwrap_err().is_stale_fence(), "gone, and still remembered");
    write(7, None).await.unwrap();
    assert_eq!((pttl(&server, "tenure:k"), pttl(&server, "tenure:fenced:k")), (-1, -1));
    write(8, Some(LONG)).await.unwrap();
    assert_eq!(pttl(&server, "tenure:fenced:k"), -1);
}

/// A23: fenced writes work after the server has lost the script, in a pipeline, and in a transaction.
#[tokio::test]
async fn a23_wherever_a_set_works() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    for fence in 1..4 {
        server.client().command(&["SCRIPT", "FLUSH"]);
        redis.set("k", &fence).fenced(Fence::from_raw(fence)).await.unwrap();
    }
    for atomic in [false, true] {
        let filled = redis.pipeline(|p| {
            p.incr("n");
            p.set("k", "old").fenced(Fence::from_raw(2));
        });
        let error = if atomic { filled.atomic().await } else { filled.await }.unwrap_err();
        assert!(error.is_stale_fence() && error.position() == Some(2), "{error}");
    }
    assert_eq!(redis.get("k").await.unwrap(), Some(3));
    let error = redis.set("k", &1).fenced(Fence::NONE).await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
}

/// A23: a full server writes neither the value nor the fence.
#[tokio::test]
async fn a23_a_full_server() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("k", &1).fenced(Fence::from_raw(1)).await.unwrap();
    server.client().command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = redis.set("k", &2).fenced(Fence::from_raw(2)).await.unwrap_err();
    assert!(error.is_full(), "{error}");
    assert_eq!(redis.get("k").await.unwrap(), Some(1));
    assert_eq!(raw(&server, "tenure:fenced:k").unwrap(), "1");
}

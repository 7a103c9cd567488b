//! `replicas = n`: a grant counts when so many replicas have it.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::time::Duration;

use tenure_core::Locker;
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, SentinelSet};
use tenure_testkit::wait::{eventually, within};

use crate::support::{
    LONG, calls, cut_off_replicas, info, let_replicas_in, lock, locker_at, redis_at, waiters, whole,
};

/// C9, t08: if too few replicas have the lock, it is released, and the error gives their number: for a single attempt,
/// for a wait for a free lock, and for a wait in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn t08_too_few_replicas() {
    let set = SentinelSet::start();
    let url = format!("{}?replicas=2", set.url());
    let (a, b) = (locker_at(&url).await, locker_at(&url).await);
    let held = within("a lock", a.lock("k").ttl(LONG).into_future()).await.unwrap();
    for node in set.nodes() {
        eventually("each to have it", || async { lock(node, "k").is_some() }).await;
    }
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    let master = set.master();
    eventually("b to wait", || async { waiters(master, "k") == 1 }).await;
    tokio::task::block_in_place(|| cut_off_replicas(&set));

    let few = |error: &tenure_core::Error| {
        let text = whole(error);
        assert!(error.is_unavailable(), "{error:?}");
        assert!(text.contains("0 of 2 replicas had the lock within 250ms"), "{text}");
    };
    few(&within("an answer", a.lock("free").ttl(LONG).into_future()).await.unwrap_err());
    few(&within("an answer", a.try_lock("tried").ttl(LONG).into_future()).await.unwrap_err());
    held.release().await.unwrap();
    few(&within("an answer", waiting).await.unwrap().unwrap_err());
    for key in ["k", "free", "tried"] {
        eventually("nothing to be left", || async { lock(master, key).is_none() }).await;
    }

    tokio::task::block_in_place(|| let_replicas_in(&set));
    let again = within("a lock", b.lock("k").ttl(LONG).into_future()).await.unwrap();
    again.release().await.unwrap();
}

/// t08: a lock that the replicas have survives the death of its master.
#[tokio::test(flavor = "multi_thread")]
async fn t08_a_lock_that_replicas_have_survives() {
    let set = SentinelSet::start();
    let url = format!("{}?replicas=2", set.url());
    let (a, b) = (locker_at(&url).await, locker_at(&set.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let before = set.master();
    before.kill();
    tokio::task::block_in_place(|| set.wait_for_another(before.port()));
    eventually("an answer of the new master", || async {
        matches!(b.try_lock("k").await, Ok(None))
    })
    .await;
    assert!(held.is_held());
    held.release().await.unwrap();
}

/// A pushed grant waits for the replicas too, and many grants at a time share one `WAIT`.
#[tokio::test(flavor = "multi_thread")]
async fn pushed_grants_and_many_at_a_time() {
    let set = SentinelSet::start();
    let url = format!("{}?replicas=1", set.url());
    let (a, b) = (locker_at(&url).await, locker_at(&url).await);
    let (master, held) = (set.master(), a.lock("k").ttl(LONG).await.unwrap());
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait", || async { waiters(master, "k") == 1 }).await;
    let before = calls(master, "wait");
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert_eq!(calls(master, "wait") - before, 1);
    next.release().await.unwrap();

    let before = calls(master, "wait");
    let many: Vec<_> =
        (0..200).map(|n| tokio::spawn(a.lock(format!("k:{n}")).into_future())).collect();
    for one in many {
        within("a lock", one).await.unwrap().unwrap().release().await.unwrap();
    }
    let shared = calls(master, "wait") - before;
    assert!((1..200).contains(&shared), "{shared}");
}

/// Every grant is written once more before `WAIT`: a connection that wrote nothing has nothing to wait for.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_waited_for_is_written() {
    let set = SentinelSet::start();
    let a = locker_at(&format!("{}?replicas=1", set.url())).await;
    let asked = || (calls(set.master(), "pexpire"), calls(set.master(), "wait"));
    // Since its start: the test kit sends `WAIT` until the replicas acknowledge a write.
    let before = asked();
    for _ in 0..50 {
        a.lock("k").ttl(LONG).await.unwrap().release().await.unwrap();
    }
    let after = asked();
    assert_eq!((after.0 - before.0, after.1 - before.1), (50, 50));
}

/// Drives `asked` until it waits for replicas, and then polls it no more.
async fn until_it_waits<T>(server: &RedisServer, asked: impl Future<Output = T>) {
    let blocked = || async { info(server, "clients").contains("blocked_clients:1") };
    tokio::select! {
        _ = asked => panic!("it was answered before it was seen to wait"),
        () = eventually("a `WAIT` under way", blocked) => {}
    }
}

/// A caller whose future is not polled while it waits for replicas does not delay other callers.
#[tokio::test]
async fn a_caller_that_is_not_polled_holds_up_nobody() {
    let server = RedisServer::start();
    let builder = Redis::builder(&server.url()).replicas(1);
    let a = Locker::new(builder.response_timeout(Duration::from_secs(4)).connect().await.unwrap());
    let mut stands_still = pin!(a.try_lock("a").ttl(LONG).into_future());
    until_it_waits(&server, &mut stands_still).await;
    let error = within("an answer", a.lock("b").ttl(LONG).into_future()).await.unwrap_err();
    assert!(whole(&error).contains("0 of 1 replicas"), "{}", whole(&error));
}

/// A runtime that is not driven while a call waits for replicas does not delay the calls of another runtime.
#[test]
fn a_runtime_that_stands_still_holds_up_nobody() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let url = format!("{}?replicas=1", server.url());
    let builder = Redis::builder(&url).response_timeout(Duration::from_secs(2));
    let a = Locker::new(first.block_on(builder.connect()).unwrap());
    let mut stands_still = pin!(a.try_lock("a").ttl(LONG).into_future());
    first.block_on(until_it_waits(&server, &mut stands_still));
    let asked = a.lock("b").ttl(LONG).into_future();
    let error = second.block_on(within("an answer", asked)).unwrap_err();
    assert!(whole(&error).contains("0 of 1 replicas"), "{}", whole(&error));
}

/// `replicas` works the same without Sentinels, and its value is checked.
#[tokio::test(flavor = "multi_thread")]
async fn one_server_without_replicas() {
    let server = RedisServer::start();
    let a = Locker::new(redis_at(&format!("{}?replicas=1", server.url())).await.unwrap());
    let error = a.lock("k").ttl(LONG).await.unwrap_err();
    assert!(whole(&error).contains("0 of 1 replicas"), "{}", whole(&error));
    eventually("nothing to be left", || async { lock(&server, "k").is_none() }).await;
    let refused = Redis::builder(&server.url()).replicas(65).connect_later().unwrap_err();
    assert_eq!(refused.to_string(), "replicas (65) must be between 0 and 64");
}

//! A server that is unavailable while tasks of a process ask.

use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_redis::Redis;
use tenure_testkit::conformance::start;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::unavailable::{LONG, TIMEOUT, bounds_are_kept, is_away};
use tenure_testkit::wait::within;

/// G6: the server is killed and restarted.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_on_redis() {
    let server = RedisServer::start();
    let redis = Redis::builder(&server.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let locker = Locker::new(redis.connect().await.unwrap());
    bounds_are_kept(&locker, || server.kill(), || server.restart()).await;
}

/// `unavailable_after` ends the wait on a server that does not answer, for every task that waits, also behind a try. It
/// does not wait for a request's own time-out of two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_is_given_up_in_time() {
    let (server, after) = (RedisServer::start(), Duration::from_secs(1));
    let locker = Locker::new(Redis::connect(&server.url()).await.unwrap());
    locker.lock("k").await.unwrap().release().await.unwrap();
    server.pause();
    let started = Instant::now();
    let ask = |key| locker.lock(key).wait(LONG).unavailable_after(after).into_future();
    let tried = tokio::spawn(start(locker.try_lock("tried")).await);
    let keys = ["k", "tried"].into_iter().cycle().take(8);
    for task in keys.map(|key| tokio::spawn(ask(key))).collect::<Vec<_>>() {
        let error = within("the end of a wait", task).await.unwrap().unwrap_err();
        assert!(is_away(&error), "{error:?}");
    }
    let took = started.elapsed();
    assert!(took >= after && took < Duration::from_millis(1_900), "{took:?}");
    assert!(is_away(&within("the try", tried).await.unwrap().unwrap_err()));
    server.go_on();
}

/// G6, t117: on a paused server, no task of a process gets the result "busy".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_redis_is_unknown_to_every_task() {
    let server = RedisServer::start();
    let locker = Locker::new(Redis::connect(&server.url()).await.unwrap());
    locker.lock("warm").await.unwrap().release().await.unwrap();
    server.pause();
    let tries: Vec<_> = (0..4).map(|_| tokio::spawn(locker.try_lock("k").into_future())).collect();
    let waits: Vec<_> = (0..4)
        .map(|_| tokio::spawn(locker.lock("w").wait(Duration::from_secs(3)).into_future()))
        .collect();
    for tried in tries {
        let error = within("an answer", tried).await.unwrap().unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
    }
    for wait in waits {
        let error = within("the end of a wait", wait).await.unwrap().unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
    }
    server.go_on();
}

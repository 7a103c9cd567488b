//! A server that does not answer, or is not there.

use std::time::{Duration, Instant};

use tenure_core::backend::{Attempt, Backend, FaultKind, Release, Then};
use tenure_redis::Redis;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{self, TIMEOUT, claim, clients, get, granted, lease, locker, redis, whole};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);
/// What a slow machine may add to a bound.
const SLACK: Duration = Duration::from_secs(3);

/// t46: nobody listens: connecting is unavailable at once, and names the address.
#[tokio::test]
async fn t46_nobody_listens() {
    let server = RedisServer::start();
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    server.kill();
    let started = Instant::now();
    let error = Redis::connect(&url).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?}"));
    assert!(text.contains(&format!("127.0.0.1:{}", server.port())), "{text}");
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    assert!(started.elapsed() < SLACK);
}

/// t46: a server that goes away: `lock` errs as unavailable in bounded time, though it may wait for ever.
#[tokio::test]
async fn t46_a_lock_on_a_dead_server_is_bounded() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    a.lock("k").await.unwrap().release().await.unwrap();
    server.kill();
    let started = Instant::now();
    let error = within("an error", a.lock("k").into_future()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(started.elapsed() < TIMEOUT + Duration::from_millis(500) + SLACK);
    let error = within("an error", a.try_lock("k").into_future()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
}

/// t46: a server that accepts and says nothing: the connect time-out is honoured.
#[tokio::test]
async fn t46_a_silent_server_is_given_up() {
    let server = RedisServer::start();
    server.pause();
    let started = Instant::now();
    let connecting = Redis::builder(&server.url()).connect_timeout(TIMEOUT).connect();
    let error = within("an error", connecting).await.unwrap_err();
    assert!(error.is_unavailable() && whole(&error).contains("no connection within 400ms"));
    assert!(started.elapsed() >= TIMEOUT && started.elapsed() < TIMEOUT + SLACK);
    server.go_on();
}

/// A waiter rides out a server that is away for a moment.
#[tokio::test]
async fn a_wait_survives_a_restart() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["SET", "tenure:lock:k", "theirs", "PX", "60000"]);
    let waiting = tokio::spawn(async move { a.lock("k").await });
    lapse(Duration::from_millis(100)).await;
    server.restart();
    assert!(within("the lock", waiting).await.unwrap().unwrap().is_held());
}

/// t05: an acquire that timed out is carried out later by the server, and undone.
#[tokio::test]
async fn t05_a_late_grant_is_undone() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.pause();
    let error = a.try_lock("k").ttl(Duration::from_secs(60)).await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    server.go_on();
    eventually("the orphan to be gone", || async { get(&server, "tenure:lock:k").is_none() }).await;
    let guard = within("the lock", a.lock("k").into_future()).await.unwrap();
    assert!(guard.is_held());
}

/// t50: a release that the server does not answer is unknown; then it is done all the same.
#[tokio::test]
async fn t50_a_release_without_an_answer() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(60)).await.unwrap();
    server.pause();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_unknown(), "{error:?}");
    server.go_on();
    eventually("the key to be gone", || async { get(&server, "tenure:lock:k").is_none() }).await;
    assert!(within("the lock", b.lock("k").into_future()).await.unwrap().is_held());
}

/// A server that stood still for longer than the response time-out: the connection is replaced, and
/// every later request gets its own reply.
#[tokio::test]
async fn replies_do_not_shift_after_a_time_out() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let (held, free) = (lease(&store, "held", LONG).await, claim("free", LONG));
    let before = clients(&server);
    server.pause();
    let fault = store.try_acquire(&claim("held", LONG)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    let fault = store.release(&held, Then::Free).await.unwrap_err();
    assert_eq!(
        fault.kind(),
        FaultKind::Unavailable,
        "it is not asked on a connection that timed out"
    );
    server.go_on();
    eventually("the server to be back", || async {
        store.try_acquire(&claim("held", LONG)).await.is_ok()
    })
    .await;
    for _ in 0..50 {
        let tried = store.try_acquire(&claim("held", LONG)).await.unwrap();
        assert!(matches!(tried, Attempt::Held(_)), "{tried:?}");
        granted(&store, &free).await;
        store.abandon(&free).await.unwrap();
    }
    assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
    assert_eq!(clients(&server), before, "the old connection is closed");
}

/// t43: writes are held back for longer than a ttl: the lock is lost on time. When they go on, a rival gets
/// it, and what its old holder has sent meanwhile, renewals and the release, does not touch the rival's.
#[tokio::test]
async fn t43_client_pause() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    server.client().command(&["CLIENT", "PAUSE", "1700", "WRITE"]);
    let rival = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    within("the loss", guard.lost()).await;
    let late = a.clock().now().since(guard.valid_until());
    assert!(!guard.is_held() && late < support::SLACK, "{late:?}");
    let fence = guard.fence();
    drop(guard);
    let rival = within("the rival's turn", rival).await.unwrap().unwrap();
    assert!(rival.fence() > fence);
    let value = get(&server, "tenure:lock:k").expect("the rival's");
    // For longer than the old holder goes on giving back.
    lapse(Duration::from_millis(1_500)).await;
    assert!(a.try_lock("k").await.unwrap().is_none(), "one at a time");
    assert!(get(&server, "tenure:lock:k").is_some_and(|now| now[1..] == value[1..]));
    rival.release().await.unwrap();
}

/// A connection that is silently dead is found out by asking, and the lock is kept.
#[tokio::test]
async fn a_short_standstill_loses_nothing() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    let guard = a.lock("k").ttl(Duration::from_secs(6)).await.unwrap();
    for _ in 0..2 {
        server.pause();
        lapse(Duration::from_millis(1_500)).await;
        server.go_on();
        lapse(Duration::from_millis(1_500)).await;
    }
    lapse(Duration::from_secs(4)).await;
    assert!(guard.is_held(), "{:?}", guard.remaining());
    guard.release().await.unwrap();
}

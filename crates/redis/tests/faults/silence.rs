//! A server that does not reply, or cannot be reached.

use std::time::{Duration, Instant};

use tenure_core::backend::{AfterRelease, Attempt, Backend, FaultKind, Release};
use tenure_redis::Redis;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{SLACK, TIMEOUT, claim, clients, get, granted, lease, locker, redis, whole};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);

/// t46: if no server listens, connecting fails as unavailable at once, and the error names the address.
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

/// t46: if the server dies, `lock` fails as unavailable in bounded time, although its wait is unlimited.
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

/// t46: if a server accepts connections and sends nothing, connecting ends with its time-out.
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

/// A wait survives a short outage of the server.
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

/// t05: an acquire that timed out and that the server executes later is undone.
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

/// t50: the result of a release without a reply is unknown; the lock is released all the same.
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

/// If the server is paused for longer than the response time-out, the connection is replaced, and every later
/// request gets its own reply.
#[tokio::test]
async fn replies_do_not_shift_after_a_time_out() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let (held, free) = (lease(&store, "held", LONG).await, claim("free", LONG));
    let before = clients(&server);
    server.pause();
    let fault = store.try_acquire(&claim("held", LONG)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    let fault = store.release(&held, AfterRelease::Free).await.unwrap_err();
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
    assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    assert_eq!(clients(&server), before, "the old connection is closed");
}

/// t43: if writes are paused for longer than a ttl, the lock is lost on time. Afterwards a rival gets it, and
/// the renewals and the release that the old holder sent meanwhile do not affect the rival's lock.
#[tokio::test]
async fn t43_client_pause() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    server.client().command(&["CLIENT", "PAUSE", "1700", "WRITE"]);
    let rival = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    within("the loss", guard.lost()).await;
    let late = a.clock().now().since(guard.valid_until());
    assert!(!guard.is_held() && late < SLACK, "{late:?}");
    let fence = guard.fence();
    drop(guard);
    let rival = within("the rival's turn", rival).await.unwrap().unwrap();
    assert!(rival.fence() > fence);
    let value = get(&server, "tenure:lock:k").expect("the rival's");
    // Longer than the old holder retries its release.
    lapse(Duration::from_millis(1_500)).await;
    assert!(a.try_lock("k").await.unwrap().is_none(), "one at a time");
    assert!(get(&server, "tenure:lock:k").is_some_and(|now| now[1..] == value[1..]));
    rival.release().await.unwrap();
}

/// A server that is paused for a moment does not cost the holder its lock.
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

//! A server that does not reply: the responses to requests for the same key.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post as posted;
use tenure::Locker;
use tenure::axum::{LimitLayer, LockLayer};
use tenure::redis::Redis;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Cut, Proxy, Way};

use crate::support::post;

const SECOND: Duration = Duration::from_secs(1);

async fn ok() {}

/// A Redis behind a proxy, and a locker on it.
async fn locker() -> (RedisServer, Proxy, Locker) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let timeout = Duration::from_millis(500);
    let redis = Redis::builder(&proxy.url()).connect_timeout(timeout).response_timeout(timeout);
    let locker = Locker::new(redis.connect().await.unwrap());
    (server, proxy, locker)
}

/// A Redis behind a proxy, and a service on it: `/now` does not wait for the lock, `/later` waits a second.
async fn service() -> (RedisServer, Proxy, Router) {
    let (server, proxy, locker) = locker().await;
    let now = LockLayer::path(&locker, "order:{id}").unwrap();
    let later = now.clone().options(|lock, _| lock.wait(SECOND));
    let app = Router::new()
        .route("/now/{id}", posted(ok).layer(now))
        .route("/later/{id}", posted(ok).layer(later));
    assert_eq!(post(&app, "/now/1").await.status, StatusCode::OK);
    (server, proxy, app)
}

/// The statuses of eight concurrent requests with the same path.
async fn all(app: &Router, path: &'static str) -> Vec<u16> {
    let ask = |_| {
        let app = app.clone();
        tokio::spawn(async move { post(&app, path).await.status.as_u16() })
    };
    let (asked, mut answers) = ((0..8).map(ask).collect::<Vec<_>>(), Vec::new());
    for answer in asked {
        answers.push(answer.await.unwrap());
    }
    answers
}

/// E2, t45: if the server hangs, every request gets 503, not 409 for all but the first.
#[tokio::test]
async fn e2_a_server_that_hangs_is_unavailable_to_all() {
    let (_server, proxy, app) = service().await;
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    assert_eq!(all(&app, "/now/1").await, [503; 8]);
    assert_eq!(all(&app, "/later/1").await, [503; 8]);
}

/// E2, t45: the same for requests that hold a key together: beside some that wait, the others get no 429 or 409.
#[tokio::test]
async fn e2_a_server_that_hangs_is_unavailable_to_all_who_share() {
    let (_server, proxy, locker) = locker().await;
    let limit = LimitLayer::path(&locker, "limit:{id}", 8).unwrap();
    let read = LockLayer::path(&locker, "order:{id}").unwrap().shared();
    let app = Router::new()
        .route(
            "/limit/later/{id}",
            posted(ok).layer(limit.clone().options(|it, _| it.wait(SECOND))),
        )
        .route("/limit/now/{id}", posted(ok).layer(limit))
        .route("/read/later/{id}", posted(ok).layer(read.clone().options(|it, _| it.wait(SECOND))))
        .route("/read/now/{id}", posted(ok).layer(read));
    assert_eq!(post(&app, "/limit/now/1").await.status, StatusCode::OK);
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    for paths in [["/limit/later/1", "/limit/now/1"], ["/read/later/1", "/read/now/1"]] {
        let (later, now) = tokio::join!(all(&app, paths[0]), all(&app, paths[1]));
        assert_eq!((later, now), (vec![503; 8], vec![503; 8]), "{paths:?}");
    }
}

/// E2, t45, t117: every request gets 503 if the server's process is paused.
#[tokio::test]
async fn e2_a_server_that_stands_still_is_unavailable_to_all() {
    let (server, _proxy, app) = service().await;
    server.pause();
    assert_eq!(all(&app, "/now/1").await, [503; 8]);
    assert_eq!(all(&app, "/later/1").await, [503; 8]);
    server.go_on();
}

/// E2: every request gets 503 if the server is gone.
#[tokio::test]
async fn e2_a_server_that_is_gone_is_unavailable_to_all() {
    let (_server, proxy, app) = service().await;
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(all(&app, "/now/1").await, [503; 8]);
    assert_eq!(all(&app, "/later/1").await, [503; 8]);
}

//! `#[tenure::lock]` on a real Redis server.

use std::time::Duration;

use tenure::Locker;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::within;
use tokio::sync::Barrier;

use crate::support::AppError;

#[tenure::lock(key = "order:{id}", locker = locker, ttl = "3s")]
async fn pay(locker: &Locker, id: u64, inside: &Barrier, done: &Barrier) -> Result<u64, AppError> {
    inside.wait().await;
    done.wait().await;
    Ok(id)
}

/// E1: of two lockers, which stand for two processes, one pays an order at a time; another order is
/// independent.
#[tokio::test]
async fn e1_one_at_a_time_on_redis() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let (inside, done) = (Barrier::new(2), Barrier::new(2));
    let (free, at_once) = (Barrier::new(1), Barrier::new(1));
    let second = async {
        inside.wait().await;
        let kept = server.client().text(&["GET", "tenure:lock:order:42"]);
        let same = pay(&two, 42, &free, &at_once).await;
        let other = pay(&two, 43, &free, &at_once).await;
        done.wait().await;
        (kept, same, other)
    };
    let (first, (kept, same, other)) = tokio::join!(pay(&one, 42, &inside, &done), second);
    assert!(kept.is_some(), "the key has its prefix");
    assert_eq!(first.unwrap(), 42);
    assert!(same.unwrap_err().lock().is_busy());
    assert_eq!(other.unwrap(), 43);
    assert_eq!(server.client().text(&["GET", "tenure:lock:order:42"]), None);
}

/// A11: a lock that was deleted at the server cancels the body, and the caller gets the loss.
#[tokio::test]
async fn a11_loss_on_redis() {
    let server = RedisServer::start();
    let locker = connect(&server).await;
    let (inside, never) = (Barrier::new(2), Barrier::new(2));
    let take = async {
        inside.wait().await;
        server.client().command(&["DEL", "tenure:lock:order:42"]);
    };
    let both = async { tokio::join!(pay(&locker, 42, &inside, &never), take) };
    let (lost, ()) = within("the loss", both).await;
    assert!(lost.unwrap_err().lock().is_lost());
}

#[tenure::lock(key = "k", locker = locker, wait = "60s", unavailable_after = "300ms")]
async fn soon(locker: &Locker) -> Result<(), AppError> {
    Ok(())
}

/// `unavailable_after` ends a long wait for a server that cannot be reached.
#[tokio::test]
async fn unavailable_after_ends_the_wait() {
    let server = RedisServer::start();
    let locker = connect(&server).await;
    soon(&locker).await.unwrap();
    server.kill();
    let started = std::time::Instant::now();
    let error = soon(&locker).await.unwrap_err().lock();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "after {:?}", started.elapsed());
}

/// An unavailable server and a held lock are different errors.
#[tokio::test]
async fn unavailable_is_not_busy() {
    let server = RedisServer::start();
    let builder = tenure::redis::Redis::builder(&server.url());
    let builder = builder.connect_timeout(Duration::from_millis(300));
    let locker = Locker::new(builder.connect().await.unwrap());
    drop(server);
    let (free, at_once) = (Barrier::new(1), Barrier::new(1));
    let error = pay(&locker, 42, &free, &at_once).await.unwrap_err().lock();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    assert!(!error.is_busy());
}

async fn connect(server: &RedisServer) -> Locker {
    tenure::connect(&server.url()).await.unwrap()
}

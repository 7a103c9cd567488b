//! Lockers on a client that the caller made (C11).

use std::time::Duration;

use tenure_core::Locker;
use tenure_redis::{Client, Redis};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, lapse};

use crate::support::{clients, get};

const DRAIN: Duration = Duration::from_secs(5);

/// Two lockers share the connection for commands, and exclude each other as usual.
#[tokio::test]
async fn c11_lockers_share_a_client() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).prefix("ours").client().await.unwrap();
    assert_eq!(clients(&server), 1);
    let (a, b) = (Locker::new(Redis::with(&client)), Locker::new(Redis::with(&client)));
    let held = a.lock("k").await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_none());
    assert!(b.try_lock("other").await.unwrap().is_some());
    assert!(get(&server, "ours:lock:k").is_some(), "under the client's prefix");
    assert_eq!(clients(&server), 1, "nothing was renewed yet");
    held.renew().await.unwrap();
    assert_eq!(clients(&server), 2, "renewals of a locker have their own");
    held.release().await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_some());
}

/// The caller that made a client closes it: a locker that shuts down leaves it open for others.
#[tokio::test]
async fn c11_shutdown_leaves_a_shared_client_open() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let id = connections(&server);
    let (a, b) = (Locker::new(Redis::with(&client)), Locker::new(Redis::with(&client)));
    let kept = b.lock("kept").ttl(Duration::from_millis(600)).await.unwrap();
    let guard = a.lock("k").await.unwrap();
    guard.renew().await.unwrap();
    a.shutdown(DRAIN).await;
    assert!(b.try_lock("k").await.unwrap().is_some(), "what the locker held was released");
    assert!(connections(&server).is_superset(&id), "the very same connection");
    lapse(Duration::from_secs(1)).await;
    assert!(kept.is_held(), "the other's renewals go on");
    b.shutdown(DRAIN).await;
    eventually("renewals to be gone", || async { connections(&server) == id }).await;
    client.close();
    eventually("the client to be gone", || async { connections(&server).is_empty() }).await;
}

/// A locker that made its client closes it.
#[tokio::test]
async fn c11_shutdown_closes_what_the_locker_made() {
    let server = RedisServer::start();
    let locker = Locker::new(Redis::connect(&server.url()).await.unwrap());
    locker.lock("k").await.unwrap().release().await.unwrap();
    locker.shutdown(DRAIN).await;
    eventually("the connections to be gone", || async { clients(&server) == 0 }).await;
}

/// Dropping the last handle closes the connections too.
#[tokio::test]
async fn c11_a_dropped_client_is_closed() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let locker = Locker::new(Redis::with(&client));
    drop(client);
    locker.lock("k").await.unwrap().release().await.unwrap();
    drop(locker);
    eventually("the connections to be gone", || async { clients(&server) == 0 }).await;
}

/// The ids of all connections except the raw ones of the test.
fn connections(server: &RedisServer) -> std::collections::BTreeSet<String> {
    crate::support::client_list(server).into_iter().map(|(id, _)| id).collect()
}

//! Traps of the driver: what it does wrong, or does not do, by default.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::backend::{Backend, FaultKind, Operator, Renewal};
use tenure_redis::Redis;
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::eventually;

use crate::relay::{Relay, Way};
use crate::support::{TIMEOUT, claim, clients, get, granted, lease, requests};

const LONG: Duration = Duration::from_secs(60);
/// The order in which the connections are made here.
const COMMANDS: usize = 0;

async fn behind(relay: &Relay, response_timeout: Duration) -> Redis {
    let builder = Redis::builder(&relay.url()).response_timeout(response_timeout);
    builder.connect().await.unwrap()
}

/// t05: a request that is under way when its connection is replaced is not executed after the claim was
/// undone: the server closes the old connection (`CLIENT KILL`) before the abandon is sent.
#[tokio::test]
async fn t05_nothing_arrives_after_it_was_undone() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let store = behind(&relay, TIMEOUT).await;
    let late = claim("k", LONG);
    // The server knows the script, so the claim needs no second request.
    granted(&store, &claim("warm", LONG)).await;
    relay.hold(COMMANDS, Way::Requests);
    let fault = store.try_acquire(&late).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    store.abandon(&late).await.unwrap();
    relay.forward(COMMANDS);
    eventually("all to have arrived", || async { relay.is_over(COMMANDS) }).await;
    assert_eq!(get(&server, "tenure:lock:k"), None);
}

/// t45: a connection that delivers no replies any more is replaced, and closed at the server.
#[tokio::test]
async fn t45_a_black_hole_is_replaced() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let store = behind(&relay, TIMEOUT).await;
    let (held, before) = (lease(&store, "k", LONG).await, clients(&server));
    relay.hold(COMMANDS, Way::Requests);
    relay.hold(COMMANDS, Way::Replies);
    let fault = store.try_acquire(&claim("other", LONG)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    granted(&store, &claim("another", LONG)).await;
    assert_eq!((relay.count(), clients(&server)), (2, before));
    let answers = renewals(&store, &[held]).await;
    assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
}

/// The driver repeats nothing by itself: a request without a reply reaches the server once.
#[tokio::test]
async fn a_request_is_sent_once() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let store = behind(&relay, TIMEOUT).await;
    granted(&store, &claim("warm", LONG)).await;
    let before = requests(&server);
    relay.hold(COMMANDS, Way::Replies);
    let fault = store.try_acquire(&claim("k", LONG)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    // The next connection is open and used before the count.
    store.force_release(claim("x", LONG).key(), claim("x", LONG).token(), "").await.unwrap();
    assert!(get(&server, "tenure:lock:k").is_some());
    assert_eq!(requests(&server) - before, 3, "one acquire, and a force with its text");
}

/// More requests than the driver's queue holds (50), all without a reply, do not delay a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_pass_a_full_queue() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let store = behind(&relay, Duration::from_secs(4)).await;
    let held = lease(&store, "k", LONG).await;
    relay.hold(COMMANDS, Way::Requests);
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..500 {
        let (store, ended) = (store.clone(), ended.clone());
        tokio::spawn(async move {
            let _ = store.try_acquire(&claim("other", LONG)).await;
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    let answers = renewals(&store, &[held]).await;
    assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
    assert_eq!(ended.load(Ordering::SeqCst), 0, "all the others still wait");
    relay.forward(COMMANDS);
    eventually("the others to end", || async { ended.load(Ordering::SeqCst) == 500 }).await;
}

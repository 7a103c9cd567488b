//! How often the server is asked, by its own count (design: "the round trips").

use tenure_core::Locker;
use tenure_testkit::servers::{EtcdServer, Metrics};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{claims_are, locker};

/// What clients ask with: everything but keep-alives and what a connection says of itself.
const METHODS: [&str; 7] =
    ["Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];

/// Requests by method, and writes, since `before`.
fn since(server: &EtcdServer, before: &Metrics) -> (Vec<(&'static str, u64)>, u64) {
    let after = server.metrics();
    let calls = METHODS.map(|method| (method, after.calls(method) - before.calls(method)));
    let made = calls.into_iter().filter(|(_, count)| *count > 0).collect();
    (made, after.writes() - before.writes())
}

/// One whose session and connection are there.
async fn warm(server: &EtcdServer) -> Locker {
    let locker = locker(&server.url()).await;
    locker.lock("warm").await.unwrap().release().await.unwrap();
    locker
}

/// Acquiring a free lock is one round trip, and so is releasing it.
#[tokio::test]
async fn free_is_one_and_release_is_one() {
    let server = EtcdServer::start();
    let a = warm(&server).await;
    for _ in 0..10 {
        let before = server.metrics();
        let guard = a.lock("k").await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1));
        let before = server.metrics();
        guard.release().await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1));
        let before = server.metrics();
        let guard = a.try_lock("k").await.unwrap().unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1));
        guard.release().await.unwrap();
    }
}

/// A busy lock that is only tried costs one round trip, and writes nothing.
#[tokio::test]
async fn busy_is_one_and_no_write() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    let _guard = a.lock("k").await.unwrap();
    let before = server.metrics();
    for _ in 0..10 {
        assert!(b.try_lock("k").await.unwrap().is_none());
    }
    assert_eq!(since(&server, &before), (vec![("Txn", 10)], 0));
}

/// A waiter that is woken asks at most once more, and only the one whose turn it is.
#[tokio::test]
async fn a_hand_over_wakes_one() {
    let server = EtcdServer::start();
    let holder = warm(&server).await;
    let guard = holder.lock("k").await.unwrap();
    let mut waiting = Vec::new();
    for place in 2..8 {
        let locker = warm(&server).await;
        waiting.push(tokio::spawn(async move { (locker.lock("k").await.unwrap(), locker) }));
        claims_are(&server, "k", place).await;
    }
    eventually("everybody to watch", || async { server.metrics().watchers() >= 6 }).await;
    // What they ask before they watch has been asked.
    lapse(std::time::Duration::from_millis(300)).await;
    let mut guard = guard;
    let mut kept = Vec::new();
    for next in waiting {
        let before = server.metrics();
        guard.release().await.unwrap();
        let (held, locker) = within("the next one's turn", next).await.unwrap();
        let (made, writes) = since(&server, &before);
        let asked: u64 = made.iter().map(|(_, count)| count).sum();
        assert!(asked <= 2, "a release and at most one look: {made:?}");
        assert_eq!(writes, 1, "the release");
        guard = held;
        kept.push(locker);
    }
    guard.release().await.unwrap();
}

/// Whoever does not wait any more is not told any more: no watch stays at the server, whether the wait was
/// given up or over.
#[tokio::test]
async fn watches_end_with_their_waits() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    // Each has one on its session and one on words about force.
    eventually("their own watches", || async { server.metrics().watchers() == 4 }).await;
    for _ in 0..5 {
        let guard = a.lock("k").await.unwrap();
        let waiting = tokio::spawn(b.lock("k").into_future());
        claims_are(&server, "k", 2).await;
        eventually("the watch", || async { server.metrics().watchers() >= 5 }).await;
        waiting.abort();
        claims_are(&server, "k", 1).await;
        guard.release().await.unwrap();
    }
    eventually("no watch to be left", || async { server.metrics().watchers() == 4 }).await;
}

/// Waiting asks for nothing while nothing happens.
#[tokio::test]
async fn waiting_is_quiet() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    let _guard = a.lock("k").await.unwrap();
    let _waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    lapse(std::time::Duration::from_secs(1)).await;
    let before = server.metrics();
    // Long enough for one slow look at least, and too short for three.
    lapse(std::time::Duration::from_secs(7)).await;
    let (made, writes) = since(&server, &before);
    let asked: u64 = made.iter().map(|(_, count)| count).sum();
    assert!(asked <= 7 && writes == 0, "{made:?}: no polling");
    let watches = server.metrics().calls("Watch") - before.calls("Watch");
    assert_eq!(watches, 0, "the watch that it has goes on");
}

/// Many locks of one process hang on one session: keep-alives are far fewer than renewals.
#[tokio::test]
async fn many_locks_share_keep_alives() {
    let server = EtcdServer::start();
    let ttl = std::time::Duration::from_secs(3);
    let a = crate::support::of_ttl(&server.url(), ttl).await;
    let mut held = Vec::new();
    for number in 0..200 {
        held.push(a.lock(format!("k{number}")).await.unwrap());
    }
    let before = server.metrics();
    lapse(ttl * 2).await;
    let after = server.metrics();
    let sent = after.messages("LeaseKeepAlive") - before.messages("LeaseKeepAlive");
    // Each is renewed at a third of its ttl.
    let renewals = 200 * 6;
    assert!(sent * 10 < renewals, "{sent} keep-alives for {renewals} renewals");
    assert!(held.iter().all(tenure_core::Guard::is_held));
    a.shutdown(ttl).await;
}

//! The number of requests, by the server's own metrics (the table in `docs/engines/etcd.md`).

use std::time::Duration;

use tenure_core::Locker;
use tenure_testkit::servers::{EtcdServer, Metrics};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{claims_are, locker};

/// The methods of clients, without keep-alives and without those that set up a connection.
const METHODS: [&str; 7] =
    ["Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];

/// Requests by method, and writes, since `before`.
fn since(server: &EtcdServer, before: &Metrics) -> (Vec<(&'static str, u64)>, u64) {
    let after = server.metrics();
    let calls = METHODS.map(|method| (method, after.calls(method) - before.calls(method)));
    let made = calls.into_iter().filter(|(_, count)| *count > 0).collect();
    (made, after.writes() - before.writes())
}

/// A locker with a session and a connection.
async fn warm(server: &EtcdServer) -> Locker {
    let locker = locker(&server.url()).await;
    locker.lock("warm").await.unwrap().release().await.unwrap();
    locker
}

/// Acquiring a free lock takes one round trip, and releasing it takes one.
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

/// A reader or a permit takes one round trip if it is granted at once, and releasing it takes one. A try for a permit
/// reads first, and a number takes two more.
#[tokio::test]
async fn readers_and_permits_are_one() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    let (here, there) = (a.semaphore("p", 2), b.semaphore("p", 2));
    let (_reads, _holds) = (b.read("k").await.unwrap(), there.acquire().await.unwrap());
    // Each locker has one watch on its session and one on forced releases.
    eventually("their own watches", || async { server.metrics().watchers() == 4 }).await;
    let watches = server.metrics().calls("Watch");
    for _ in 0..3 {
        let before = server.metrics();
        let reader = a.read("k").await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1), "a reader");
        let before = server.metrics();
        reader.release().await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1), "its release");
        let before = server.metrics();
        let reader = a.try_read("k").await.unwrap().unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1), "a try");
        reader.release().await.unwrap();
        let before = server.metrics();
        let permit = here.acquire().await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1), "a permit");
        let before = server.metrics();
        assert!(there.try_acquire().await.unwrap().is_none());
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 0), "a try that is refused");
        let before = server.metrics();
        permit.release().await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 1)], 1), "its release");
        let before = server.metrics();
        let permit = here.try_acquire().await.unwrap().unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 2)], 1), "a try that is granted");
        permit.release().await.unwrap();
        let before = server.metrics();
        let permit = here.acquire().numbered().await.unwrap();
        assert_eq!(since(&server, &before), (vec![("Txn", 3)], 2), "a numbered permit");
        permit.release().await.unwrap();
    }
    assert_eq!(
        server.metrics().calls("Watch"),
        watches,
        "nobody waits, and no reader shares a lease"
    );
}

/// A released permit wakes the one that it is for. Those behind it see the event, and send nothing.
#[tokio::test]
async fn a_released_permit_wakes_one() {
    let server = EtcdServer::start();
    let a = warm(&server).await;
    let held = [a.semaphore("k", 2).acquire().await, a.semaphore("k", 2).acquire().await];
    let mut waiting = Vec::new();
    for place in 3..8 {
        let locker = warm(&server).await;
        waiting.push(tokio::spawn(async move {
            (locker.semaphore("k", 2).acquire().await.unwrap(), locker)
        }));
        claims_are(&server, "k", place).await;
    }
    eventually("everybody to watch", || async { server.metrics().watchers() >= 17 }).await;
    // The requests before each watch are done by now, also that for the wait status.
    lapse(std::time::Duration::from_millis(600)).await;
    let (mut held, mut kept) = (Vec::from(held.map(Result::unwrap)), Vec::new());
    for next in waiting {
        let before = server.metrics();
        held.remove(0).release().await.unwrap();
        let (permit, locker) = within("the next one's turn", next).await.unwrap();
        let (made, writes) = since(&server, &before);
        let asked: u64 = made.iter().map(|(_, count)| count).sum();
        assert!(asked <= 2 && writes == 1, "a release and at most one look: {made:?}");
        held.push(permit);
        kept.push(locker);
    }
}

/// `try_lock` of a held lock takes one round trip, and writes nothing.
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

/// Only the waiter whose turn it is wakes, and it sends at most one request.
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
    // The requests before each watch are done by now.
    lapse(std::time::Duration::from_millis(300)).await;
    let mut guard = guard;
    let mut kept = Vec::new();
    for next in waiting {
        let before = server.metrics();
        guard.release().await.unwrap();
        let (held, locker) = within("the next one's turn", next).await.unwrap();
        let (made, writes) = since(&server, &before);
        let asked: u64 = made.iter().map(|(_, count)| count).sum();
        // On a slow machine a waiter may meanwhile read the holder and the rest of its lease.
        let looks = made.iter().filter(|(call, _)| *call == "LeaseTimeToLive").map(|(_, n)| n);
        let asked = asked.saturating_sub(2 * looks.sum::<u64>());
        assert!(asked <= 2, "a release and at most one look: {made:?}");
        assert_eq!(writes, 1, "the release");
        guard = held;
        kept.push(locker);
    }
    guard.release().await.unwrap();
}

/// No watch stays at the server after its wait, whether the wait was abandoned or succeeded.
#[tokio::test]
async fn watches_end_with_their_waits() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    // Each locker has one watch on its session and one on forced releases.
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

/// While nothing changes, a waiter sends no request but the slow read.
#[tokio::test]
async fn waiting_is_quiet() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    let _guard = a.lock("k").await.unwrap();
    let _waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    lapse(std::time::Duration::from_secs(1)).await;
    let before = server.metrics();
    // Long enough for at least one slow read, and too short for three.
    lapse(std::time::Duration::from_secs(7)).await;
    let (made, writes) = since(&server, &before);
    let asked: u64 = made.iter().map(|(_, count)| count).sum();
    assert!(asked <= 7 && writes == 0, "{made:?}: no polling");
    let watches = server.metrics().calls("Watch") - before.calls("Watch");
    assert_eq!(watches, 0, "the watch that it has goes on");
}

/// Many locks of one process share one session: keep-alives are far fewer than renewals.
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
    // Each lock is renewed after a third of its ttl.
    let renewals = 200 * 6;
    assert!(sent * 10 < renewals, "{sent} keep-alives for {renewals} renewals");
    assert!(held.iter().all(tenure_core::Guard::is_held));
    a.shutdown(ttl).await;
}

/// B5: an observer of an election sends nothing while its key does not change, whatever others do, and looks once when
/// it does.
#[tokio::test]
async fn b5_an_observer_is_notified_of_its_key() {
    let server = EtcdServer::start();
    let (a, b) = (warm(&server).await, warm(&server).await);
    let mut observe = b.election("k").observe().await.unwrap();
    assert_eq!(within("the first answer", observe.next()).await.unwrap(), None);
    let before = server.metrics();
    for n in 0..10 {
        a.lock(format!("other:{n}")).await.unwrap().release().await.unwrap();
    }
    let quiet = tokio::time::timeout(Duration::from_millis(500), observe.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!(since(&server, &before), (vec![("Txn", 20)], 20), "the locks, and no look");
    let before = server.metrics();
    let leader = a.election("k").campaign("me").await.unwrap();
    let seen = within("the leader", observe.next()).await.unwrap();
    assert_eq!(seen.and_then(|seen| seen.term), Some(leader.term()));
    assert_eq!(since(&server, &before), (vec![("Txn", 2), ("LeaseTimeToLive", 1)], 1));
}

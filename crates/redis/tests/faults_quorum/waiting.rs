//! Waiting for a lock of a quorum: waiters are notified, and competing claims do not block each other for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::backend::{AfterRelease, Backend};
use tenure_core::{Claim, ClaimOptions, Key, Locker, Token};
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, in_time, lapse, within};

use crate::support::{Nodes, claim, connect, lease, url_of};

/// Acquires the lock, changes a number that only a holder may change, and releases, `times` times.
async fn work(locker: Locker, number: Arc<AtomicU64>, times: u64) {
    for _ in 0..times {
        // So long that no waiter gets the lock by expiry.
        let guard = locker.lock("k").ttl(Duration::from_secs(300)).await.unwrap();
        let before = number.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        number.store(before + 1, Ordering::SeqCst);
        guard.release().await.unwrap();
    }
}

async fn fight(nodes: &Nodes, clients: u64, times: u64) -> u64 {
    let (number, mut tasks) = (Arc::new(AtomicU64::new(0)), Vec::new());
    for _ in 0..clients {
        tasks.push(tokio::spawn(work(nodes.locker().await, number.clone(), times)));
    }
    for task in tasks {
        within("everybody's turns", task).await.unwrap();
    }
    number.load(Ordering::SeqCst)
}

/// Clients that split the votes of an even number of nodes do not deny each other for ever, and never hold
/// the lock together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lockstep() {
    let mut nodes = Nodes::start();
    let lockers = [nodes.locker().await, nodes.locker().await];
    drop(nodes.0.pop());
    let number = Arc::new(AtomicU64::new(0));
    let tasks = lockers.map(|locker| tokio::spawn(work(locker, number.clone(), 20)));
    for task in tasks {
        within("everybody's turns", task).await.unwrap();
    }
    assert_eq!(number.load(Ordering::SeqCst), 40);
}

/// t48: many clients on one key all acquire it, one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t48_many_clients_take_turns() {
    let nodes = Nodes::start();
    assert_eq!(fight(&nodes, 6, 5).await, 30);
    // A release completes with a majority; the other nodes follow.
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A9, B1: waiters are notified: a hand-over does not wait for the heartbeat, which comes every second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_are_notified() {
    let nodes = Nodes::start();
    let lockers = [nodes.locker().await, nodes.locker().await];
    // Ensures that both subscriptions are confirmed.
    for locker in &lockers {
        locker.lock("warm").await.unwrap().release().await.unwrap();
    }
    let (start, mut guard) = (Instant::now(), lockers[0].lock("k").await.unwrap());
    for turn in 1..=20 {
        let next = tokio::spawn(lockers[turn % 2].lock("k").into_future());
        lapse(Duration::from_millis(50)).await;
        guard.release().await.unwrap();
        guard = within("the next turn", next).await.unwrap().unwrap();
    }
    // Without notifications each hand-over would take three quarters of a second.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}

/// Lost replies of a majority cost a waiter a moment, however long its retry interval is: it asks again before its
/// queue entries end, and is notified of the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_cost_no_queue_position() {
    const LONG: Duration = Duration::from_secs(300);
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    let (holder, waiter) =
        (nodes.connect().await, connect(&url_of(proxies.iter().map(Proxy::port))).await);
    // Subscribes to the notifications.
    waiter.acquire(&claim("warm", LONG)).await.unwrap();
    let subscribed = |node: &RedisServer| {
        node.client().command(&["PUBSUB", "CHANNELS"]) != Reply::Many(Vec::new())
    };
    eventually("all subscriptions", || async { nodes.0.iter().all(subscribed) }).await;
    let held = lease(&holder, "k", LONG).await;
    // A node that gets this vote late would vote for the waiter first.
    eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
    let terms = ClaimOptions::new(LONG).retry_interval(Duration::from_secs(20));
    let asked = Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms));
    let waits = asked.clone();
    let waiting = tokio::spawn(async move { waiter.acquire(&waits).await.unwrap() });
    let token = asked.token().expose();
    let queued = || nodes.0.iter().filter(|node| is_notified(node, &token)).count();
    eventually("it to wait at every node", || async { queued() == 5 }).await;
    for proxy in &proxies[..3] {
        proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing("held"));
    }
    eventually("a round to fail", || async { asked.wait_status().fault.is_some() }).await;
    proxies.iter().for_each(Proxy::heal);
    // For longer than a silent waiter is considered alive.
    lapse(Duration::from_secs(6)).await;
    holder.release(&held, AfterRelease::Free).await.unwrap();
    in_time(Duration::from_secs(1), "its turn", waiting).await.unwrap();
}

/// Whether the waiter with this token is queued for `k` at the node and gets notifications.
fn is_notified(node: &RedisServer, token: &str) -> bool {
    let beat = node.client().text(&["HGET", "tenure:beat:k", token]);
    beat.is_some_and(|beat| beat.split(' ').nth(1) == Some("push"))
}

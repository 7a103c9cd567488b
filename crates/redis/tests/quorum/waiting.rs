//! Waiting for a lock of a quorum: told, and without denying each other for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_testkit::wait::{eventually, within};

use crate::support::Nodes;

/// Locks, changes a number that only a holder may change, and gives back, so many times.
async fn work(locker: Locker, number: Arc<AtomicU64>, times: u64) {
    for _ in 0..times {
        // So long that nobody gets a turn by expiry.
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

/// Clients that share the votes of an even number of nodes do not deny each other for ever, and never
/// hold the lock together.
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

/// t48: many clients on one key all get their turns, one at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t48_many_clients_take_turns() {
    let nodes = Nodes::start();
    assert_eq!(fight(&nodes, 6, 5).await, 30);
    // A release is done when a majority is; the others follow.
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A9: whoever waits is told: hand-overs do not wait for the heartbeat of a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_are_told() {
    let nodes = Nodes::start();
    let lockers = [nodes.locker().await, nodes.locker().await];
    // So that both are known to listen.
    for locker in &lockers {
        locker.lock("warm").await.unwrap().release().await.unwrap();
    }
    let (start, mut guard) = (Instant::now(), lockers[0].lock("k").await.unwrap());
    for turn in 1..=20 {
        let next = tokio::spawn(lockers[turn % 2].lock("k").into_future());
        tenure_testkit::wait::lapse(Duration::from_millis(50)).await;
        guard.release().await.unwrap();
        guard = within("the next turn", next).await.unwrap().unwrap();
    }
    // Three quarters of a second each, had nobody told.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}

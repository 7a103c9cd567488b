//! The thread on which a quorum is asked: what it carries on that its callers leave, and in which order.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{Backend, Release, Term, Then};
use tenure_redis::Quorum;
use tenure_testkit::servers::proxy::{Cut, Deed, Rule, Way};
use tenure_testkit::wait::{eventually, lapse};
use tokio::runtime::{Builder, Runtime};

use crate::support::{
    Nodes, TIMEOUT, claim, connect, connect_within, granted, lease, with_a_proxy,
};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const TTL: Duration = Duration::from_secs(300);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Does `work` on a runtime that ends right after it.
fn on_a_runtime_that_ends<T: Send>(work: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let runtime = runtime();
            let done = runtime.block_on(work);
            runtime.shutdown_background();
            done
        });
        done.join().unwrap()
    })
}

/// Polled once, and then nobody waits for it any more.
async fn give_up<T>(mut work: impl Future<Output = T> + Unpin) {
    poll_fn(|cx| {
        let _ = std::pin::Pin::new(&mut work).poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Connections are not those of the runtime that was the first to ask.
#[tokio::test]
async fn connections_outlive_who_made_them() {
    let (nodes, proxy, url) = with_a_proxy();
    let cycle = |store: Quorum| async move {
        let held = lease(&store, "k", TTL).await;
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
    };
    let store = on_a_runtime_that_ends(async {
        let store = connect(&url).await;
        cycle(store.clone()).await;
        store
    });
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    let before = proxy.accepted();
    cycle(store).await;
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    assert_eq!(proxy.accepted(), before, "nobody had to connect again");
}

/// What a slow node did not get of a release is sent to it again, also when the runtime that released has
/// ended, and the client is gone.
#[tokio::test]
async fn a_release_is_seen_through() {
    let (nodes, proxy, url) = with_a_proxy();
    on_a_runtime_that_ends(async {
        let store = connect(&url).await;
        let held = lease(&store, "k", TTL).await;
        eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
        proxy.rule(Rule::on(Way::Requests, Deed::Swallow));
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
    });
    eventually("it to be swallowed", || async { proxy.struck() > 0 }).await;
    assert_eq!(nodes.locked("k"), 1);
    proxy.heal();
    proxy.cut(Cut::Reset);
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A release that is given up is carried out all the same.
#[tokio::test]
async fn a_release_that_nobody_waits_for() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for _ in 0..20 {
        let held = lease(&store, "k", TTL).await;
        give_up(store.release(&held, Then::Free)).await;
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

/// What undoes a claim comes after what asked for it, wherever that was given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandon_never_comes_first() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    for turn in 0..300 {
        let asked = claim(&format!("k{turn}"), TTL);
        give_up(store.acquire(&asked)).await;
        // At once, or while it is sent, or while it is answered.
        std::thread::sleep(Duration::from_micros(turn % 100 * 3));
        store.abandon(&asked).await.unwrap();
    }
    // Behind all of them on every node.
    lapse(TIMEOUT).await;
    for turn in 0..300 {
        assert_eq!(nodes.locked(&format!("k{turn}")), 0, "{turn}");
    }
}

/// Whoever stands still for longer than the ttl while its votes are counted elsewhere has no lock; it is
/// given back, and one that waits asks anew.
#[tokio::test(flavor = "current_thread")]
async fn a_caller_that_stood_still() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    let short = Duration::from_millis(300);
    let (once, waits) = (claim("once", short), claim("waits", short));
    let (mut asking, mut waiting) = (store.try_acquire(&once), store.acquire(&waits));
    poll_fn(|cx| {
        assert!(asking.as_mut().poll(cx).is_pending() && waiting.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    std::thread::sleep(short * 2);
    let on_again = store.clock().now();
    let error = asking.await.expect_err("too little is left of it");
    let said = "the votes of the quorum took longer than the ttl allows";
    assert_eq!(error.to_string(), said);
    let grant = waiting.await.unwrap();
    assert!(matches!(grant.term, Term::Lease { from, .. } if from >= on_again), "{grant:?}");
}

/// A node that is silent, and many locks meanwhile: they go on. What is left of them on that node ends, with
/// its ttl at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_and_many_locks() {
    let nodes = Nodes::start();
    let store = connect_within(&nodes.url(), Duration::from_secs(1)).await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0[4].pause();
    for turn in 0..500 {
        let held = lease(&store, &format!("k{}", turn % 7), Duration::from_secs(10)).await;
        store.release(&held, Then::Free).await.unwrap();
    }
    nodes.0[4].go_on();
    let left = |key: usize| nodes.locked(&format!("k{key}"));
    eventually("nothing to be left", || async { (0..7).all(|key| left(key) == 0) }).await;
}

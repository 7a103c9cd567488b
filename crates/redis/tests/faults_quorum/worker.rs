//! The worker thread of a quorum: which work it completes after its callers have left, and in which order.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, Release, Validity};
use tenure_redis::Quorum;
use tenure_testkit::servers::proxy::{Action, Cut, Rule, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse};
use tokio::runtime::{Builder, Runtime};

use crate::support::{
    Nodes, TIMEOUT, claim, connect, connect_within, granted, lease, with_a_proxy,
};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const TTL: Duration = Duration::from_secs(300);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Runs `work` on a runtime that ends right after it.
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

/// Polls `work` once and drops it.
async fn give_up<T>(mut work: impl Future<Output = T> + Unpin) {
    poll_fn(|cx| {
        let _ = std::pin::Pin::new(&mut work).poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Connections do not belong to the runtime that made the first request, so they outlive it.
#[tokio::test]
async fn connections_outlive_their_first_runtime() {
    let (nodes, proxy, url) = with_a_proxy();
    let cycle = |store: Quorum| async move {
        let held = lease(&store, "k", TTL).await;
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
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

/// If a node misses a release, the release is sent to it again, even after the runtime of the caller has
/// ended and the client is dropped.
#[tokio::test]
async fn a_release_is_seen_through() {
    let (nodes, proxy, url) = with_a_proxy();
    on_a_runtime_that_ends(async {
        let store = connect(&url).await;
        let held = lease(&store, "k", TTL).await;
        eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
        proxy.rule(Rule::on(Way::Requests, Action::Swallow));
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    });
    eventually("it to be swallowed", || async { proxy.struck() > 0 }).await;
    // A release needs the replies of a majority only; the other nodes may follow later.
    eventually("only the slow node to be locked", || async { nodes.locked("k") == 1 }).await;
    proxy.heal();
    proxy.cut(Cut::Reset);
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A release whose future is dropped is carried out all the same.
#[tokio::test]
async fn a_release_that_nobody_waits_for() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for _ in 0..20 {
        let held = lease(&store, "k", TTL).await;
        give_up(store.release(&held, AfterRelease::Free)).await;
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

/// An abandon never reaches a node before the acquire that it undoes, whenever the acquire was cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandon_never_comes_first() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    for turn in 0..300 {
        let asked = claim(&format!("k{turn}"), TTL);
        give_up(store.acquire(&asked)).await;
        // Immediately, or while the request is sent, or while it is answered.
        std::thread::sleep(Duration::from_micros(turn % 100 * 3));
        store.abandon(&asked).await.unwrap();
    }
    // By then every node has processed all requests.
    lapse(TIMEOUT).await;
    for turn in 0..300 {
        assert_eq!(nodes.locked(&format!("k{turn}")), 0, "{turn}");
    }
}

/// A caller that is stopped for longer than the ttl while the worker counts its votes does not hold the lock.
/// The votes are released, and a waiting caller starts a new round.
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
    assert!(
        matches!(grant.validity, Validity::Lease { from, .. } if from >= on_again),
        "{grant:?}"
    );
}

/// One silent node does not stop many locks from being acquired and released on the other nodes. A vote that is
/// left on the silent node blocks no claim, and ends with its ttl at the latest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_and_many_locks() {
    let nodes = Nodes::start();
    let store = connect_within(&nodes.url(), Duration::from_secs(1)).await;
    granted(&store, &claim("warm", TTL)).await;
    let (silent, others) = nodes.0.split_last().unwrap();
    silent.pause();
    for turn in 0..500 {
        let held = lease(&store, &format!("k{}", turn % 7), TTL).await;
        store.release(&held, AfterRelease::Free).await.unwrap();
    }
    let pttl = |node: &RedisServer, key: usize| {
        node.client().command(&["PTTL", &format!("tenure:lock:k{key}")])
    };
    let is_free = |node: &RedisServer| (0..7).all(|key| pttl(node, key) == Reply::Int(-2));
    eventually("nothing to be left", || async { others.iter().all(is_free) }).await;
    silent.go_on();
    for key in 0..7 {
        let held = lease(&store, &format!("k{key}"), TTL).await;
        store.release(&held, AfterRelease::Free).await.unwrap();
        let left = pttl(silent, key);
        assert_ne!(left, Reply::Int(-1), "a vote without an end");
    }
}

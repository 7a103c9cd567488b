//! The short forms, for a lock that nobody else wants: that they do, and what they must not leave behind.

use std::time::Duration;

use tenure_core::backend::{Backend, FaultKind, Release, Then};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Deed, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, lapse};

use crate::support::{Nodes, claim, connect, granted, lease, with_a_proxy};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const TTL: Duration = Duration::from_secs(300);
/// How late the answers of a slow node are: less than the response time-out.
const LATE: Duration = Duration::from_millis(200);
const LOCK: &str = "tenure:lock:k";
/// A vote for somebody else.
const OTHER: &str = "-t1:0000000000000000:00000000000000000000000000000001:1:h:1:u:p:::0";

/// How often each node has carried out this command, for us or in a script.
fn calls(nodes: &Nodes, command: &str) -> Vec<u64> {
    let start = format!("cmdstat_{command}:calls=");
    let calls = |node: &RedisServer| {
        let said = node.client().text(&["INFO", "commandstats"]).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    nodes.0.iter().map(calls).collect()
}

fn be_late(proxy: &Proxy) {
    proxy.rule(Rule::on(Way::Replies, Deed::Delay(LATE)));
}

/// A lock that nobody else wants costs each node two scripts.
#[tokio::test]
async fn two_scripts_for_each_node() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    // So that the scripts are known.
    let warm = lease(&store, "warm", TTL).await;
    store.release(&warm, Then::Free).await.unwrap();
    eventually("it to be given back", || async { nodes.locked("warm") == 0 }).await;
    let before = calls(&nodes, "evalsha");
    let gets_before = calls(&nodes, "get");
    for _ in 0..10 {
        let held = lease(&store, "k", TTL).await;
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
    }
    let after = || calls(&nodes, "evalsha").into_iter().zip(&before).map(|(now, then)| now - then);
    eventually("all nodes to be asked", || async { after().all(|more| more >= 20) }).await;
    assert_eq!(after().collect::<Vec<_>>(), [20; 5]);
    assert_eq!(calls(&nodes, "get"), gets_before, "the full form is not among them");
}

/// A node that answers late, and not plainly, is asked for nothing more once the others have decided: that
/// would come after the release, and be nobody's vote.
#[tokio::test]
async fn a_late_node_is_left_alone() {
    let (nodes, proxy, url) = with_a_proxy();
    let store = connect(&url).await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0[4].client().command(&["SET", LOCK, OTHER, "PX", "300000"]);
    be_late(&proxy);
    let held = lease(&store, "k", TTL).await;
    // By the full form, so that the node is not asked to free it a second time.
    store.release(&held, Then::Closed(Duration::from_millis(1))).await.unwrap();
    nodes.0[4].client().command(&["DEL", LOCK]);
    lapse(LATE * 4).await;
    assert_eq!(nodes.locks("k"), [const { None }; 5]);
}

/// The same where the lock is given back by the short form.
#[tokio::test]
async fn a_late_node_is_left_alone_by_a_plain_release() {
    let (nodes, proxy, url) = with_a_proxy();
    let store = connect(&url).await;
    granted(&store, &claim("warm", TTL)).await;
    for key in ["k1", "k2", "k3"] {
        let lock = format!("tenure:lock:{key}");
        nodes.0[4].client().command(&["SET", &lock, OTHER, "PX", "300000"]);
        be_late(&proxy);
        let held = lease(&store, key, TTL).await;
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
        nodes.0[4].client().command(&["DEL", &lock]);
        lapse(LATE * 4).await;
        proxy.heal();
        assert_eq!(nodes.locks(key), [const { None }; 5]);
    }
}

/// A node that answers late that it does not know the script learns it, and does not carry it out any more.
#[tokio::test]
async fn a_late_node_that_has_forgotten_its_scripts() {
    let (nodes, proxy, url) = with_a_proxy();
    let (store, other) = (connect(&url).await, nodes.connect().await);
    granted(&store, &claim("warm", TTL)).await;
    let warm = lease(&other, "other", TTL).await;
    eventually("all nodes to have voted", || async { nodes.locked("other") == 5 }).await;
    nodes.0[4].client().command(&["SCRIPT", "FLUSH"]);
    // Only how to free it is known there then.
    other.release(&warm, Then::Closed(Duration::from_millis(1))).await.unwrap();
    eventually("it to be given back", || async { nodes.locked("other") == 0 }).await;
    be_late(&proxy);
    let held = lease(&store, "k", TTL).await;
    store.release(&held, Then::Closed(Duration::from_millis(1))).await.unwrap();
    lapse(LATE * 5).await;
    assert_eq!(nodes.locks("k"), [const { None }; 5]);
    // It has learned it, slow as it is.
    let held = lease(&store, "k", TTL).await;
    eventually("its vote", || async { nodes.locked("k") == 5 }).await;
    store.release(&held, Then::Free).await.unwrap();
}

/// A short release takes nothing that is another's, closed or a stranger's, and says that it is not held.
#[tokio::test]
async fn a_short_release_takes_only_our_own() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let others = [OTHER, "-t1:closed::1:h:1:u:p:::0", "a stranger's"];
    for other in others {
        let held = lease(&store, other, TTL).await;
        eventually("all nodes to have voted", || async { nodes.locked(other) == 5 }).await;
        for node in &nodes.0[..3] {
            node.client().command(&["SET", &format!("tenure:lock:{other}"), other, "PX", "300000"]);
        }
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::NotHeld);
        eventually("ours to be gone", || async { nodes.locked(other) == 3 }).await;
        assert!(nodes.locks(other)[..3].iter().all(|lock| lock.as_deref() == Some(other)));
    }
}

/// Whoever waits is told by a release, also where the holder does not know of it.
#[tokio::test]
async fn a_short_release_tells_who_waits() {
    let nodes = Nodes::start();
    let (store, rival) = (nodes.connect().await, nodes.locker().await);
    // So that it is known to listen.
    rival.lock("warm").await.unwrap().release().await.unwrap();
    for _ in 0..5 {
        let held = lease(&store, "k", TTL).await;
        let next = tokio::spawn(rival.lock("k").into_future());
        let waited =
            |lock: &Option<String>| lock.as_ref().is_some_and(|lock| lock.starts_with('*'));
        let known = || nodes.locks("k").iter().filter(|lock| waited(lock)).count();
        eventually("it to wait", || async { known() >= 3 }).await;
        let start = std::time::Instant::now();
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
        next.await.unwrap().unwrap().release().await.unwrap();
        // Its heartbeats come every second.
        assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

/// Nodes that do not have our vote when it is given back do not make a lock look wanted.
#[tokio::test]
async fn a_node_without_our_vote_is_no_rival() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for _ in 0..2 {
        let held = lease(&store, "k", TTL).await;
        eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
        let before = calls(&nodes, "getrange")[0];
        for node in &nodes.0[3..] {
            node.client().command(&["DEL", LOCK]);
        }
        assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::Freed);
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
        assert_eq!(calls(&nodes, "getrange")[0], before + 1, "by the short form");
    }
}

/// t26: what is no count gives no vote, neither on a key that nobody else wants nor, after that, by the
/// full form, and is not overwritten.
#[tokio::test]
async fn t26_no_vote_by_what_is_no_count() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for corrupt in ["-1", "1e3", "0x10", "", "9007199254740993"] {
        for node in &nodes.0 {
            node.client().command(&["SET", "tenure:fence", corrupt]);
        }
        for _ in 0..2 {
            let fault = store.try_acquire(&claim("k", TTL)).await.unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Refused, "{corrupt}: {fault:?}");
            eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
        }
        for node in &nodes.0 {
            let count = node.client().text(&["GET", "tenure:fence"]);
            assert_eq!(count.as_deref(), Some(corrupt), "it is not overwritten");
        }
    }
}

/// Fences rise whichever form gives them: nodes behind or ahead of what a claim names give their own.
#[tokio::test]
async fn fences_rise_through_both_forms() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.connect().await, nodes.connect().await);
    let mut last = 0;
    for turn in 0..60_usize {
        let store = if turn % 2 == 0 { &one } else { &two };
        // Another count on another node, above what anybody names now and then.
        if turn % 7 == 0 {
            let count = (last + 40 * 256).to_string();
            nodes.0[turn % 5].client().command(&["SET", "tenure:fence", &count]);
        }
        let held = lease(store, "k", TTL).await;
        let fence = held.fence().server();
        assert!(fence > last, "{turn}: {fence} after {last}");
        last = fence;
        // Every other time so that the next finds it closed for a moment, and asks in full.
        let then = if turn % 4 == 0 { Then::Closed(Duration::from_millis(1)) } else { Then::Free };
        assert_eq!(store.release(&held, then).await.unwrap(), Release::Freed);
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

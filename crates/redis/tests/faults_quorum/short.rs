//! The short ways of a vote and of a release, for a lock without other claims: that they are used, and that they leave
//! nothing behind.

use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, FaultKind, Release};
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, lapse};

use crate::support::{Nodes, calls, claim, connect, granted, lease, with_a_proxy};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const TTL: Duration = Duration::from_secs(300);
/// The delay of a slow node's replies: less than the response time-out.
const LATE: Duration = Duration::from_millis(200);
const LOCK: &str = "tenure:lock:k";
/// A vote for another claim.
const OTHER: &str = "-t1:0000000000000000:00000000000000000000000000000001:1:h:1:u:p:::0";

fn be_late(proxy: &Proxy) {
    proxy.rule(Rule::on(Way::Replies, Action::Delay(LATE)));
}

/// A lock without other claims costs each node two scripts, which read nothing. Only a node that was reached late
/// costs a third one, which raises its fence to that of the others and reads the vote and the count.
#[tokio::test]
async fn two_scripts_for_each_node() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    // Loads the scripts into the nodes.
    let warm = lease(&store, "warm", TTL).await;
    store.release(&warm, AfterRelease::Free).await.unwrap();
    eventually("it to be released", || async { nodes.locked("warm") == 0 }).await;
    let (before, gets_before) = (calls(&nodes, "evalsha"), calls(&nodes, "get"));
    for _ in 0..10 {
        let held = lease(&store, "k", TTL).await;
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    }
    let since = |name: &str, before: &[u64]| -> Vec<u64> {
        calls(&nodes, name).into_iter().zip(before).map(|(now, then)| now - then).collect()
    };
    let all_asked = || async { since("evalsha", &before).iter().all(|more| *more >= 20) };
    eventually("all nodes to be asked", all_asked).await;
    let raised: Vec<u64> = since("evalsha", &before).into_iter().map(|more| more - 20).collect();
    assert!(raised.iter().all(|count| *count < 10), "not for every lock: {raised:?}");
    let reads: Vec<u64> = raised.iter().map(|count| count * 2).collect();
    assert_eq!(since("get", &gets_before), reads, "{raised:?}");
}

/// A node that replies late, and not with a plain grant, gets no further request once the other nodes have
/// decided. A further request would arrive after the release and leave a vote that no claim owns.
#[tokio::test]
async fn a_late_node_is_left_alone() {
    let (nodes, proxy, url) = with_a_proxy();
    let store = connect(&url).await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0[4].client().command(&["SET", LOCK, OTHER, "PX", "300000"]);
    be_late(&proxy);
    let held = lease(&store, "k", TTL).await;
    // By the full script, so that the node does not get a second release.
    store.release(&held, AfterRelease::Cooldown(Duration::from_millis(1))).await.unwrap();
    nodes.0[4].client().command(&["DEL", LOCK]);
    lapse(LATE * 4).await;
    assert_eq!(nodes.locks("k"), [const { None }; 5]);
}

/// The same, with the fast release.
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
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
        nodes.0[4].client().command(&["DEL", &lock]);
        lapse(LATE * 4).await;
        proxy.heal();
        assert_eq!(nodes.locks(key), [const { None }; 5]);
    }
}

/// If a node replies late that it does not know the script, the script is loaded into it but not executed any more.
#[tokio::test]
async fn a_late_node_that_has_forgotten_its_scripts() {
    let (nodes, proxy, url) = with_a_proxy();
    let (store, other) = (connect(&url).await, nodes.connect().await);
    granted(&store, &claim("warm", TTL)).await;
    let warm = lease(&other, "other", TTL).await;
    eventually("all nodes to have voted", || async { nodes.locked("other") == 5 }).await;
    nodes.0[4].client().command(&["SCRIPT", "FLUSH"]);
    // Afterwards this node knows only the script that releases.
    other.release(&warm, AfterRelease::Cooldown(Duration::from_millis(1))).await.unwrap();
    eventually("it to be released", || async { nodes.locked("other") == 0 }).await;
    be_late(&proxy);
    let held = lease(&store, "k", TTL).await;
    store.release(&held, AfterRelease::Cooldown(Duration::from_millis(1))).await.unwrap();
    lapse(LATE * 5).await;
    assert_eq!(nodes.locks("k"), [const { None }; 5]);
    // The slow node has loaded the script.
    let held = lease(&store, "k", TTL).await;
    eventually("its vote", || async { nodes.locked("k") == 5 }).await;
    store.release(&held, AfterRelease::Free).await.unwrap();
}

/// A fast release deletes only our own vote, and reports that the lock is not held if a majority has another value.
#[tokio::test]
async fn a_short_release_takes_only_our_own() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let closed = "-t1:closed:!00112233445566778899aabbccddeeff:1:h:1:u:p:::0";
    let others = [OTHER, closed, "-t1:closed::1:h:1:u:p:::0", "a stranger's"];
    for other in others {
        let held = lease(&store, other, TTL).await;
        eventually("all nodes to have voted", || async { nodes.locked(other) == 5 }).await;
        for node in &nodes.0[..3] {
            node.client().command(&["SET", &format!("tenure:lock:{other}"), other, "PX", "300000"]);
        }
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::NotHeld);
        eventually("ours to be gone", || async { nodes.locked(other) == 3 }).await;
        assert!(nodes.locks(other)[..3].iter().all(|lock| lock.as_deref() == Some(other)));
    }
}

/// A release notifies the waiter, even if the holder does not know that there is one.
#[tokio::test]
async fn a_short_release_notifies_waiters() {
    let nodes = Nodes::start();
    let (store, rival) = (nodes.connect().await, nodes.locker().await);
    // Ensures that the rival's subscription is confirmed.
    rival.lock("warm").await.unwrap().release().await.unwrap();
    for _ in 0..5 {
        let held = lease(&store, "k", TTL).await;
        let next = tokio::spawn(rival.lock("k").into_future());
        let waited =
            |lock: &Option<String>| lock.as_ref().is_some_and(|lock| lock.starts_with('*'));
        let known = || nodes.locks("k").iter().filter(|lock| waited(lock)).count();
        eventually("it to wait", || async { known() >= 3 }).await;
        let start = std::time::Instant::now();
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
        next.await.unwrap().unwrap().release().await.unwrap();
        // Without the notification the waiter would wait for its next heartbeat; heartbeats are a second apart.
        assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

/// Nodes that do not have our vote at the release do not make the lock look contended.
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
        assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
        assert_eq!(calls(&nodes, "getrange")[0], before + 1, "by the short form");
    }
}

/// t26: a node with a corrupt fence counter does not vote, neither at first nor at a second request, and the counter
/// is not overwritten.
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

/// Fences rise whatever a vote finds: a node that is behind or ahead of the number that a claim proposes uses its own.
#[tokio::test]
async fn fences_rise_through_both_forms() {
    let nodes = Nodes::start();
    let (one, two) = (nodes.connect().await, nodes.connect().await);
    let mut last = 0;
    for turn in 0..60_usize {
        let store = if turn % 2 == 0 { &one } else { &two };
        // Now and then one node gets a count above every proposed number.
        if turn % 7 == 0 {
            let count = (last + 40 * 256).to_string();
            nodes.0[turn % 5].client().command(&["SET", "tenure:fence", &count]);
        }
        let held = lease(store, "k", TTL).await;
        let fence = held.fence().server();
        assert!(fence > last, "{turn}: {fence} after {last}");
        last = fence;
        // Every fourth release closes the lock for a moment, so that the next claim finds it held.
        let then = if turn % 4 == 0 {
            AfterRelease::Cooldown(Duration::from_millis(1))
        } else {
            AfterRelease::Free
        };
        assert_eq!(store.release(&held, then).await.unwrap(), Release::Freed);
        eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
    }
}

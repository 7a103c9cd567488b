//! Elections on a quorum, some of whose nodes have missed a resignation.

use std::time::Duration;

use tenure_core::{Election, Leader};
use tenure_testkit::elections::Seen;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};

use crate::support::Nodes;

/// So long that a lock that becomes free was released, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";

async fn lead(election: &Election, value: &str) -> Leader {
    within("a leadership", election.campaign(value).ttl(LONG).into_future()).await.unwrap()
}

/// Puts these values back on nodes, as if they had missed the release.
fn put_back(nodes: &[RedisServer], values: &[Option<String>]) {
    for (node, value) in nodes.iter().zip(values.iter().flatten()) {
        node.client().command(&["SET", LOCK, value, "PX", "300000"]);
    }
}

/// B5, t111: an observer that hears a minority of the nodes with the new leader, and more with the one before it, never
/// sees the older leader after the newer one.
#[tokio::test]
async fn no_older_leader_is_shown_after_a_newer_one() {
    let nodes = Nodes::start();
    let (a, b, c) = (nodes.locker().await, nodes.locker().await, nodes.locker().await);
    let theirs = c.election("k");
    let old = lead(&a.election("k"), "old").await;
    let mut seen = Seen::by(&theirs).await;
    eventually("all votes", || async { nodes.locked("k") == 5 }).await;
    seen.until("old", old.term()).await;
    let missed = nodes.locks("k");
    old.resign().await.unwrap();
    eventually("no vote to be left", || async { nodes.locked("k") == 0 }).await;
    put_back(&nodes.0[..2], &missed);
    let new = lead(&b.election("k"), "new").await;
    eventually("all votes", || async { nodes.locked("k") == 5 }).await;
    seen.until("new", new.term()).await;
    // Two nodes that show the old leader answer, and one that shows the new one.
    nodes.0[3..].iter().for_each(RedisServer::pause);
    for _ in 0..3 {
        let shown = theirs.leader().await.unwrap().expect("a leader is shown");
        assert_eq!(shown.value, "new");
    }
    let quiet = tokio::time::timeout(Duration::from_secs(2), seen.observe().next()).await;
    assert!(quiet.is_err(), "the same leadership, whose term is known: {quiet:?}");
    nodes.0[3..].iter().for_each(RedisServer::go_on);
    new.resign().await.unwrap();
    eventually("two votes to be left", || async { nodes.locked("k") == 2 }).await;
    // Now nobody leads, and the two nodes could be part of a majority for the old leader.
    nodes.0[3..].iter().for_each(RedisServer::pause);
    assert_eq!(seen.next().await, None);
    let quiet = tokio::time::timeout(Duration::from_secs(2), seen.observe().next()).await;
    assert!(quiet.is_err(), "nobody leads: {quiet:?}");
    nodes.0[3..].iter().for_each(RedisServer::go_on);
    seen.is_sound();
}

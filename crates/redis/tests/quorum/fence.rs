//! The fence of a quorum: rows 18, 22 and 26, and what it takes to write it back.

use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, FaultKind, Loss, Renewal, Then};
use tenure_testkit::meddle::renewals;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Deed, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, within};

use crate::support::{Nodes, claim, connect, connect_within, granted, lease, url_of};

/// So long that nothing which is waited for here comes by expiry.
const TTL: Duration = Duration::from_secs(300);
/// A count that no clock reaches for a hundred years.
const AHEAD: u64 = 1 << 49;

fn count_of(node: &RedisServer) -> u64 {
    node.client().text(&["GET", "tenure:fence"]).map_or(0, |count| count.parse().unwrap())
}

/// A22: the highest number of the votes is written to a majority, so that the next fence is higher though
/// the node that it came from is gone.
#[tokio::test]
async fn the_fence_is_written_back() {
    let mut nodes = Nodes::start();
    nodes.0[0].client().command(&["SET", "tenure:fence", &AHEAD.to_string()]);
    // Two of the others cannot vote: the first is one of the majority.
    nodes.0[3].pause();
    nodes.0[4].pause();
    let first = url_of(nodes.0[..3].iter().chain(&nodes.0[3..]).map(RedisServer::port));
    let builder = tenure_redis::Quorum::builder(&first).trust_restarted();
    let store = builder.quorum_later().unwrap();
    let held = lease(&store, "k", TTL).await;
    let fence = held.fence().server();
    assert_eq!(fence, AHEAD + 1);
    assert_eq!(nodes.0[..3].iter().filter(|node| count_of(node) >= fence).count(), 3);
    store.release(&held, Then::Free).await.unwrap();
    nodes.0[3].go_on();
    nodes.0[4].go_on();
    drop(nodes.0.remove(0));
    let store = tenure_redis::Quorum::builder(&first).trust_restarted().quorum().await.unwrap();
    let next = within("a grant", store.acquire(&claim("k", TTL))).await.unwrap();
    assert!(next.fence > fence);
}

/// A22: where the vote has ended before the fence is written, there is no grant.
#[tokio::test]
async fn no_fence_is_written_where_the_vote_has_ended() {
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    // Long, so that a busy machine does not have it ask twice.
    let url = url_of(proxies.iter().map(Proxy::port));
    let store = connect_within(&url, Duration::from_secs(4)).await;
    granted(&store, &claim("warm", TTL)).await;
    // All but two vote with numbers far apart, so that there is something to write.
    for (node, ahead) in nodes.0.iter().zip([3_u64, 2, 1]) {
        let count = (AHEAD + ahead * 1_000).to_string();
        node.client().command(&["SET", "tenure:fence", &count]);
    }
    nodes.0[3].pause();
    nodes.0[4].pause();
    let fence = (AHEAD + 3_001).to_string();
    let late = Duration::from_millis(200);
    for proxy in &proxies[1..3] {
        proxy.rule(Rule::on(Way::Requests, Deed::Delay(late)).containing(&fence));
    }
    let asked = claim("k", TTL);
    let asking = tokio::spawn(async move { store.try_acquire(&asked).await });
    eventually("a write-back to be under way", || async { proxies[1].struck() > 0 }).await;
    for node in &nodes.0[1..3] {
        node.client().command(&["SET", "tenure:lock:k", "another's", "PX", "300000"]);
    }
    let answer = within("an answer", asking).await.unwrap();
    assert!(!matches!(answer, Ok(Attempt::Granted(_))), "{answer:?}");
    assert!(count_of(&nodes.0[1]) < AHEAD + 3_001, "it was not ours to write");
    nodes.0[3].go_on();
    nodes.0[4].go_on();
}

/// Where all nodes can take the number that the claim names, it is written with the votes.
#[tokio::test]
async fn one_round_trip_where_nodes_agree() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    // Not always: on a busy machine a node may be reached so late that its clock is further on.
    eventually("nodes to agree", || async {
        let held = lease(&store, "k", TTL).await;
        let fence = held.fence().server();
        eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
        let agree = nodes.0.iter().all(|node| count_of(node) == fence);
        store.release(&held, Then::Free).await.unwrap();
        agree && fence % 256 == 0
    })
    .await;
}

/// t18: a node whose clock jumps lets a rival in beside the holder; the rival's fence is higher, and the
/// holder has lost the lock at its next renewal.
#[tokio::test]
async fn t18_a_nodes_clock_jumps() {
    let (one, three) = (RedisServer::start(), RedisServer::start());
    let two = RedisServer::start_with_clock(&[]);
    let url = url_of([one.port(), two.port(), three.port()].into_iter());
    let (store, rival) = (connect(&url).await, connect(&url).await);
    three.pause();
    let held = lease(&store, "k", TTL).await;
    three.go_on();
    // It was asked too: as if it had not been.
    let mut client = three.client();
    eventually("a late vote", || {
        let gone = client.text(&["DEL", "tenure:lock:k"]).as_deref() == Some("1");
        async move { gone }
    })
    .await;
    two.clock().set("+600s");
    let next = lease(&rival, "k", TTL).await;
    assert!(next.fence() > held.fence());
    let answers = renewals(&store, std::slice::from_ref(&held)).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(Loss::Gone))]), "{answers:?}");
}

/// t26: a count that is none keeps its node from voting; a majority of such refuses, and nothing is left.
#[tokio::test]
async fn t26_corrupt_counts() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for node in &nodes.0[..2] {
        node.client().command(&["SET", "tenure:fence", "x"]);
    }
    let held = lease(&store, "k", TTL).await;
    store.release(&held, Then::Free).await.unwrap();
    nodes.0[2].client().command(&["SET", "tenure:fence", "9007199254740993"]);
    let fault = store.try_acquire(&claim("k", TTL)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Refused, "{fault:?}");
    assert!(fault.to_string().contains("the fence counter `tenure:fence` holds"), "{fault}");
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A22: fences rise through the loss of all data on all nodes.
#[tokio::test]
async fn t09_fences_rise_through_flushall() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let mut last = 0;
    for _ in 0..5 {
        let held = lease(&store, "k", TTL).await;
        assert!(held.fence().server() > last);
        last = held.fence().server();
        for node in &nodes.0 {
            node.client().command(&["FLUSHALL"]);
        }
        // Clocks are what is left of the count: they are to pass what nodes may be ahead of them.
        let clock = store.clock();
        let until = clock.now().after(Duration::from_millis(50));
        eventually("time to pass", || async { clock.now() >= until }).await;
    }
}

/// t22, t68: an operator takes a lock from its holder on all nodes; what a single node lost is not lost.
#[tokio::test]
async fn t68_force_is_a_matter_of_majorities() {
    let nodes = Nodes::start();
    let (a, operator) = (nodes.locker().await, nodes.locker().await);
    let guard = a.lock("k").await.unwrap();
    let seen = operator.inspect("k").await.unwrap().unwrap().holders[0].token.unwrap();
    let single =
        tenure_core::Locker::new(tenure_redis::Redis::connect(&nodes.0[0].url()).await.unwrap());
    single.force_release("k", seen, "ann: only here").await.unwrap();
    guard.renew().await.unwrap();
    assert!(guard.is_held());
    operator.force_release("k", seen, "ann: stuck").await.unwrap();
    let loss = within("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::Forced("ann: stuck".into()));
}

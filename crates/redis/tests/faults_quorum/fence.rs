//! The fence of a quorum: rows 18, 22 and 26, and how the fence is written back to the nodes.

use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, FaultKind, Loss, Operator, Query, Renewal,
};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, within};

use crate::support::{Nodes, claim, connect, connect_within, granted, lease, url_of};

/// So long that no event these tests wait for is caused by expiry.
const TTL: Duration = Duration::from_secs(300);
/// A count that no clock reaches for a hundred years.
const AHEAD: u64 = 1 << 49;

fn count_of(node: &RedisServer) -> u64 {
    node.client().text(&["GET", "tenure:fence"]).map_or(0, |count| count.parse().unwrap())
}

/// A22: the highest number of the votes is written to a majority, so the next fence is higher even if the
/// node that it came from is gone.
#[tokio::test]
async fn the_fence_is_written_back() {
    let mut nodes = Nodes::start();
    nodes.0[0].client().command(&["SET", "tenure:fence", &AHEAD.to_string()]);
    // Two other nodes cannot vote, so the first node is in the majority.
    nodes.0[3].pause();
    nodes.0[4].pause();
    let first = url_of(nodes.0[..3].iter().chain(&nodes.0[3..]).map(RedisServer::port));
    let builder = tenure_redis::Quorum::builder(&first).trust_restarted();
    let store = builder.quorum_later().unwrap();
    let held = lease(&store, "k", TTL).await;
    let fence = held.fence().server();
    assert_eq!(fence, AHEAD + 1);
    assert_eq!(nodes.0[..3].iter().filter(|node| count_of(node) >= fence).count(), 3);
    let shown = store.inspect(&Query::Key(held.claim().key().clone())).await.unwrap();
    assert_eq!(shown[0].holders[0].fence, Some(held.fence()), "a majority shows it");
    store.release(&held, AfterRelease::Free).await.unwrap();
    nodes.0[3].go_on();
    nodes.0[4].go_on();
    drop(nodes.0.remove(0));
    let store = tenure_redis::Quorum::builder(&first).trust_restarted().quorum().await.unwrap();
    let next = within("a grant", store.acquire(&claim("k", TTL))).await.unwrap();
    assert!(next.fence > fence);
}

/// A22: if a vote has ended before the fence is written, the claim is not granted.
#[tokio::test]
async fn no_fence_is_written_where_the_vote_has_ended() {
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    // A long time-out, so that the client does not send the request twice on a busy machine.
    let url = url_of(proxies.iter().map(Proxy::port));
    let store = connect_within(&url, Duration::from_secs(4)).await;
    granted(&store, &claim("warm", TTL)).await;
    // A late vote for it would draw a number after the ones that are set here.
    eventually("all nodes to have voted", || async { nodes.locked("warm") == 5 }).await;
    // Three nodes vote with numbers far apart, so that a fence must be written back.
    for (node, ahead) in nodes.0.iter().zip([3_u64, 2, 1]) {
        let count = (AHEAD + ahead * 1_000).to_string();
        node.client().command(&["SET", "tenure:fence", &count]);
    }
    nodes.0[3].pause();
    nodes.0[4].pause();
    let fence = (AHEAD + 3_001).to_string();
    let late = Duration::from_millis(200);
    for proxy in &proxies[1..3] {
        proxy.rule(Rule::on(Way::Requests, Action::Delay(late)).containing(&fence));
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

/// If all nodes can accept the number that the claim proposes, it is written together with the votes.
#[tokio::test]
async fn one_round_trip_where_nodes_agree() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    // This does not hold every time: on a busy machine a request may reach a node so late that its clock is
    // already past the proposed number.
    eventually("nodes to agree", || async {
        let held = lease(&store, "k", TTL).await;
        let fence = held.fence().server();
        eventually("all nodes to have voted", || async { nodes.locked("k") == 5 }).await;
        let agree = nodes.0.iter().all(|node| count_of(node) == fence);
        store.release(&held, AfterRelease::Free).await.unwrap();
        agree && fence % 256 == 0
    })
    .await;
}

/// t18: a node whose clock jumps lets a rival acquire the lock beside the holder. The rival's fence is
/// higher, and the holder's next renewal reports the loss.
#[tokio::test]
async fn t18_a_nodes_clock_jumps() {
    let (one, three) = (RedisServer::start(), RedisServer::start());
    let two = RedisServer::start_with_clock(&[]);
    let url = url_of([one.port(), two.port(), three.port()].into_iter());
    let (store, rival) = (connect(&url).await, connect(&url).await);
    three.pause();
    let held = lease(&store, "k", TTL).await;
    three.go_on();
    // The third node received the request too. Its late vote is deleted, as if it had not received the request.
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

/// t26: a node with a corrupt fence counter does not vote. If a majority is corrupt, the claim is refused and
/// leaves no vote behind.
#[tokio::test]
async fn t26_corrupt_counts() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    for node in &nodes.0[..2] {
        node.client().command(&["SET", "tenure:fence", "x"]);
    }
    let held = lease(&store, "k", TTL).await;
    store.release(&held, AfterRelease::Free).await.unwrap();
    nodes.0[2].client().command(&["SET", "tenure:fence", "9007199254740993"]);
    let fault = store.try_acquire(&claim("k", TTL)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Refused, "{fault:?}");
    assert!(fault.to_string().contains("the fence counter `tenure:fence` holds"), "{fault}");
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// A22: fences rise even if all nodes lose all data.
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
        // After the loss only the clocks keep the order. They must first pass the lead that nodes may have over them.
        let clock = store.clock();
        let until = clock.now().after(Duration::from_millis(50));
        eventually("time to pass", || async { clock.now() >= until }).await;
    }
}

/// t22, t68: a forced release on one node is outvoted; an operator's forced release on all nodes ends the lock.
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

//! Nodes that die, are paused, or lose their data: rows 4, 5, 9, 15, 16, 17, 20, 45, 50.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_core::backend::{
    AfterRelease, Attempt, Backend, FaultKind, Loss, Release, Renewal, Validity,
};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Proxy, Way};
use tenure_testkit::wait::{eventually, pass, within};

use crate::support::{Nodes, SLACK, TIMEOUT, claim, connect, granted, lease, url_of};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const TTL: Duration = Duration::from_secs(300);

/// B7, C4, t16: with two of five nodes dead, locks are acquired, renewed and released.
#[tokio::test]
async fn t16_two_nodes_are_dead() {
    let mut nodes = Nodes::start();
    let (a, b) = (nodes.locker().await, nodes.locker().await);
    nodes.0.truncate(3);
    let guard = within("a lock", a.lock("k").into_future()).await.unwrap();
    guard.renew().await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_none());
    assert!(b.is_locked("k").await.unwrap());
    guard.release().await.unwrap();
    b.try_lock("k").await.unwrap().expect("it is free").release().await.unwrap();
}

/// t16, t45: two nodes that accept requests and never reply do not make any request wait for their time-out.
#[tokio::test]
async fn t16_two_nodes_stand_still() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0[0].pause();
    nodes.0[3].pause();
    let start = Instant::now();
    for round in 0..5 {
        let lease = lease(&store, &format!("k{round}"), TTL).await;
        assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::Freed);
    }
    // Waiting for the time-outs would take five of them, or ten with the releases.
    assert!(start.elapsed() < TIMEOUT * 5, "{:?}", start.elapsed());
    nodes.0[0].go_on();
    nodes.0[3].go_on();
}

/// B7, t17: with three of five nodes dead, an acquire fails in bounded time and leaves no vote on the other nodes.
#[tokio::test]
async fn t17_three_nodes_are_dead() {
    let mut nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0.truncate(2);
    let (asked, start) = (claim("k", TTL), Instant::now());
    let fault = store.try_acquire(&asked).await.unwrap_err();
    assert!(matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Unknown), "{fault:?}");
    assert!(fault.to_string().starts_with("fewer than 3 of 5 nodes can be counted on"), "{fault}");
    assert!(start.elapsed() < TIMEOUT * 4, "{:?}", start.elapsed());
    eventually("votes of a minority to be released", || async { nodes.locked("k") == 0 }).await;
    let waiting = Locker::new(store).lock("k").into_future();
    let error = within("the end of the wait", waiting).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
}

/// t17: a holder whose nodes are paused loses its lock when its lease ends, not later. Until then the state
/// is unknown, and no loss is reported.
#[tokio::test]
async fn t17_a_holder_without_a_majority() {
    let nodes = Nodes::start();
    let locker = nodes.locker().await;
    let guard = locker.lock("k").ttl(Duration::from_secs(2)).await.unwrap();
    nodes.0[..3].iter().for_each(RedisServer::pause);
    assert!(guard.is_held(), "unknown is not lost");
    let loss = within("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::Expired);
    let (now, until) = (locker.clock().now(), guard.valid_until());
    assert!(now >= until && now < until.after(SLACK), "{:?} after its end", now.since(until));
    nodes.0[..3].iter().for_each(RedisServer::go_on);
}

/// t17: a renewal that only a minority answers is neither renewed nor lost: its result is unknown.
#[tokio::test]
async fn t17_an_unanswered_renewal_is_unknown() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let lease = lease(&store, "k", TTL).await;
    nodes.0[..3].iter().for_each(RedisServer::pause);
    let answers = renewals(&store, std::slice::from_ref(&lease)).await;
    assert!(matches!(answers[..], [Some(Renewal::Unknown(_))]), "{answers:?}");
    nodes.0[..3].iter().for_each(RedisServer::go_on);
    eventually("a renewal", || async {
        let answers = renewals(&store, std::slice::from_ref(&lease)).await;
        matches!(answers[..], [Some(Renewal::Renewed { .. })])
    })
    .await;
}

/// t09, t15: two nodes that lose their data are outvoted. When a third loses its data, the next renewal
/// reports the loss.
#[tokio::test]
async fn t15_nodes_that_forget() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let lease = lease(&store, "k", TTL).await;
    eventually("all nodes to have it", || async { nodes.locked("k") == 5 }).await;
    let renewed = || async { renewals(&store, std::slice::from_ref(&lease)).await };
    for forgetful in &nodes.0[..2] {
        forgetful.client().command(&["FLUSHALL"]);
        let answers = renewed().await;
        assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
    }
    nodes.0[2].client().command(&["FLUSHALL"]);
    let answers = renewed().await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(Loss::Gone))]), "{answers:?}");
    assert_eq!(nodes.locked("k"), 2, "a renewal brings nothing back");
}

/// t15: a node that restarts empty does not help a second holder to the lock before the first holder's ttl has passed.
#[tokio::test]
async fn t15_a_node_restarts_empty() {
    let nodes = Nodes::start();
    let ttl = Duration::from_secs(3);
    let holder = nodes.connect().await;
    let rival = tenure_redis::Quorum::builder(&nodes.url()).quarantine(ttl);
    let rival = rival.quorum().await.unwrap();
    eventually("the nodes to be old enough", || async {
        let asked = claim("old", ttl);
        rival.try_acquire(&asked).await.is_ok()
    })
    .await;
    // Exactly three nodes hold the lock.
    nodes.0[3].pause();
    nodes.0[4].pause();
    let held = lease(&holder, "k", ttl).await;
    nodes.0[2].restart();
    nodes.0[3].restart();
    nodes.0[4].restart();
    // Three of five nodes do not know the lock now, and all three are too young to vote, even for a shorter ttl.
    let asked = claim("k", Duration::from_millis(500));
    while holder.clock().now() < held.valid_until() {
        let answer = rival.try_acquire(&asked).await;
        let in_time = holder.clock().now() < held.valid_until();
        let won = matches!(answer, Ok(tenure_core::backend::Attempt::Granted(_)));
        assert!(!(won && in_time), "granted beside a holder");
    }
}

/// B7, t20: votes that take longer than the ttl allows are not a grant. Once the nodes can be reached again, abandoning
/// the claim releases the votes on all of them.
#[tokio::test]
async fn t20_too_late_is_not_granted() {
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    let store = connect(&url_of(proxies.iter().map(Proxy::port))).await;
    granted(&store, &claim("warm", TTL)).await;
    proxies.iter().for_each(|proxy| proxy.black_hole(&[Way::Replies]));
    // Votes may take a fifth of the ttl, which is less than the time-out.
    let asked = claim("k", Duration::from_secs(2));
    let fault = within("an answer", store.try_acquire(&asked)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown, "{fault:?}");
    // Longer, so that no vote expires by itself.
    for node in &nodes.0 {
        node.client().command(&["PEXPIRE", "tenure:lock:k", "300000"]);
    }
    assert!(nodes.0.iter().all(|node| expired(node) == 0), "none has ended before");
    proxies.iter().for_each(Proxy::heal);
    // An abandon needs a majority only, and a node may still be connecting: it is sent until no vote is left.
    eventually("nothing to be left", || async {
        store.abandon(&asked).await.is_ok() && nodes.locked("k") == 0
    })
    .await;
}

/// How many keys of this node have expired.
fn expired(node: &RedisServer) -> u64 {
    let stats = node.client().text(&["INFO", "stats"]).unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("expired_keys:"));
    count.unwrap().trim().parse().unwrap()
}

/// t04, t28: a claim whose replies were lost is granted when it is requested again. Abandoning it releases its votes on
/// all nodes.
#[tokio::test]
async fn t04_lost_answers() {
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    let store = connect(&url_of(proxies.iter().map(Proxy::port))).await;
    granted(&store, &claim("warm", TTL)).await;
    proxies[..3].iter().for_each(|proxy| proxy.black_hole(&[Way::Replies]));
    let asked = claim("k", TTL);
    store.try_acquire(&asked).await.unwrap_err();
    proxies.iter().for_each(Proxy::heal);
    let grant = within("a grant", store.acquire(&asked)).await.unwrap();
    assert!(grant.fence > 0);
    assert!(nodes.locked("k") >= 3);
    // As above: a node whose connection was just given up is asked again only after a pause.
    eventually("nothing to be left", || async {
        store.abandon(&asked).await.is_ok() && nodes.locked("k") == 0
    })
    .await;
    within("the lock", store.acquire(&claim("k", TTL))).await.unwrap();
}

/// t05, t10: a claim that is abandoned while nodes are paused is undone once they resume. At most a minority
/// keeps its vote, which does not stop the next claim.
#[tokio::test]
async fn t05_votes_that_come_late() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    nodes.0[..3].iter().for_each(RedisServer::pause);
    let asked = claim("k", TTL);
    store.try_acquire(&asked).await.unwrap_err();
    let first = store.abandon(&asked).await;
    assert!(first.is_err(), "three nodes have not answered");
    nodes.0[..3].iter().for_each(RedisServer::go_on);
    eventually("the claim to be undone", || async { store.abandon(&asked).await.is_ok() }).await;
    assert!(nodes.locked("k") < 3, "{:?}", nodes.locks("k"));
    within("the lock", store.acquire(&claim("k", TTL))).await.unwrap();
}

/// t50: the result of a release that no majority answers is unknown; the same release succeeds when it is retried.
#[tokio::test]
async fn t50_a_release_without_a_majority() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let lease = lease(&store, "k", TTL).await;
    nodes.0[..3].iter().for_each(RedisServer::pause);
    let start = Instant::now();
    let fault = store.release(&lease, AfterRelease::Free).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown, "{fault:?}");
    assert!(start.elapsed() < TIMEOUT * 4);
    nodes.0[..3].iter().for_each(RedisServer::go_on);
    eventually("the release", || async { store.release(&lease, AfterRelease::Free).await.is_ok() })
        .await;
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

/// Nodes that restart with their data, one after the other, do not cost the holder its lock.
#[tokio::test]
async fn a_rolling_restart() {
    let nodes = Nodes::start_persistent();
    let (locker, rival) = (nodes.locker().await, nodes.locker().await);
    let guard = locker.lock("k").ttl(Duration::from_secs(5)).await.unwrap();
    for node in &nodes.0 {
        node.restart();
        guard.renew().await.unwrap();
        assert!(rival.try_lock("k").await.unwrap().is_none());
    }
    assert!(guard.is_held());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let next = rival.lock("k").await.unwrap();
    assert!(next.fence() > fence);
}

/// t20: a process that was stopped while its votes arrived does not hold the lock when it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t20_a_process_that_stood_still() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    granted(&store, &claim("warm", TTL)).await;
    let asked = claim("k", Duration::from_millis(200));
    let mut asking = store.try_acquire(&asked);
    // The request is sent; then the future is not polled while the replies arrive on the threads of the runtime.
    nodes.0.iter().for_each(RedisServer::pause);
    let polled = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "{polled:?}");
    nodes.0.iter().for_each(RedisServer::go_on);
    pass(Duration::from_millis(400));
    let on_again = store.clock().now();
    // The claim may have started another round, if other claims seemed to compete. The votes that arrived
    // during the pause do not count.
    if let Ok(Attempt::Granted(grant)) = asking.await {
        assert!(
            matches!(grant.validity, Validity::Lease { from, .. } if from >= on_again),
            "{grant:?}"
        );
    }
    eventually("nothing to be left", || async { nodes.locked("k") == 0 }).await;
}

//! Readers and writers of a quorum whose nodes and connections fail.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, Grant, LockInfo, Loss, Operator, Query, Release, Renewal,
};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Locker, Mode, ReadGuard, Token};
use tenure_redis::Quorum;
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::proxy::{Proxy, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, in_time, within};

use crate::support::{Nodes, calls, claim, connect, connect_within, granted, lease, url_of};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const TTL: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";

fn reader(ttl: Duration) -> Arc<Claim> {
    let terms = ClaimOptions::new(ttl).retry_interval(Duration::from_millis(10)).mode(Mode::Read);
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms))
}

/// A client that waits long for a reply: on a busy machine too, no request is sent twice.
async fn patient(nodes: &Nodes) -> Quorum {
    connect_within(&nodes.url(), Duration::from_secs(4)).await
}

async fn lockers<const N: usize>(nodes: &Nodes) -> [Locker; N] {
    let mut lockers = Vec::new();
    for _ in 0..N {
        lockers.push(Locker::new(patient(nodes).await));
    }
    lockers.try_into().expect("as many as asked for")
}

async fn reads(store: &Quorum) -> Arc<Lease> {
    let claim = reader(TTL);
    let grant = granted(store, &claim).await;
    Arc::new(Lease::new(claim, grant, store.clock()))
}

async fn read(locker: &Locker) -> ReadGuard {
    within("a reader's turn", locker.read("k").ttl(TTL).into_future()).await.unwrap()
}

/// How many votes for readers each node has.
fn votes(nodes: &Nodes) -> Vec<i64> {
    let count = |node: &RedisServer| match node.client().command(&["ZCARD", LOCK]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    };
    nodes.0.iter().map(count).collect()
}

async fn is_free(nodes: &Nodes) {
    let free = || async {
        let exists = |node: &RedisServer| node.client().command(&["EXISTS", LOCK]);
        nodes.0.iter().all(|node| exists(node) == Reply::Int(0))
    };
    eventually("no vote to be left", free).await;
}

/// Deletes the votes of these nodes, as if they had not been reached.
async fn forget_on(nodes: &[RedisServer]) {
    for node in nodes {
        let gone = || async { node.client().command(&["DEL", LOCK]) == Reply::Int(1) };
        eventually("its vote", gone).await;
    }
}

/// B2, B7, t16: with two of five nodes dead, readers hold a key together, renew and release it; then a writer gets it.
#[tokio::test]
async fn t16_readers_and_two_dead_nodes() {
    let mut nodes = Nodes::start();
    let (a, b, c) = (nodes.locker().await, nodes.locker().await, nodes.locker().await);
    let one = read(&a).await;
    nodes.0.truncate(3);
    let two = read(&b).await;
    one.renew().await.unwrap();
    two.renew().await.unwrap();
    assert!(one.is_held() && two.is_held());
    assert!(c.try_write("k").await.unwrap().is_none());
    let shown = c.inspect("k").await.unwrap().unwrap();
    assert_eq!((shown.holders.len(), shown.mode()), (2, &Mode::Read));
    one.release().await.unwrap();
    assert!(c.try_write("k").await.unwrap().is_none(), "one of two has released");
    let fence = two.fence();
    two.release().await.unwrap();
    let writer = within("the writer's turn", c.write("k").into_future()).await.unwrap();
    assert!(writer.fence() > fence);
    assert!(a.try_read("k").await.unwrap().is_none());
}

/// t04, t74: a reader whose replies were lost is granted when it asks again: once on every node, and no other reader is
/// hurt by that.
#[tokio::test]
async fn t04_a_readers_replies_are_lost() {
    let nodes = Nodes::start();
    let proxies: Vec<Proxy> = nodes.0.iter().map(|node| Proxy::to(node.port())).collect();
    let (store, other) =
        (connect(&url_of(proxies.iter().map(Proxy::port))).await, nodes.connect().await);
    granted(&store, &claim("warm", TTL)).await;
    let beside = reads(&other).await;
    eventually("all votes", || async { votes(&nodes) == [1; 5] }).await;
    proxies[..3].iter().for_each(|proxy| proxy.black_hole(&[Way::Replies]));
    let asked = reader(TTL);
    store.try_acquire(&asked).await.unwrap_err();
    proxies.iter().for_each(Proxy::heal);
    let grant = within("a grant", store.acquire(&asked)).await.unwrap();
    assert!(grant.fence > 0);
    assert!(votes(&nodes).iter().all(|count| *count <= 2), "{:?}", votes(&nodes));
    let lease = Arc::new(Lease::new(asked, grant, store.clock()));
    let answers = renewals(&store, std::slice::from_ref(&lease)).await;
    assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::Freed);
    eventually("its votes to be gone", || async { votes(&nodes) == [1; 5] }).await;
    assert_eq!(other.release(&beside, AfterRelease::Free).await.unwrap(), Release::Freed);
    is_free(&nodes).await;
}

/// B2: a writer that waits gets the key when the last reader releases, by a notification; new readers do not pass it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_after_readers() {
    let nodes = Nodes::start();
    let [a, b, c] = lockers(&nodes).await;
    // Ensures that all subscriptions are confirmed.
    for locker in [&a, &b, &c] {
        locker.lock("warm").await.unwrap().release().await.unwrap();
    }
    for _ in 0..5 {
        let (one, two) = (read(&a).await, read(&b).await);
        have_voted(&nodes, 2).await;
        let writer = tokio::spawn(c.write("k").ttl(TTL).into_future());
        within("the notice of the writer", one.contended()).await;
        within("the notice of the writer", two.contended()).await;
        let late = nodes.locker().await;
        eventually("new readers to be kept out", || async {
            late.try_read("k").await.unwrap().is_none()
        })
        .await;
        wait_everywhere(&nodes, 1).await;
        have_voted(&nodes, 2).await;
        let before = calls(&nodes, "publish");
        one.release().await.unwrap();
        let fence = two.fence();
        two.release().await.unwrap();
        each_notifies_once(&nodes, &before).await;
        let writer = within("the writer's turn", writer).await.unwrap().unwrap();
        assert!(writer.fence() > fence);
        writer.release().await.unwrap();
    }
    is_free(&nodes).await;
}

/// t102: readers that a writer holds back are notified when it gives up, and when its process is gone they are not held
/// back any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t102_a_writer_that_gives_up() {
    let nodes = Nodes::start();
    let [a, b, c] = lockers(&nodes).await;
    for locker in [&a, &b, &c] {
        locker.lock("warm").await.unwrap().release().await.unwrap();
    }
    let first = read(&a).await;
    have_voted(&nodes, 1).await;
    let writer = tokio::spawn(b.write("k").into_future());
    wait_everywhere(&nodes, 1).await;
    let later = tokio::spawn(c.read("k").ttl(TTL).into_future());
    wait_everywhere(&nodes, 2).await;
    let before = calls(&nodes, "publish");
    writer.abort();
    each_notifies_once(&nodes, &before).await;
    let later = within("the reader's turn", later).await.unwrap().unwrap();
    assert!(first.is_held() && later.is_held());
}

/// Waits until each node has notified one claim. A heartbeat would not do that.
async fn each_notifies_once(nodes: &Nodes, before: &[u64]) {
    let after: Vec<u64> = before.iter().map(|count| count + 1).collect();
    eventually("a message of each node", || async { calls(nodes, "publish") == after }).await;
}

/// Waits until so many claims wait at every node, and can be notified there.
async fn wait_everywhere(nodes: &Nodes, count: usize) {
    let waits = |node: &RedisServer| {
        let Reply::Many(beats) = node.client().command(&["HVALS", "tenure:beat:k"]) else {
            return false;
        };
        let pushed = |beat: &Reply| matches!(beat, Reply::Text(beat) if beat.contains(" push "));
        beats.len() == count && beats.iter().all(pushed)
    };
    eventually("them to wait everywhere", || async { nodes.0.iter().all(waits) }).await;
}

/// Waits until every node has so many votes for readers. A node that gets them late could vote for a writer first.
async fn have_voted(nodes: &Nodes, count: i64) {
    eventually("all votes", || async { votes(nodes) == [count; 5] }).await;
}

/// Votes of readers that were left on a minority of the nodes block no writer. On a majority, votes of several readers
/// that are gone block a writer until they have ended, and not longer.
#[tokio::test]
async fn votes_of_readers_that_are_left_behind() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let ttl = Duration::from_secs(2);
    for kept in [&[0, 1][..], &[2]] {
        let gone = reader(ttl);
        granted(&store, &gone).await;
        let others: Vec<_> = (0..5).filter(|node| !kept.contains(node)).collect();
        for node in others {
            let member = || {
                let entries = nodes.0[node].client().command(&["ZRANGE", LOCK, "0", "-1"]);
                let Reply::Many(entries) = entries else { panic!("{entries:?}") };
                let texts = entries.into_iter().filter_map(|entry| match entry {
                    Reply::Text(text) => Some(text),
                    _ => None,
                });
                texts.into_iter().find(|entry| entry.starts_with(&gone.token().expose()))
            };
            eventually("its vote", || async { member().is_some() }).await;
            nodes.0[node].client().command(&["ZREM", LOCK, &member().unwrap()]);
        }
        if kept == [0, 1] {
            let writer = lease(&store, "k", TTL).await;
            assert_eq!(store.release(&writer, AfterRelease::Free).await.unwrap(), Release::Freed);
            eventually("its votes to be gone", || async { votes(&nodes)[2..] == [0; 3] }).await;
        }
    }
    let start = Instant::now();
    let grant = in_time(ttl * 3, "the writer's turn", store.acquire(&claim("k", TTL))).await;
    assert!(grant.unwrap().fence > 0);
    assert!(start.elapsed() < ttl + Duration::from_secs(2), "{:?}", start.elapsed());
}

/// A22: the fence of a writer is higher than that of every reader before it, and that of a reader higher than that of
/// every writer, on whichever nodes they were granted.
#[tokio::test]
async fn fences_rise_between_readers_and_writers() {
    let nodes = Nodes::start();
    let store = nodes.connect().await;
    let mut last = 0;
    for turn in 0..30_usize {
        // Now and then one node gets a count above every proposed number, and is not reached by the next claim.
        let (ahead, away) = (turn % 5, (turn + 4) % 5);
        if turn % 3 == 0 {
            let count = (last + 40 * 256).to_string();
            nodes.0[ahead].client().command(&["SET", "tenure:fence", &count]);
        }
        nodes.0[away].pause();
        let readers = [reads(&store).await, reads(&store).await];
        for reader in &readers {
            assert!(reader.fence().server() > last, "{turn}");
        }
        last = readers.iter().map(|reader| reader.fence().server()).max().unwrap();
        for reader in &readers {
            assert_eq!(store.release(reader, AfterRelease::Free).await.unwrap(), Release::Freed);
        }
        nodes.0[away].go_on();
        is_free(&nodes).await;
        let writer = lease(&store, "k", TTL).await;
        assert!(writer.fence().server() > last, "{turn}");
        last = writer.fence().server();
        assert_eq!(store.release(&writer, AfterRelease::Free).await.unwrap(), Release::Freed);
        is_free(&nodes).await;
    }
}

/// t09, t15: two nodes that lose the votes of a reader are outvoted; when a third does, its next renewal reports the
/// loss, and no other reader's.
#[tokio::test]
async fn t15_nodes_that_forget_a_reader() {
    let nodes = Nodes::start();
    let store = patient(&nodes).await;
    let lost = reads(&store).await;
    eventually("all votes", || async { votes(&nodes) == [1; 5] }).await;
    forget_on(&nodes.0[..2]).await;
    let other = reads(&store).await;
    let both = [lost.clone(), other.clone()];
    let answers = renewals(&store, &both).await;
    let renewed = |answer: &Option<Renewal>| matches!(answer, Some(Renewal::Renewed { .. }));
    assert!(answers.iter().all(renewed), "{answers:?}");
    eventually("all votes", || async { votes(&nodes) == [1, 1, 2, 2, 2] }).await;
    nodes.0[2].client().command(&["DEL", LOCK]);
    let answers = renewals(&store, &both).await;
    assert!(matches!(answers[0], Some(Renewal::Lost(Loss::Gone))), "{answers:?}");
    assert!(renewed(&answers[1]), "{answers:?}");
    assert_eq!(votes(&nodes), [1, 1, 0, 2, 2], "a renewal brings nothing back");
}

/// t15: a node that restarts empty does not vote for a writer beside readers that it has forgotten.
#[tokio::test]
async fn t15_a_node_forgets_its_readers() {
    let nodes = Nodes::start();
    let ttl = Duration::from_secs(3);
    let holder = nodes.connect().await;
    let rival = Quorum::builder(&nodes.url()).quarantine(ttl).quorum().await.unwrap();
    let old = || async { rival.try_acquire(&claim("old", ttl)).await.is_ok() };
    eventually("the nodes to be old enough", old).await;
    // Exactly three nodes have the reader.
    nodes.0[3..].iter().for_each(RedisServer::pause);
    let claimed = reader(ttl);
    let grant = granted(&holder, &claimed).await;
    let held = Lease::new(claimed, grant, holder.clock());
    nodes.0[2..].iter().for_each(RedisServer::restart);
    let asked = claim("k", Duration::from_millis(500));
    while holder.clock().now() < held.valid_until() {
        let answer = rival.try_acquire(&asked).await;
        let in_time = holder.clock().now() < held.valid_until();
        let won = matches!(answer, Ok(Attempt::Granted(_)));
        assert!(!(won && in_time), "granted beside a reader");
    }
}

/// A late vote of a reader that has given up stays beside the votes of others, and ends with its own ttl.
#[tokio::test]
async fn a_late_vote_beside_others() {
    let nodes = Nodes::start();
    let (store, other) = (patient(&nodes).await, patient(&nodes).await);
    granted(&store, &claim("warm", TTL)).await;
    let beside = reads(&other).await;
    eventually("all votes", || async { votes(&nodes) == [1; 5] }).await;
    // The last node gets the vote after it got the release, as from a connection that was given up.
    let late = reader(Duration::from_secs(2));
    let grant = granted(&store, &late).await;
    eventually("all votes", || async { votes(&nodes) == [2; 5] }).await;
    let vote = nodes.0[4].client().command(&["ZRANGE", LOCK, "0", "0", "WITHSCORES"]);
    let Reply::Many(vote) = vote else { panic!("{vote:?}") };
    let [Reply::Text(entry), Reply::Text(end)] = &vote[..] else { panic!("{vote:?}") };
    let lease = Arc::new(Lease::new(late.clone(), grant, store.clock()));
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::Freed);
    eventually("its votes to be gone", || async { votes(&nodes) == [1; 5] }).await;
    nodes.0[4].client().command(&["ZADD", LOCK, end, entry]);
    let shown = other.inspect(&Query::Key(Key::new("k").unwrap())).await.unwrap();
    assert_eq!(shown[0].holders.len(), 1, "one vote is no hold");
    assert_eq!(other.release(&beside, AfterRelease::Free).await.unwrap(), Release::Freed);
    let grant: Grant = within("the writer's turn", other.acquire(&claim("k", TTL))).await.unwrap();
    assert!(grant.fence > 0);
}

/// B2: readers and writers of several processes that come and go all get their turns, and a writer is always alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_take_turns() {
    let nodes = Nodes::start();
    let inside = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let (locker, inside) = (nodes.locker().await, inside.clone());
        tasks.push(tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            for _ in 0..10 {
                if number < 4 {
                    let guard = locker.read("k").ttl(TTL).await.unwrap();
                    assert!(inside.fetch_add(1, SeqCst) >= 0, "a reader beside a writer");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                    guard.release().await.unwrap();
                } else {
                    let guard = locker.write("k").ttl(TTL).await.unwrap();
                    assert_eq!(inside.fetch_sub(1_000, SeqCst), 0, "a writer is alone");
                    tokio::task::yield_now().await;
                    inside.fetch_add(1_000, SeqCst);
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        in_time(Duration::from_secs(60), "everybody's turns", task).await.unwrap();
    }
    is_free(&nodes).await;
}

/// A reader that is released before its `min_hold` keeps a writer out for the rest of it, and no other reader; force
/// ends that too.
#[tokio::test]
async fn a_reader_that_is_kept_closed() {
    let nodes = Nodes::start();
    let [a, b] = lockers(&nodes).await;
    let guard = a.read("k").min_hold(Duration::from_secs(60)).await.unwrap();
    have_voted(&nodes, 1).await;
    let other = read(&b).await;
    have_voted(&nodes, 2).await;
    let token = |shown: &LockInfo, closed| {
        let holding = shown.holders.iter().find(|holding| holding.holder.cooling_down == closed);
        holding.and_then(|holding| holding.token)
    };
    guard.release().await.unwrap();
    other.release().await.unwrap();
    eventually("one closed vote on each node", || async { votes(&nodes) == [1; 5] }).await;
    assert!(b.try_write("k").await.unwrap().is_none());
    let again = read(&b).await;
    have_voted(&nodes, 2).await;
    let shown = a.inspect("k").await.unwrap().unwrap();
    let (closed, open) = (token(&shown, true).unwrap(), token(&shown, false).unwrap());
    assert_eq!(shown.holders.len(), 2);
    a.force_release("k", closed, "ann: open it").await.unwrap();
    eventually("its votes to be gone", || async { votes(&nodes) == [1; 5] }).await;
    assert!(again.is_held(), "the other one stays");
    a.force_release("k", open, "ann: stuck").await.unwrap();
    assert_eq!(within("the loss", again.lost()).await, Loss::Forced("ann: stuck".into()));
    let writer = within("the writer's turn", a.write("k").into_future()).await.unwrap();
    assert!(writer.is_held());
}

//! A slot that is moving, with keys on two nodes: operations that are done key by key.

use std::time::{Duration, Instant};

use tenure_core::{Guard, Locker, Owner};
use tenure_redis::Cluster;
use tenure_testkit::servers::proxy::{Action, Rule, Way};
use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{LONG, ask, home, keys, lock_key, locker_at, other, slot};

/// Short, so that a lock that cannot be renewed is soon lost.
const SHORT: Duration = Duration::from_secs(3);

/// Moves a single key.
fn move_key(from: &RedisServer, to: &RedisServer, key: &str) {
    let words = ["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"];
    assert_eq!(ask(from, &words), Reply::Text("OK".into()), "{key}");
}

/// Waits until `held` is renewed once more.
async fn renewed(held: &Guard) {
    let until = held.valid_until();
    eventually("a renewal", || async {
        assert!(held.is_held(), "it could not be renewed");
        held.valid_until() > until
    })
    .await;
}

/// The keys of `kind` on all nodes.
fn kept(cluster: &RedisCluster, kind: &str) -> Vec<String> {
    let all = cluster.nodes().iter().flat_map(keys);
    all.filter(|key| key.starts_with(&format!("tenure:{kind}:"))).collect()
}

/// Redis before 7.0.3 replies `ASK` as soon as any key of a script is missing, even if the lock has not moved
/// yet. The other node must neither grant the lock nor report it as lost. (A proxy sends this reply.)
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_sends_us_on_too_early() {
    let cluster = RedisCluster::start_masters();
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let proxy = cluster.proxy_before(from);
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let held = a.lock("k").ttl(SHORT).await.unwrap();
    cluster.begin_move(there, to);
    let too_early = Action::Replace(format!("-ASK {there} 127.0.0.1:{}\r\n", to.port()).into());
    proxy.rule(Rule::on(Way::Replies, too_early).containing("-TRYAGAIN"));
    assert!(b.try_lock("k").await.unwrap().is_none(), "two hold it");
    let asked = proxy.struck();
    assert!(asked > 0, "the claim was not sent on");
    renewed(&held).await;
    assert!(proxy.struck() > asked, "the renewal was not sent on");
    held.release().await.unwrap();
    b.try_lock("k").await.unwrap().expect("it is free").release().await.unwrap();
}

/// t121: fences rise while a slot moves, however far apart the clocks of its nodes are.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_while_a_slot_moves() {
    let cluster = RedisCluster::start_masters_with_clocks();
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    // Less than the time after which nodes consider each other dead.
    from.clock().set("+0.7s");
    let a = locker_at(&cluster.url()).await;
    let mut last = a.lock("k").ttl(LONG).await.unwrap().fence();
    let mut next = async |when: &str| {
        let guard = within("a lock", a.lock("k").ttl(LONG).into_future()).await.unwrap();
        assert!(guard.fence() > last, "{when}: {:?} after {last:?}", guard.fence());
        last = guard.fence();
        guard.release().await.unwrap();
    };
    next("before").await;
    cluster.begin_move(there, to);
    next("the lock is on the other node, its fence is not").await;
    cluster.move_keys(there, to);
    next("all is on the other node").await;
    cluster.end_move(there, to);
    next("after").await;
}

/// t121: a node that does not reply costs no lock of another node, even if a slot of that node is moving to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_that_a_slot_moves_to() {
    let cluster = RedisCluster::start_masters();
    // A request that waits for a connection to that node waits for longer than the ttl of a lock.
    let builder = Cluster::builder(&cluster.url()).connect_timeout(SHORT + Duration::from_secs(1));
    let a = Locker::new(builder.cluster().await.unwrap());
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let is_beside =
        |key: &String| slot(&cluster, key) != there && home(&cluster, key).port() == from.port();
    let beside = (0..).map(|n| format!("beside:{n}")).find(is_beside).unwrap();
    let (moved, kept) =
        (a.lock("k").ttl(LONG).await.unwrap(), a.lock(&beside).ttl(SHORT).await.unwrap());
    renewed(&kept).await;
    cluster.begin_move(there, to);
    cluster.move_keys(there, to);
    to.pause();
    // All leases are renewed together after a reconnect.
    ask(from, &["CLIENT", "KILL", "TYPE", "normal"]);
    let paused = Instant::now();
    while paused.elapsed() < SHORT * 2 {
        assert!(kept.is_held(), "it was not renewed in time");
        lapse(Duration::from_millis(20)).await;
    }
    to.go_on();
    kept.release().await.unwrap();
    moved.release().await.unwrap();
}

/// The lock of a shared owner is renewed in a moving slot, wherever its keys are.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_owner_is_renewed() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let held = a.lock("k").owner(Owner::shared("run-7")).ttl(SHORT).await.unwrap();
    cluster.begin_move(there, to);
    renewed(&held).await;
    renewed(&held).await;
    move_key(from, to, &lock_key("k"));
    renewed(&held).await;
    renewed(&held).await;
    cluster.move_keys(there, to);
    renewed(&held).await;
    cluster.end_move(there, to);
    renewed(&held).await;
    held.release().await.unwrap();
}

/// A wait that is dropped while its slot moves leaves nothing in the queue, wherever the queue is.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (there, to) = (slot(&cluster, "k"), other(&cluster, "k"));
    let held = a.lock("k").ttl(LONG).await.unwrap();
    for moved in [false, true] {
        let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
        eventually("b to wait", || async { !kept(&cluster, "beat").is_empty() }).await;
        cluster.begin_move(there, to);
        if moved {
            cluster.move_keys(there, to);
        }
        waiting.abort();
        eventually("its queue entry and its heartbeat to go", || async {
            kept(&cluster, "queue").is_empty() && kept(&cluster, "beat").is_empty()
        })
        .await;
        if !moved {
            for node in cluster.nodes() {
                ask(node, &["CLUSTER", "SETSLOT", &there.to_string(), "STABLE"]);
            }
        }
    }
    held.release().await.unwrap();
}

/// If a key disappears while a script runs in a moving slot, as by expiry, the claim is not refused, and the
/// wait continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_goes_under_a_script() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait", || async { !kept(&cluster, "beat").is_empty() }).await;
    // The state after a hand-over that stopped half-way: b holds the lock and is still in the queue, which
    // its next heartbeat deletes. With all keys present, the whole script runs.
    let queue = kept(&cluster, "queue").remove(0);
    ask(from, &["ZADD", &queue.replace(":queue:", ":holders:"), "1", "x"]);
    let Reply::Many(entries) = ask(from, &["ZRANGE", &queue, "0", "-1"]) else { panic!("a queue") };
    let [Reply::Text(entry)] = &entries[..] else { panic!("{entries:?}") };
    cluster.begin_move(there, to);
    let value = format!("-t1:{}:{}:1:::", &entry[33..49], &entry[..32]);
    ask(from, &["SET", &lock_key("k"), &value, "PX", "60000"]);
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    drop(held);
    next.release().await.unwrap();
}

/// t122: a runtime that stops while it asks the nodes for the slot map does not block discovery on another runtime: a
/// failover is followed, and a lock is acquired.
#[test]
fn a_runtime_that_stands_still() {
    let cluster = RedisCluster::start();
    let new = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (still, other) = (new(), new());
    let builder = Cluster::builder(&cluster.url()).connect_timeout(Duration::from_secs(4));
    let builder = builder.response_timeout(Duration::from_millis(200));
    let locker = Locker::new(still.block_on(builder.cluster()).unwrap());
    still.block_on(async { locker.lock("k").await.unwrap().release().await.unwrap() });
    let before = home(&cluster, "k");
    cluster.nodes().iter().for_each(RedisServer::pause);
    // The request times out. The client then asks the nodes for the slot map for as long as a connection may
    // take, and is stopped in the middle of that.
    let asking = still.spawn(locker.try_lock("k").into_future());
    still.block_on(lapse(Duration::from_secs(2)));
    before.kill();
    cluster.nodes().iter().filter(|node| node.port() != before.port()).for_each(RedisServer::go_on);
    let next = async {
        while !matches!(locker.try_lock("{tenure:lock:k}").await, Ok(Some(_))) {
            lapse(Duration::from_millis(100)).await;
        }
    };
    other.block_on(within("a lock at the new master", next));
    assert!(!asking.is_finished());
}

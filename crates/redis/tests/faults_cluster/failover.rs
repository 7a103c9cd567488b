//! Masters that are replaced: held locks, waits and losses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_core::backend::Loss;
use tenure_testkit::servers::{RedisCluster, RedisServer};
use tenure_testkit::wait::{eventually, eventually_blocking, lapse, within};

use crate::support::{LONG, ask, home, lock, locker_at, one_waits, other, slot};

/// How much later than the nodes we may be.
const LATE: Duration = Duration::from_secs(1);

/// C3, t37: in a manual failover held locks stay held, and waiters wait at the new master.
#[tokio::test(flavor = "multi_thread")]
async fn t37_a_failover_by_hand() {
    let cluster = RedisCluster::start();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    let before = home(&cluster, "k");
    eventually("b to wait", || async { one_waits(before, "k") }).await;
    let after = tokio::task::block_in_place(|| cluster.fail_over(before));
    eventually("b to wait there", || async { one_waits(after, "k") }).await;
    assert!(held.is_held());
    let fence = held.fence();
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert!(next.fence() > fence && lock(after, "k").is_some());
    next.release().await.unwrap();
    assert_eq!(lock(after, "k"), None);
}

/// t37: a dead master does not affect the locks of the other nodes: they are acquired, renewed and released
/// all the time, while it is dead and while it is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn t37_the_others_go_on() {
    let cluster = RedisCluster::start();
    let a = locker_at(&cluster.url()).await;
    let (dead, alive) = (home(&cluster, "k"), other(&cluster, "k"));
    let name =
        (0..).map(|n| format!("k:{n}")).find(|name| home(&cluster, name).port() == alive.port());
    let name = name.unwrap();
    let ttl = Duration::from_secs(3);
    let (lost, kept) = (a.lock("k").ttl(ttl).await.unwrap(), a.lock(&name).ttl(ttl).await.unwrap());
    // In the same slot.
    let another = format!("{{tenure:lock:{name}}}:1");
    dead.kill();
    let (killed, mut longest) = (Instant::now(), Duration::ZERO);
    while killed.elapsed() < ttl * 2 {
        let asked = Instant::now();
        a.lock(&another).await.unwrap().release().await.unwrap();
        longest = longest.max(asked.elapsed());
        assert!(kept.is_held(), "a dead node delays the renewals of another");
        lapse(Duration::from_millis(20)).await;
    }
    println!("longest lock and release at another node: {longest:.2?}");
    drop(lost);
    let after = tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), dead));
    let next = within("a lock of the dead", a.lock("k").into_future()).await.unwrap();
    assert!(lock(after, "k").is_some());
    next.release().await.unwrap();
    kept.release().await.unwrap();
}

/// t07: a master dies with a lock that its replica does not have. Its holder is notified as soon as there is
/// a new master, and the next holder's fence is higher.
#[tokio::test(flavor = "multi_thread")]
async fn t07_a_lock_that_no_replica_has() {
    let cluster = RedisCluster::start();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let before = home(&cluster, "k");
    tokio::task::block_in_place(|| cut_off_replica(&cluster, before));
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let fence = held.fence();
    before.kill();
    tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), before));
    let replaced = Instant::now();
    assert_eq!(within("the loss", held.lost()).await, Loss::Gone);
    println!("noticed {:.2?} after there was a new master", replaced.elapsed());
    assert!(replaced.elapsed() < LATE, "{:?}", replaced.elapsed());
    let next = within("b's turn", b.lock("k").ttl(LONG).into_future()).await.unwrap();
    assert!(next.fence() > fence);
    assert!(held.release().await.is_err());
    next.release().await.unwrap();
}

/// Disconnects the replica of `master`, so that no later write reaches it. It can still be promoted.
pub(crate) fn cut_off_replica(cluster: &RedisCluster, master: &RedisServer) {
    ask(cluster.replica_of(master), &["CONFIG", "SET", "masterauth", "wrong"]);
    eventually_blocking("the replica to be cut off", || {
        ask(master, &["CLIENT", "KILL", "TYPE", "replica"]);
        format!("{:?}", ask(master, &["INFO", "replication"])).contains("connected_slaves:0")
    });
}

/// t08: with `replicas`, a lock that a replica has survives the death of its master, and a lock that no
/// replica has is not granted.
#[tokio::test(flavor = "multi_thread")]
async fn t08_replicas() {
    let cluster = RedisCluster::start();
    let url = format!("{}?replicas=1", cluster.url());
    let (a, b) = (locker_at(&url).await, locker_at(&cluster.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let before = home(&cluster, "k");
    before.kill();
    tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), before));
    eventually("an answer of the new master", || async {
        matches!(b.try_lock("k").await, Ok(None))
    })
    .await;
    assert!(held.is_held());
    held.release().await.unwrap();
    let few = a.lock("k").ttl(LONG).await.unwrap_err();
    assert!(few.is_unavailable() && format!("{few:?}").contains("0 of 1 replicas"), "{few:?}");
}

/// t15: a master restarts empty before it is considered dead: its locks are lost at once.
#[tokio::test(flavor = "multi_thread")]
async fn t15_a_master_that_comes_back_empty() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let fence = held.fence();
    tokio::task::block_in_place(|| {
        home(&cluster, "k").restart();
        // Until then the node replies that the cluster is down.
        cluster.wait_until_whole();
    });
    let back = Instant::now();
    assert_eq!(within("the loss", held.lost()).await, Loss::Gone);
    println!("noticed {:.2?} after it was back", back.elapsed());
    // A renewal without a reply is repeated after a second.
    assert!(back.elapsed() < LATE * 2, "{:?}", back.elapsed());
    let next = within("a lock", a.lock("k").into_future()).await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

/// A cluster that is down because one master is missing is reported as unavailable, and a wait continues
/// until it is back; no lock is lost because of it.
#[tokio::test(flavor = "multi_thread")]
async fn clusterdown_is_waited_for() {
    let cluster = RedisCluster::start();
    let nodes = cluster.nodes().iter();
    nodes.for_each(|node| {
        ask(node, &["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    });
    let a = locker_at(&cluster.url()).await;
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let dead = other(&cluster, "k");
    let replica = cluster.replica_of(dead);
    replica.kill();
    dead.kill();
    let home = home(&cluster, "k");
    eventually("the cluster to be down", || async {
        format!("{:?}", ask(home, &["CLUSTER", "INFO"])).contains("cluster_state:fail")
    })
    .await;
    let refused = a.try_lock("free").await;
    assert!(refused.is_err_and(|error| error.is_unavailable()));
    let waiting = tokio::spawn(a.lock("k:2").into_future());
    assert!(held.is_held());
    dead.restart();
    replica.restart();
    let next = within("a lock", waiting).await.unwrap().unwrap();
    // Not all nodes know at the same time.
    tokio::task::block_in_place(|| cluster.wait_until_whole());
    next.release().await.unwrap();
    assert!(held.is_held());
    held.release().await.unwrap();
}

/// Locks and releases `key` until `over` is set, and then once more. Returns the longest pause between two locks.
async fn lock_again_and_again(a: Locker, key: String, over: Arc<AtomicBool>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    loop {
        let is_over = over.load(Ordering::Relaxed);
        let Ok(guard) = a.lock(&key).ttl(LONG).await else { continue };
        longest = longest.max(last.elapsed());
        last = Instant::now();
        let _ = guard.release().await;
        if is_over {
            return longest;
        }
    }
}

/// The longest time that a key could not be locked while `deed` ran on its master, and the time until all
/// nodes knew the new master. No key may stay locked for its ttl.
async fn longest_pause(deed: impl FnOnce(&RedisCluster, &RedisServer)) -> Pause {
    let cluster = RedisCluster::start();
    let (a, over) = (locker_at(&cluster.url()).await, Arc::new(AtomicBool::new(false)));
    // All in one slot.
    let busy =
        |n| tokio::spawn(lock_again_and_again(a.clone(), format!("{{k}}:{n}"), over.clone()));
    let busy: Vec<_> = (0..8).map(busy).collect();
    let (master, begun) = (home(&cluster, "{k}:0"), Instant::now());
    tokio::task::block_in_place(|| deed(&cluster, master));
    let nodes = begun.elapsed();
    let b = locker_at(&cluster.url()).await;
    within("a lock", b.lock("{k}:other").into_future()).await.unwrap().release().await.unwrap();
    over.store(true, Ordering::Relaxed);
    let mut longest = Duration::ZERO;
    for one in busy {
        longest = longest.max(within("the end", one).await.unwrap());
    }
    Pause { longest, nodes }
}

#[derive(Debug)]
struct Pause {
    longest: Duration,
    nodes: Duration,
}

impl Pause {
    /// Fails if the clients added more than a little to the time of the nodes.
    fn check(&self, what: &str) {
        println!("{what}: {self:.2?}");
        assert!(self.longest < self.nodes + LATE, "{what}: {self:?}");
    }
}

/// Recovery: a manual failover, the death of a master and the move of a slot stop clients hardly longer than
/// the nodes themselves need. The nodes consider another dead after a second here.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_after_each_kind_of_failover() {
    let by_hand = longest_pause(|cluster, master| {
        cluster.fail_over(master);
    });
    by_hand.await.check("by hand");
    let by_death = |deed: fn(&RedisServer)| {
        move |cluster: &RedisCluster, master: &RedisServer| {
            deed(master);
            cluster.wait_for_another(slot(cluster, "{k}:0"), master);
        }
    };
    longest_pause(by_death(RedisServer::kill)).await.check("killed");
    longest_pause(by_death(RedisServer::pause)).await.check("stopped");
    let moved = longest_pause(|cluster, _| {
        cluster.move_slot(slot(cluster, "{k}:0"), other(cluster, "{k}:0"));
    });
    moved.await.check("moved");
}

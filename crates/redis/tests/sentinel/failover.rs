//! Following a failover: what is held, what is waited for, what is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_core::backend::Loss;
use tenure_testkit::servers::{RedisServer, SentinelSet};
use tenure_testkit::wait::{eventually, in_time, pass, within};

use crate::support::{LONG, ask, clients, cut_off_replicas, is_master, lock, locker_at, waiters};

/// How soon a new master is used, and a loss is told: about 0.2 s, and longer on a busy machine.
const SOON: Duration = Duration::from_millis(1_500);

/// t38: a failover by hand, with the former master in good health: what is held stays held, who waits
/// waits at the new master, and nobody of ours stays with the former one.
#[tokio::test(flavor = "multi_thread")]
async fn t38_a_failover_by_hand() {
    let set = SentinelSet::start();
    let (a, b) = (locker_at(&set.url()).await, locker_at(&set.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    let before = set.master();
    eventually("b to wait", || async { waiters(before, "k") == 1 }).await;
    tokio::task::block_in_place(|| set.begin_failover());
    let other = set.nodes().iter().filter(|node| node.port() != before.port());
    let others: Vec<_> = other.collect();
    eventually("b to wait at another", || async {
        // A replica has the queue as well; only a master is asked.
        others.iter().any(|node| is_master(node) && clients(node) > 1 && waiters(node, "k") == 1)
    })
    .await;
    // Nobody has told it yet, for about ten seconds: it would have gone on granting.
    assert!(is_master(before));
    let other = a.lock("other").await.unwrap();
    assert!(lock(before, "other").is_none() && is_master(before));
    other.release().await.unwrap();
    let after = tokio::task::block_in_place(|| set.wait_for_another(before.port()));
    eventually("all to have left", || async { clients(before) == 0 }).await;
    assert!(held.is_held());
    let fence = held.fence();
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert!(next.fence() > fence);
    assert!(lock(after, "k").is_some(), "the lock is the new master's");
    next.release().await.unwrap();
    assert_eq!(lock(after, "k"), None);
}

/// Failovers one after the other, there and back: a lock is had after each, and one lock is held through
/// all of them.
#[tokio::test(flavor = "multi_thread")]
async fn failovers_in_a_row() {
    let set = SentinelSet::start();
    let a = locker_at(&set.url()).await;
    let kept = a.lock("kept").ttl(LONG).await.unwrap();
    let mut fence = a.lock("k").await.unwrap().fence();
    for _ in 0..3 {
        tokio::task::block_in_place(|| {
            set.fail_over();
            set.wait_until_whole();
        });
        let guard = within("a lock", a.lock("k").into_future()).await.unwrap();
        assert!(guard.fence() > fence && kept.is_held());
        fence = guard.fence();
        guard.release().await.unwrap();
    }
    kept.release().await.unwrap();
}

/// t07: a master dies with a lock that no replica has: its holder is told as soon as there is a new
/// master, and the next holder's fence is higher.
#[tokio::test(flavor = "multi_thread")]
async fn t07_a_lock_that_no_replica_has() {
    let set = SentinelSet::start();
    let (a, b) = (locker_at(&set.url()).await, locker_at(&set.url()).await);
    let before = set.master();
    tokio::task::block_in_place(|| cut_off_replicas(&set));
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let fence = held.fence();
    before.kill();
    tokio::task::block_in_place(|| set.wait_for_another(before.port()));
    // Long before the next renewal, which is a third of the ttl after the grant.
    assert_eq!(in_time(SOON, "the loss", held.lost()).await, Loss::Gone);
    let next = within("b's turn", b.lock("k").ttl(LONG).into_future()).await.unwrap();
    assert!(next.fence() > fence);
    assert!(held.release().await.is_err());
    next.release().await.unwrap();
}

/// t38: a master that stands still is left for another; when it goes on, it is a replica, and what it
/// was asked before is not taken for an answer.
#[tokio::test(flavor = "multi_thread")]
async fn t38_a_master_that_stands_still() {
    let set = SentinelSet::start();
    let (a, b) = (locker_at(&set.url()).await, locker_at(&set.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let before = set.master();
    // So that it is on the replicas for sure.
    ask(before, &["WAIT", "2", "10000"]);
    before.pause();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    let after = tokio::task::block_in_place(|| set.wait_for_another(before.port()));
    eventually("b to wait there", || async { waiters(after, "k") == 1 }).await;
    before.go_on();
    eventually("it to be a replica", || async { !is_master(before) }).await;
    eventually("all to have left", || async { clients(before) == 0 }).await;
    assert!(held.is_held());
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert!(lock(after, "k").is_some());
    next.release().await.unwrap();
}

/// An application that blocks its runtime loses nothing by a failover: the locker's own thread hears of
/// it, and renews at the new master.
#[tokio::test]
async fn a_blocked_application_follows() {
    let set = SentinelSet::start();
    let a = locker_at(&set.url()).await;
    let ttl = Duration::from_secs(6);
    let held = a.lock("k").ttl(ttl).await.unwrap();
    let granted_until = held.valid_until();
    // So that its connection leads to the former master.
    eventually("a renewal", || async { held.valid_until() > granted_until }).await;
    // Nothing from here on gives the runtime a turn.
    let after = set.fail_over();
    pass(ttl + Duration::from_secs(1));
    assert!(held.is_held(), "it was renewed meanwhile");
    assert!(lock(after, "k").is_some());
    held.release().await.unwrap();
}

/// t15: a master that comes back empty before anybody takes it for dead: its locks are lost at once.
#[tokio::test(flavor = "multi_thread")]
async fn t15_a_master_that_comes_back_empty() {
    let set = SentinelSet::start_small();
    let a = locker_at(&set.url()).await;
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let fence = held.fence();
    tokio::task::block_in_place(|| set.master().restart());
    assert_eq!(in_time(SOON, "the loss", held.lost()).await, Loss::Gone);
    let next = within("a lock", a.lock("k").into_future()).await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap();
}

/// Locks and releases `key` until it is over, and then once more. The longest pause between two.
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

/// What `deed` cost those who lock.
#[derive(Debug)]
struct Cost {
    /// How long a key could not be locked: the longest of several.
    pause: Duration,
    /// How long it took after `deed` until every key had been locked once more.
    after: Duration,
}

/// Locks and releases several keys all the time while `deed` is done, also at the former master; none may stay closed
/// for its ttl.
async fn cost_of(set: &SentinelSet, deed: impl FnOnce(&SentinelSet)) -> Cost {
    let (a, over) = (locker_at(&set.url()).await, Arc::new(AtomicBool::new(false)));
    let busy = |n| tokio::spawn(lock_again_and_again(a.clone(), format!("k:{n}"), over.clone()));
    let busy: Vec<_> = (0..8).map(busy).collect();
    tokio::task::block_in_place(|| deed(set));
    let done = Instant::now();
    over.store(true, Ordering::Relaxed);
    let mut pause = Duration::ZERO;
    for one in busy {
        pause = pause.max(within("a lock after the deed", one).await.unwrap());
    }
    Cost { pause, after: done.elapsed() }
}

/// Recovery: what a failover costs those who lock, by hand and by death. As soon as the Sentinels name the new master,
/// every key can be locked there. The Sentinels of these tests take a server for dead after a second.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_after_each_kind_of_failover() {
    let by_death = |deed: fn(&RedisServer)| {
        move |set: &SentinelSet| {
            let before = set.master();
            deed(before);
            set.wait_for_another(before.port());
        }
    };
    let by_hand = |set: &SentinelSet| {
        set.fail_over();
    };
    let costs = [
        ("by hand", cost_of(&SentinelSet::start(), by_hand).await),
        ("killed", cost_of(&SentinelSet::start(), by_death(RedisServer::kill)).await),
        ("stopped", cost_of(&SentinelSet::start(), by_death(RedisServer::pause)).await),
    ];
    for (how, cost) in costs {
        println!("{how}: {cost:.2?}");
        assert!(cost.after < SOON, "{how}: {cost:?}");
    }
}

/// A Sentinel that dies and comes back costs nobody a lock: no other server becomes the master by that,
/// and whoever locks hardly notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_dies() {
    let set = SentinelSet::start();
    let before = set.master().port();
    let cost = cost_of(&set, |set| {
        set.sentinels()[1].kill();
        pass(Duration::from_secs(2));
        set.sentinels()[1].restart();
        set.wait_until_whole();
    });
    let cost = cost.await;
    println!("a Sentinel killed, and back: {cost:.2?}");
    assert_eq!(set.master().port(), before);
    assert!(cost.pause < Duration::from_secs(2), "{cost:?}");
}

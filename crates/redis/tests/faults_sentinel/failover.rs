//! Following a failover: held locks, waits and losses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_core::Locker;
use tenure_core::backend::Loss;
use tenure_testkit::servers::{RedisServer, SentinelSet};
use tenure_testkit::wait::{eventually, in_time, pass, within};

use crate::support::{LONG, ask, clients, cut_off_replicas, is_master, lock, locker_at, waiters};

/// How soon a new master is used, and a loss is reported: about 0.2 s, and longer on a busy machine.
const SOON: Duration = Duration::from_millis(1_500);

/// C2, t38: a manual failover, with the former master in good health. Held locks stay held, waiters wait at the new
/// master, and no connection of ours stays with the former master.
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
        // A replica has the queue as well, but only a master gets requests.
        others.iter().any(|node| is_master(node) && clients(node) > 1 && waiters(node, "k") == 1)
    })
    .await;
    // The former master does not learn of the failover for about ten seconds, and could grant locks until then.
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

/// After each of several failovers in a row a lock can be acquired, and one lock is held through all of them.
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

/// t07: a master dies with a lock that no replica has. Its holder is notified as soon as there is a new
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

/// t86: a failover loses two permits that no replica has. Others may get them at once; each holder learns of its loss
/// as soon as there is a new master, all fences differ, and later ones are higher.
#[tokio::test(flavor = "multi_thread")]
async fn t86_a_failover_loses_permits() {
    let set = SentinelSet::start();
    let (a, b) = (locker_at(&set.url()).await, locker_at(&set.url()).await);
    let (before, old, new) = (set.master(), a.semaphore("k", 2), b.semaphore("k", 2));
    tokio::task::block_in_place(|| cut_off_replicas(&set));
    let lost = [old.acquire().ttl(LONG).await.unwrap(), old.acquire().ttl(LONG).await.unwrap()];
    before.kill();
    tokio::task::block_in_place(|| set.wait_for_another(before.port()));
    for permit in &lost {
        assert_eq!(in_time(SOON, "the loss", permit.lost()).await, Loss::Gone);
    }
    let next = [
        within("a permit", new.acquire().ttl(LONG).into_future()).await.unwrap(),
        within("a permit", new.acquire().ttl(LONG).into_future()).await.unwrap(),
    ];
    assert!(lost[0].fence().max(lost[1].fence()) < next[0].fence());
    assert!(lost[0].fence() != lost[1].fence() && next[0].fence() < next[1].fence());
    assert!(old.try_acquire().await.unwrap().is_none(), "the capacity is kept again");
    for permit in lost {
        assert!(permit.release().await.is_err_and(|error| error.is_lost()));
    }
    assert!(next.iter().all(|permit| permit.is_held()), "a late release hits nobody");
}

/// t38: clients leave a paused master for the new one. When it resumes it becomes a replica, and no
/// connection of ours stays with it.
#[tokio::test(flavor = "multi_thread")]
async fn t38_a_master_that_stands_still() {
    let set = SentinelSet::start();
    let (a, b) = (locker_at(&set.url()).await, locker_at(&set.url()).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let before = set.master();
    // Ensures that the replicas have the lock.
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

/// t122: an application that blocks its runtime loses no lock in a failover: the locker's own thread notices the
/// failover and renews at the new master.
#[tokio::test]
async fn a_blocked_application_follows() {
    let set = SentinelSet::start();
    let a = locker_at(&set.url()).await;
    let ttl = Duration::from_secs(6);
    let held = a.lock("k").ttl(ttl).await.unwrap();
    let granted_until = held.valid_until();
    // Ensures that the connection for renewals leads to the former master.
    eventually("a renewal", || async { held.valid_until() > granted_until }).await;
    // From here on nothing yields to the runtime.
    let after = set.fail_over();
    pass(ttl + Duration::from_secs(1));
    assert!(held.is_held(), "it was renewed meanwhile");
    // The lock is where the Sentinels say now: they may have changed their minds since.
    let now = set.master();
    assert!(lock(now, "k").is_some(), "master {}, after the failover {}", now.port(), after.port());
    held.release().await.unwrap();
}

/// t15: a master restarts empty before it is considered dead: its locks are lost at once.
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

/// What `deed` cost the clients.
#[derive(Debug)]
struct Cost {
    /// How long a key could not be locked: the longest time of all keys.
    pause: Duration,
    /// The time after `deed` until every key had been locked once more.
    after: Duration,
}

/// Locks and releases several keys all the time while `deed` runs, also at the former master. No key may stay
/// locked for its ttl.
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

/// Recovery: as soon as the Sentinels name the new master, every key can be locked there, after a manual
/// failover and after the death of a master. The Sentinels of these tests consider a server dead after a second.
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

/// A Sentinel that dies and restarts causes no failover and costs no lock, and locking pauses for less than
/// two seconds.
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

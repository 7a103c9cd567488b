//! The load under which the driver's own cluster client dead-locked: many tasks, and failovers all the time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{Fence, Locker};
use tenure_testkit::servers::RedisCluster;
use tenure_testkit::wait::{pass, within};

use crate::support::{LONG, locker_at, other, slot};

const TASKS: usize = 256;
const KEYS: usize = 64;
const FAILOVERS: usize = 8;
const MOVES: usize = 12;

/// What the tasks know of the keys: whether one is held, and its highest fence so far.
#[derive(Default)]
struct Register {
    keys: Mutex<HashMap<String, Seen>>,
    cycles: AtomicU64,
    errors: AtomicU64,
}

#[derive(Default)]
struct Seen {
    inside: bool,
    fence: Option<Fence>,
}

impl Register {
    fn enter(&self, key: &str, fence: Fence) {
        let mut keys = self.keys.lock().unwrap();
        let seen = keys.entry(key.into()).or_default();
        assert!(!seen.inside, "two hold `{key}`");
        assert!(seen.fence.is_none_or(|last| last < fence), "the fence of `{key}` went back");
        *seen = Seen { inside: true, fence: Some(fence) };
    }

    fn leave(&self, key: &str) {
        self.keys.lock().unwrap().entry(key.into()).or_default().inside = false;
        self.cycles.fetch_add(1, Ordering::Relaxed);
    }
}

impl Register {
    /// An unknown result is allowed while a master is paused; a loss is not, because a manual failover loses nothing.
    fn fail(&self, what: &str, error: &tenure_core::Error) {
        println!("{what}: {error:?}");
        assert!(!error.is_lost(), "{what}: {error:?}");
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

async fn work(
    locker: Locker,
    number: usize,
    name: fn(usize) -> String,
    register: Arc<Register>,
    over: Arc<AtomicBool>,
) {
    let mut turn = number;
    while !over.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(31).wrapping_add(17);
        let key = name(turn);
        match locker.lock(&key).ttl(LONG).await {
            Ok(guard) => {
                register.enter(&key, guard.fence());
                tokio::task::yield_now().await;
                register.leave(&key);
                if let Err(error) = guard.release().await {
                    register.fail("release", &error);
                }
            }
            Err(error) => register.fail("lock", &error),
        }
    }
}

/// Runs `tasks` tasks of four processes while `deed` runs. Returns how often they acquired a lock.
async fn storm(
    cluster: &RedisCluster,
    tasks: usize,
    name: fn(usize) -> String,
    deed: impl FnOnce(),
) -> u64 {
    let (register, over) = (Arc::<Register>::default(), Arc::<AtomicBool>::default());
    let mut lockers = Vec::new();
    for _ in 0..4 {
        lockers.push(locker_at(&cluster.url()).await);
    }
    let work = |n: usize| work(lockers[n % 4].clone(), n, name, register.clone(), over.clone());
    let tasks: Vec<_> = (0..tasks).map(|n| tokio::spawn(work(n))).collect();
    tokio::task::block_in_place(deed);
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        within("a task to end", task).await.unwrap();
    }
    let (cycles, errors) = (&register.cycles, &register.errors);
    println!("{cycles:?} cycles, {errors:?} errors");
    cycles.load(Ordering::Relaxed)
}

/// t37: with 256 tasks of four processes and 8 failovers, no reply is mixed up, no key has two holders,
/// fences rise, and all tasks end.
#[tokio::test(flavor = "multi_thread")]
async fn t37_a_storm_of_failovers() {
    let cluster = RedisCluster::start();
    let fail_over = || {
        for number in 0..FAILOVERS {
            let masters = cluster.masters();
            cluster.fail_over(masters[number % masters.len()]);
        }
    };
    let cycles = storm(&cluster, TASKS, |turn| format!("k:{}", turn % KEYS), fail_over).await;
    assert!(cycles > 1_000);
}

/// t36: the same while the slot moves back and forth between nodes whose clocks are half a second apart.
#[tokio::test(flavor = "multi_thread")]
async fn t36_a_storm_of_moves() {
    let cluster = RedisCluster::start_masters_with_clocks();
    let there = slot(&cluster, "{k}:0");
    cluster.owner(there).clock().set("+0.5s");
    let to_and_fro = || {
        for _ in 0..MOVES {
            cluster.begin_move(there, other(&cluster, "{k}:0"));
            // Some locks are on either node.
            pass(Duration::from_millis(200));
            cluster.move_slot(there, other(&cluster, "{k}:0"));
        }
    };
    let cycles = storm(&cluster, 16, |turn| format!("{{k}}:{}", turn % 4), to_and_fro).await;
    assert!(cycles > 100);
}

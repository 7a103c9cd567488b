//! Many waiters, many locks, and runtimes that end.

use std::time::{Duration, Instant};

use tenure_core::{Guard, Locker};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, eventually_blocking, lapse, within};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::support::{clients, get, locker, requests, size};

/// t48: a thousand waiters in ten processes: the server is asked by ten, each at least once in a while
/// and at most at its interval, and everybody is served when the lock is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t48_a_thousand_waiters() {
    const PROCESSES: u64 = 10;
    let server = RedisServer::start();
    let holder = locker(&server).await.lock("k").await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..PROCESSES {
        let process = locker(&server).await;
        for _ in 0..100 {
            let request = process.lock("k").retry_interval(Duration::from_millis(100));
            waiters.spawn(async move { request.await.unwrap().release().await.unwrap() });
        }
    }
    lapse(Duration::from_secs(1)).await;
    let (before, since) = (requests(&server), Instant::now());
    lapse(Duration::from_secs(2)).await;
    let asked = requests(&server) - before;
    // A process that polls asks ten times a second (the jitter may halve an interval); one that
    // queues says every second that it is still there.
    let most = PROCESSES * 20 * (since.elapsed().as_millis() as u64).div_ceil(1_000);
    let least = PROCESSES;
    assert!((least..=most).contains(&asked), "{asked} requests, at most {most}");
    holder.release().await.unwrap();
    while let Some(served) = within("everybody's turn", waiters.join_next()).await {
        served.unwrap();
    }
    assert_eq!(size(&server), 1, "only the fence is left");
}

/// t49: ten thousand locks are kept on two connections, their renewals spread over time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t49_ten_thousand_locks() {
    const LOCKS: u64 = 10_000;
    let server = RedisServer::start();
    let a = Locker::new(tenure_redis::Redis::connect(&server.url()).await.unwrap());
    let ttl = Duration::from_secs(15);
    let mut asking = JoinSet::new();
    for number in 0..LOCKS {
        asking.spawn(a.lock(format!("k{number}")).ttl(ttl).into_future());
    }
    let granted = within("all locks", asking.join_all()).await;
    let guards: Vec<Guard> = granted.into_iter().map(Result::unwrap).collect();
    // Two periods, looked at in steps.
    let (mut last, mut bursts) = (requests(&server), Vec::new());
    let start = Instant::now();
    while start.elapsed() < ttl * 2 / 3 {
        lapse(Duration::from_millis(100)).await;
        let now = requests(&server);
        bursts.push(now - last);
        last = now;
    }
    assert!(guards.iter().all(Guard::is_held));
    let (renewals, largest) = (bursts.iter().sum::<u64>(), bursts.iter().max().copied());
    assert!(renewals >= LOCKS, "{renewals} renewals");
    assert!(largest < Some(LOCKS / 2), "{largest:?} renewals in a tenth of a second");
    assert_eq!(clients(&server), 2, "commands and renewals");
    let report = a.shutdown(Duration::ZERO).await;
    assert_eq!((report.released, report.unreleased.len()), (10_000, 0));
    eventually("nothing but the fence", || async { size(&server) == 1 }).await;
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// t51: guards and waiters that live in tasks go down with their runtime, without a panic or a hang,
/// and the locks are freed.
#[test]
fn t51_guards_inside_a_runtime_that_ends() {
    let server = RedisServer::start();
    for background in [false, true] {
        let runtime = runtime();
        let a = runtime.block_on(async {
            let (a, b) = (locker(&server).await, locker(&server).await);
            for number in 0..8 {
                let guard = a.lock(format!("k{number}")).await.unwrap();
                tokio::spawn(async move { guard.lost().await });
                tokio::spawn(b.lock(format!("k{number}")).into_future());
            }
            a
        });
        match background {
            true => runtime.shutdown_background(),
            false => drop(runtime),
        }
        drop(a);
        eventually_blocking("the locks to be freed", || size(&server) == 1);
    }
}

/// t51: a guard outlives its runtime; `shutdown` on another one frees it.
#[test]
fn t51_shutdown_after_the_runtime_has_ended() {
    let server = RedisServer::start();
    let first = runtime();
    let (a, guard) = first.block_on(async {
        let a = locker(&server).await;
        let guard = a.lock("k").await.unwrap();
        (a, guard)
    });
    drop(first);
    let report = runtime().block_on(async { a.shutdown(Duration::from_millis(10)).await });
    assert_eq!((report.released, report.unreleased.len()), (1, 0));
    assert!(!guard.is_held());
    assert_eq!(get(&server, "tenure:lock:k"), None);
}

/// t52: a panic in a task that holds the lock frees it on the way out.
#[tokio::test]
async fn t52_a_panic_releases() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let held = a.lock("k").ttl(Duration::from_secs(300)).await.unwrap();
    let panicked = tokio::spawn(async move {
        let _held = held;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert!(within("the lock", b.lock("k").into_future()).await.unwrap().is_held());
}

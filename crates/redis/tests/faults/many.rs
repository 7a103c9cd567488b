//! Many waiters, many locks, and runtimes that end.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use tenure_core::{Guard, HeldMode, Locker, Permit, ReadGuard};
use tenure_redis::Redis;
use tenure_testkit::servers::proxy::{Action, Rule, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, eventually_blocking, lapse, within};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::support::{BEATS, calls, clients, entries, get, locker, proxied, requests, size};

/// A ttl that outlives every deadline: a lock that becomes free was released, and did not expire.
const LONG: Duration = Duration::from_secs(300);

/// t48: a thousand waiters in ten processes send the requests of ten, about one per second and process, and
/// all of them acquire the lock once it is free.
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
    let queued = || async { kinds(&server) == ["push"; PROCESSES as usize] };
    eventually("every process to wait for a push", queued).await;
    let (before, since) = (requests(&server), Instant::now());
    lapse(Duration::from_secs(4)).await;
    let (asked, millis) = (requests(&server) - before, since.elapsed().as_millis() as u64);
    // Each process sends a heartbeat every second, plus or minus a quarter. One may be under way at each end.
    let most = PROCESSES * (millis / 750 + 2);
    let least = PROCESSES * (millis / 1_250 - 1);
    assert!((least..=most).contains(&asked), "{asked} requests, {least} to {most}");
    holder.release().await.unwrap();
    while let Some(served) = within("everybody's turn", waiters.join_next()).await {
        served.unwrap();
    }
    assert_eq!(size(&server), 1, "only the fence is left");
}

/// How the waiters of `k` are notified, for those that have sent a heartbeat.
fn kinds(server: &RedisServer) -> Vec<String> {
    let Reply::Many(beats) = server.client().command(&["HVALS", BEATS]) else { return Vec::new() };
    let kind = |beat| match beat {
        Reply::Text(beat) => beat.split(' ').nth(1).unwrap_or_default().to_owned(),
        other => panic!("{other:?}"),
    };
    beats.into_iter().map(kind).collect()
}

/// t49: ten thousand locks are held for longer than their ttl over two connections, each renewed as often as
/// needed and no more. (How renewals are spread over time: `tenure-testkit`, `t49_renewals_are_spread`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t49_ten_thousand_locks() {
    const LOCKS: u64 = 10_000;
    let server = RedisServer::start();
    let a = Locker::new(tenure_redis::Redis::connect(&server.url()).await.unwrap());
    let ttl = Duration::from_secs(12);
    let mut asking = JoinSet::new();
    for number in 0..LOCKS {
        asking.spawn(a.lock(format!("k{number}")).ttl(ttl).into_future());
    }
    let granted = within("all locks", asking.join_all()).await;
    let guards: Vec<Guard> = granted.into_iter().map(Result::unwrap).collect();
    assert_eq!(guards.len() as u64, LOCKS);
    are_kept(&server, &a, &guards, ttl).await;
}

/// t109: ten thousand permits of a hundred keys, all numbered, are held for longer than their ttl over two connections,
/// each renewed as often as needed and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t109_ten_thousand_permits() {
    let server = RedisServer::start();
    let a = Locker::new(tenure_redis::Redis::connect(&server.url()).await.unwrap());
    let ttl = Duration::from_secs(12);
    let mut asking = JoinSet::new();
    for number in 0..10_000 {
        let semaphore = a.semaphore(format!("k{}", number % 100), 100);
        asking.spawn(semaphore.acquire().numbered().ttl(ttl).into_future());
    }
    let granted = within("all permits", asking.join_all()).await;
    let permits: Vec<Permit> = granted.into_iter().map(Result::unwrap).collect();
    assert_eq!(permits.len(), 10_000);
    are_kept(&server, &a, &permits, ttl).await;
}

/// These are kept for longer than their ttl by as many renewals as needed, and then released by a shutdown.
async fn are_kept<M: HeldMode>(server: &RedisServer, a: &Locker, all: &[Guard<M>], ttl: Duration) {
    let (before, start, count) = (requests(server), Instant::now(), all.len() as u64);
    lapse(ttl + Duration::from_secs(2)).await;
    let (renewals, passed) = (requests(server) - before, start.elapsed());
    assert!(all.iter().all(Guard::is_held));
    // Every third of the ttl, or up to a tenth sooner; the first renewals were due before the count began.
    let most = count * (passed.as_millis() / (ttl.as_millis() * 3 / 10) + 2) as u64;
    assert!((count * 2..=most).contains(&renewals), "{renewals} renewals, at most {most}");
    assert_eq!(clients(server), 2, "commands and renewals");
    let report = a.shutdown(Duration::ZERO).await;
    assert_eq!((report.released, report.unreleased.len()), (all.len(), 0));
    eventually("nothing but the fence", || async { size(server) == 1 }).await;
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// t51: guards and waiters in tasks end with their runtime, without a panic or a hang, and the locks are released.
#[test]
fn t51_guards_inside_a_runtime_that_ends() {
    let server = RedisServer::start();
    for background in [false, true] {
        let runtime = runtime();
        let a = runtime.block_on(async {
            let (a, b) = (locker(&server).await, locker(&server).await);
            for number in 0..8 {
                let [held, wanted] = [&a, &b].map(|from| from.lock(format!("k{number}")).ttl(LONG));
                let guard = held.await.unwrap();
                tokio::spawn(async move { guard.lost().await });
                tokio::spawn(wanted.into_future());
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

/// t51: a guard outlives its runtime; `shutdown` on another runtime releases its lock.
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

/// A26: locks that a shutdown could not release, because the server does not reply, are named in its report,
/// and their guards are no longer held.
#[tokio::test]
async fn a26_what_could_not_be_released_is_reported() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    let [one, two] = ["one", "two"].map(|key| a.lock(key).ttl(LONG));
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    server.pause();
    let report = within("the shutdown", a.shutdown(Duration::ZERO)).await;
    server.go_on();
    let mut unreleased: Vec<_> = report.unreleased.iter().map(|key| key.as_str()).collect();
    unreleased.sort_unstable();
    assert_eq!((report.released, unreleased), (0, vec!["one", "two"]));
    assert!(!one.is_held() && !two.is_held());
}

/// t52: a panic in a task that holds the lock releases it during the unwind.
#[tokio::test]
async fn t52_a_panic_releases() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let panicked = tokio::spawn(async move {
        let _held = held;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert!(within("the lock", b.lock("k").into_future()).await.unwrap().is_held());
}

/// t104: a thousand tasks of a process share one lease. When a writer of another process waits, no task joins it any
/// more. If the notice of the writer is lost, tasks join until the next renewal, and none after it. The writer gets the
/// key when those inside have ended.
#[tokio::test]
async fn t104_a_thousand_readers_and_a_writer() {
    for lost in [false, true] {
        let (server, proxy) = proxied();
        let here = Locker::new(Redis::connect(&proxy.url()).await.unwrap());
        let there = locker(&server).await;
        let first = here.read("k").ttl(LONG).await.unwrap();
        let before = calls(&server, "exists");
        let mut readers = read_together(&here, 999).await;
        assert_eq!(server.client().command(&["ZCARD", "tenure:lock:k"]), Reply::Int(1));
        // For the second reader of a lease the engine asks once whether somebody waits.
        let once = || async { calls(&server, "exists") == before + 1 };
        eventually("one question for all tasks", once).await;
        if lost {
            proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing("contended:"));
        }
        let writer = tokio::spawn(there.write("k").ttl(LONG).into_future());
        eventually("the writer to wait", || async { entries(&server).len() == 1 }).await;
        if lost {
            let joins = here.try_read("k").ttl(LONG).await.unwrap();
            readers.push(joins.expect("this process knows of no writer"));
            first.renew().await.unwrap();
        }
        within("the notice", first.contended()).await;
        for _ in 0..1_000 {
            let none = here.try_read("k").ttl(LONG).await.unwrap();
            assert!(none.is_none(), "the writer waits");
        }
        assert!(!writer.is_finished() && readers.iter().all(Guard::is_held));
        readers.into_iter().for_each(drop);
        assert!(first.is_held() && !writer.is_finished());
        first.release().await.unwrap();
        let writer = within("the writer's turn", writer).await.unwrap().unwrap();
        writer.release().await.unwrap();
    }
}

/// So many tasks that read at the same time.
async fn read_together(locker: &Locker, count: usize) -> Vec<ReadGuard> {
    let tasks = (0..count).map(|_| locker.read("k").ttl(LONG).into_future());
    let guards = tasks.collect::<JoinSet<_>>().join_all().await;
    guards.into_iter().map(Result::unwrap).collect()
}

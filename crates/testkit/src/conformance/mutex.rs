//! One holder per key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Locker, Renew};

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, start, within};
use crate::history::Recorder;
use crate::judge::Judge;
use crate::register::Register;

/// A7: an attempt on a lock that another process holds returns `None`, not an error.
pub async fn busy_is_none<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    assert!(b.try_lock(&key).await.unwrap().is_none());
    assert!(guard.is_held());
}

/// A7: the same for another task of the same process.
pub async fn busy_is_none_within_a_process<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    assert!(a.try_lock(&key).await.unwrap().is_none());
}

/// A7: an attempt on a free lock acquires it, from either process.
pub async fn free_is_some<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = a.try_lock(&key).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert!(b.try_lock(&key).await.unwrap().is_some());
}

/// A1: a process gets the lock when another one releases it, and not before.
pub async fn processes_take_turns<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let first = hold(&a, &key).await;
    let second = start(b.lock(&key)).await;
    assert!(first.is_held());
    first.release().await.unwrap();
    let second = within("the second process's turn", second).await.unwrap();
    assert!(second.is_held());
    assert!(!can_be_had(&a, &key).await);
}

/// A1: a task gets the lock when another task of its process releases it, and not before.
pub async fn tasks_take_turns<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let first = hold(&a, &key).await;
    let second = start(a.lock(&key)).await;
    assert!(first.is_held());
    first.release().await.unwrap();
    let second = within("the second task's turn", second).await.unwrap();
    assert!(second.is_held());
    assert!(!can_be_had(&a, &key).await);
}

/// A1: locks with different names are independent, however similar the names are.
pub async fn keys_are_independent<F: Fixture>(f: &F) {
    let (a, b) = (f.locker().await, f.locker().await);
    let _guard = hold(&a, &f.key("a")).await;
    for other in ["A", "a/b", "a:", "a ", "a*", "a.", "a%"] {
        assert!(b.try_lock(f.key(other)).await.unwrap().is_some(), "`{other}` is not `a`");
    }
}

/// A guard can be moved to another task, and released there.
pub async fn a_guard_moves_between_tasks<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    tokio::spawn(guard.release()).await.unwrap().unwrap();
    assert!(can_be_had(&b, &key).await);
}

/// A clone of a locker is the same process.
pub async fn a_clone_is_the_same_process<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let clone = a.clone();
    drop(a);
    assert_eq!(clone.hold_count(&key), 1);
    assert!(clone.try_lock(&key).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert_eq!(clone.hold_count(&key), 0);
}

/// A guard keeps its lock when every locker of its process is dropped.
pub async fn a_guard_outlives_its_locker<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    drop(a);
    assert!(guard.is_held());
    assert!(!can_be_had(&b, &key).await);
    drop(guard);
    becomes_free(&b, &key).await;
}

/// A21: by default the ttl is 30 s, the lock is renewed, and a wait has no limit.
pub async fn defaults<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let ttl = Duration::from_secs(30);
    match f.capabilities().await.expires {
        true => assert!(guard.remaining() <= ttl && guard.remaining() > ttl / 2),
        false => assert!(guard.remaining() > ttl * 1_000_000),
    }
    let wait = start(b.lock(&key)).await;
    guard.release().await.unwrap();
    let _guard = within("a wait without bound", wait).await.unwrap();
}

/// A21: a request can override every default.
pub async fn every_option_can_be_given<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let ttl = Duration::from_secs(60);
    let request = a.lock(&key).ttl(ttl).wait(Duration::from_secs(1)).attempts(2);
    let request = request.retry_interval(Duration::from_millis(20)).renew(Renew::Ratio(0.25));
    let request = request.max_hold(Duration::from_secs(600)).label("label").reason("reason");
    let guard = request.name("order:{id}").await.unwrap();
    if f.capabilities().await.expires {
        assert!(guard.remaining() > Duration::from_secs(30), "the call's ttl, not the default");
    }
    guard.release().await.unwrap();
}

/// A1: 64 tasks in two processes increment a plain number under the lock, and no update is lost.
pub async fn a_plain_counter_loses_nothing<F: Fixture>(f: &F) {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 4;
    let lockers = [f.locker().await, f.locker().await];
    let (key, counter) = (f.key("k"), Arc::new(AtomicU64::new(0)));
    let tasks = (0..TASKS).map(|task| {
        let locker = lockers[usize::try_from(task % 2).unwrap()].clone();
        tokio::spawn(count_up(locker, key.clone(), counter.clone(), ROUNDS))
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * ROUNDS);
}

/// Reads, lets others run, and writes one more: without mutual exclusion, updates are lost.
async fn count_up(locker: Locker, key: String, counter: Arc<AtomicU64>, rounds: u64) {
    for _ in 0..rounds {
        let guard = locker.lock(&key).retry_interval(Duration::from_millis(10)).await.unwrap();
        let read = counter.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        counter.store(read + 1, Ordering::Relaxed);
        guard.release().await.unwrap();
    }
}

/// A1, A22: the judge finds no offence in the history of tasks in three processes on two keys.
pub async fn a_history_is_clean<F: Fixture>(f: &F) {
    let (recorder, register) = (Recorder::new(), Arc::new(Register::new()));
    let mut tasks = Vec::new();
    for process in 0..3 {
        let locker = f.locker().await;
        for task in 0..4 {
            let claimant = recorder.claimant(format!("p{process}/t{task}"));
            let (locker, key) = (locker.clone(), f.key(["x", "y"][task % 2]));
            let register = register.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let noted = claimant.asks(&key);
                    let request = locker.lock(&key).retry_interval(Duration::from_millis(10));
                    let guard = request.await.unwrap();
                    noted.granted(guard.fence(), guard.valid_until());
                    let seen = register.read(&key, guard.fence());
                    tokio::task::yield_now().await;
                    register.write(&key, seen);
                    noted.release_called(guard.valid_until());
                    guard.release().await.unwrap();
                    noted.released();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let verdict = Judge::new(recorder.history()).register(register.tally()).verdict();
    verdict.assert_clean();
    assert_eq!((verdict.grants, verdict.tally.plain_lost()), (120, 0));
}

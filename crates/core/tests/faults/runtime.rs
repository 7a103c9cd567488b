//! Runtimes that starve or end, and code that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory};
use tenure_testkit::wait::{eventually_blocking, nothing_is_left, within};
use tokio::runtime::{Builder, Runtime};

use crate::support::Store;

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

/// Waits until the lock is free, as seen from a separate runtime.
fn becomes_free(store: &Memory, key: &str) {
    runtime(1).block_on(nothing_is_left(&store.locker(), key));
}

/// t24: a lock survives a runtime whose workers are all busy for three ttls.
#[test]
fn t24_starved_workers() {
    let (store, runtime, ttl) = (Memory::space("t24"), runtime(2), Duration::from_millis(1_500));
    let locker = store.locker();
    let guard = runtime.block_on(async { locker.lock("k").ttl(ttl).await.unwrap() });
    let busy = Arc::new(AtomicBool::new(true));
    for _ in 0..2 {
        let busy = busy.clone();
        runtime.spawn(async move {
            while busy.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
    }
    let (clock, granted) = (locker.clock(), guard.valid_until());
    eventually_blocking("three ttls to pass", || clock.now() >= granted.after(ttl * 2));
    assert!(guard.is_held(), "it was renewed meanwhile");
    busy.store(false, Ordering::Relaxed);
    runtime.block_on(guard.release()).unwrap();
}

/// t51: a guard outlives its runtime, and its drop releases the lock without a runtime.
#[test]
fn t51_a_guard_outlives_its_runtime() {
    let (store, first) = (Memory::space("t51-guard"), runtime(1));
    let locker = store.locker();
    let guard = first.block_on(async { locker.lock("k").await.unwrap() });
    drop(first);
    assert!(guard.is_held());
    drop(guard);
    becomes_free(&store, "k");
}

/// t51: guards in tasks are dropped with the runtime, and their locks are released.
#[test]
fn t51_guards_inside_a_runtime_that_ends() {
    let store = Memory::space("t51-tasks");
    for background in [false, true] {
        let (runtime, locker) = (runtime(2), store.locker());
        runtime.block_on(async {
            for number in 0..8 {
                let guard = locker.lock(format!("k{number}")).await.unwrap();
                tokio::spawn(async move { guard.lost().await });
            }
            // Some tasks wait, too.
            for number in 0..8 {
                tokio::spawn(locker.lock(format!("k{number}")).into_future());
            }
        });
        if background {
            runtime.shutdown_background();
        } else {
            drop(runtime);
        }
        drop(locker);
        (0..8).for_each(|number| becomes_free(&store, &format!("k{number}")));
    }
}

/// t51: a locker can be used by a second runtime after its first has ended, and its shutdown releases all locks.
#[test]
fn t51_shutdown_after_the_runtime_has_ended() {
    let store = Memory::space("t51-shutdown");
    let locker = store.locker();
    let guard = runtime(1).block_on(async { locker.lock("k").await.unwrap() });
    let report = runtime(1).block_on(async {
        within("the shutdown", locker.shutdown(Duration::from_millis(10))).await
    });
    assert_eq!((report.released, report.unreleased.len()), (1, 0));
    assert!(!guard.is_held());
    becomes_free(&store, "k");
}

/// t51: the last locker and guard can be dropped inside a task or on any thread.
#[test]
fn t51_dropped_anywhere() {
    let store = Memory::space("t51-anywhere");
    for on_thread in [false, true] {
        let (runtime, locker) = (runtime(1), store.locker());
        let guard = runtime.block_on(async { locker.lock("k").await.unwrap() });
        let dropping = move || {
            drop(locker);
            drop(guard);
        };
        if on_thread {
            std::thread::spawn(dropping).join().unwrap();
        } else {
            runtime.block_on(async { tokio::spawn(async move { dropping() }).await.unwrap() });
        }
        becomes_free(&store, "k");
    }
}

/// t52: a thread that panics while it holds the lock releases it during the unwind.
#[test]
fn t52_a_panicking_thread() {
    let store = Memory::space("t52");
    let blocking = tenure_core::blocking::Locker::new(Locker::new(store.clone()));
    let panicked = std::thread::spawn(move || {
        let _guard = blocking.lock("k").acquire().unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    becomes_free(&store, "k");
}

/// t68: a lock that is revoked right after its grant is reported as lost, also if it is the locker's very first one.
///
/// The clock stands still, so no renewal and no expiry can report the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t68_the_first_notice_is_received() {
    for _ in 0..40 {
        let memory = Memory::with_clock(Clock::manual());
        let guard = memory.locker().lock("k").await.unwrap();
        memory.revoke("k").unwrap();
        assert_eq!(within("the loss", guard.lost()).await, Loss::Gone);
    }
}

/// A task that reads in a loop, beside another reader of its process, lets the other tasks of its thread run.
#[test]
fn a_loop_in_memory_lets_others_run() {
    let (store, runtime) =
        (Memory::space("loop"), Builder::new_current_thread().enable_all().build());
    let locker = store.locker();
    let reads = async move {
        let _other = locker.read("k").await.unwrap();
        loop {
            locker.read("k").await.unwrap().release().await.unwrap();
        }
    };
    let stopped = Arc::new(AtomicBool::new(false));
    let seen = stopped.clone();
    std::thread::spawn(move || {
        let ends = async { tokio::time::timeout(Duration::from_millis(50), reads).await.is_err() };
        seen.store(runtime.unwrap().block_on(ends), Ordering::Release);
    });
    eventually_blocking("the time-out", || stopped.load(Ordering::Acquire));
}

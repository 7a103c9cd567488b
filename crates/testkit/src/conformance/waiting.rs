//! Waiting with and without a limit, its order, and how it ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{Error, Guard, Locker, WithinProcess};
use tokio::sync::oneshot;

use super::support::{becomes_free, can_be_had, hold, refused, start, waiters_are, within};
use super::{Fixture, Started};

/// A8: a bounded wait ends as a time-out, and not early.
pub async fn a_bounded_wait_times_out<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    // Long enough for a busy server to report the holder: without a reply the result of the wait is unknown.
    let limit = Duration::from_secs(1);
    for locker in [&a, &b] {
        let error = refused(locker.lock(&key).wait(limit)).await;
        assert!(error.is_busy() && error.is_timeout(), "{error:?}");
        assert!(error.waited().unwrap() >= limit, "{error:?}");
    }
}

/// A8: a bounded wait gets the lock if it is released in time.
pub async fn a_bounded_wait_can_succeed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let wait = start(b.lock(&key).wait(crate::wait::DEADLINE)).await;
    guard.release().await.unwrap();
    assert!(within("the bounded wait", wait).await.unwrap().is_held());
}

/// A8: a wait of zero asks once: it acquires a free lock, and fails as busy on a held one.
pub async fn a_wait_of_zero_asks_once<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = b.lock(&key).wait(Duration::ZERO).await.unwrap();
    for locker in [&a, &b] {
        assert!(refused(locker.lock(&key).wait(Duration::ZERO)).await.is_busy());
    }
    guard.release().await.unwrap();
    assert!(can_be_had(&a, &key).await);
}

/// G1: `try_lock` with a wait returns `None` after that time, and not earlier.
pub async fn a_try_that_waits_ends_with_none<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    // Long enough for a busy server to report the holder.
    let (limit, clock) = (Duration::from_secs(1), a.clock());
    for locker in [&a, &b] {
        let started = clock.now();
        let trying = locker.try_lock(&key).wait(limit).into_future();
        assert!(within("an answer", trying).await.unwrap().is_none());
        assert!(clock.now().since(started) >= limit);
    }
}

/// G1: `try_lock` with a wait gets the lock if it is released in time.
pub async fn a_try_that_waits_can_succeed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let trying = start(b.try_lock(&key).wait(crate::wait::DEADLINE)).await;
    guard.release().await.unwrap();
    assert!(within("the try", trying).await.unwrap().is_some_and(|guard| guard.is_held()));
}

/// A8: a limited number of attempts ends as busy, not as a time-out.
pub async fn attempts_are_counted<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    for locker in [&a, &b] {
        let pause = Duration::from_millis(10);
        let error = refused(locker.lock(&key).attempts(3).retry_interval(pause)).await;
        assert!(error.is_busy() && !error.is_timeout(), "{error:?}");
        assert!(error.to_string().contains("after 3 attempts"), "{error}");
    }
}

/// A8: attempts do not queue, so they are not shown as waiters.
pub async fn attempts_do_not_queue<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let trying = start(b.lock(&key).attempts(1_000).retry_interval(Duration::from_secs(1))).await;
    waiters_are(&a, &key, 0).await;
    drop(trying);
}

/// A8: an attempt after the release gets the lock.
pub async fn attempts_can_succeed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let pause = Duration::from_millis(10);
    let trying = start(b.lock(&key).attempts(100_000).retry_interval(pause)).await;
    guard.release().await.unwrap();
    let _guard = within("a later attempt", trying).await.unwrap();
}

/// A8: a signal ends the wait as cancelled, at once.
pub async fn a_signal_cancels<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    for locker in [&a, &b] {
        let (send, signal) = oneshot::channel::<()>();
        let wait = start(locker.lock(&key).cancel_on(async { drop(signal.await) })).await;
        send.send(()).unwrap();
        let error = refused(wait).await;
        assert!(error.is_cancelled() && !error.is_busy(), "{error:?}");
        assert_eq!(error.key().unwrap().as_str(), key);
    }
}

/// A8: a signal that never fires does not prevent the acquisition.
pub async fn a_silent_signal_does_no_harm<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let request = a.lock(&key).cancel_on(std::future::pending());
    let _guard = within("a free lock", request.into_future()).await.unwrap();
}

/// A8, A26: a shutdown ends waits as closed, which is neither busy nor cancelled.
pub async fn a_shutdown_closes_waits<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let (first, second) = (start(b.lock(&key)).await, start(b.lock(&key)).await);
    b.shutdown(Duration::ZERO).await;
    for wait in [first, second] {
        let error = refused(wait).await;
        assert!(error.is_closed() && !error.is_busy() && !error.is_cancelled(), "{error:?}");
    }
    waiters_are(&a, &key, 0).await;
}

/// A18: with `WithinProcess::Fail`, another request of the same process fails at once.
pub async fn within_process_can_fail<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let error = refused(a.lock(&key).within_process(WithinProcess::Fail)).await;
    assert!(error.is_already_held(), "{error:?}");
    assert_eq!(error.key().unwrap().as_str(), key);
    // The setting does not apply to another process, which waits as usual.
    let wait = b.lock(&key).within_process(WithinProcess::Fail).wait(Duration::ZERO);
    assert!(refused(wait).await.is_busy());
    assert!(guard.is_held());
}

/// A24: the tasks of a process get the lock in the order of their requests.
pub async fn tasks_are_served_in_order<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let mut waits = Vec::new();
    for number in 0..8 {
        waits.push((number, start(a.lock(&key)).await));
    }
    assert_eq!(served(guard, waits).await, (0..8).collect::<Vec<_>>());
}

/// A24: processes get the lock in the order of their requests, if the engine promises that; otherwise each of
/// them gets it.
pub async fn processes_are_served_in_order<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let (mut waits, mut lockers) = (Vec::new(), Vec::new());
    for number in 0..4 {
        let locker = f.locker().await;
        let mut wait = start(quick(&locker, &key)).await;
        wait.until(waiters_are(&a, &key, number + 1)).await;
        waits.push((number, wait));
        lockers.push(locker);
    }
    let mut order = served(guard, waits).await;
    if !f.capabilities().await.fifo {
        order.sort_unstable();
    }
    assert_eq!(order, (0..4).collect::<Vec<_>>());
}

fn quick(locker: &Locker, key: &str) -> tenure_core::LockRequest {
    locker.lock(key).retry_interval(Duration::from_millis(10))
}

type Wait = Started<Result<Guard, Error>>;

/// Releases `guard`, lets every waiter acquire the lock, and returns the order in which they did.
async fn served(guard: Guard, waits: Vec<(usize, Wait)>) -> Vec<usize> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let serve = |(number, wait): (usize, Wait)| {
        let order = order.clone();
        tokio::spawn(async move {
            let guard = wait.await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        })
    };
    let tasks: Vec<_> = waits.into_iter().map(serve).collect();
    guard.release().await.unwrap();
    for task in tasks {
        within("everybody's turn", task).await.unwrap();
    }
    std::mem::take(&mut *order.lock().unwrap())
}

/// A24: a process with many tasks does not keep another process out for ever.
pub async fn a_busy_process_lets_others_in<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let ttl = Duration::from_millis(300).max(f.capabilities().await.ttl_min);
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(hog(a.clone(), key.clone(), ttl))).collect();
    let request = quick(&b, &key).ttl(ttl);
    let guard = within("the other process's turn", request.into_future()).await.unwrap();
    drop(guard);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    becomes_free(&a, &key).await;
}

/// Locks and releases without a pause.
async fn hog(locker: Locker, key: String, ttl: Duration) {
    loop {
        let guard = quick(&locker, &key).ttl(ttl).await.unwrap();
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
    }
}

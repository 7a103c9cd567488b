//! A wait that ends leaves no trace.

use std::time::Duration;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, refused, start, waiters_are, within};

/// A10: a dropped wait of another process disappears from the queue, and the next waiter gets the lock.
pub async fn a_dropped_wait_leaves_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let mut dropped = start(b.lock(&key)).await;
    dropped.until(waiters_are(&a, &key, 1)).await;
    drop(dropped);
    waiters_are(&a, &key, 0).await;
    guard.release().await.unwrap();
    becomes_free(&a, &key).await;
}

/// A10: a dropped wait of a task leaves the lock to the next task.
pub async fn a_dropped_local_wait_leaves_nothing<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let (dropped, stays) = (start(a.lock(&key)).await, start(a.lock(&key)).await);
    drop(dropped);
    guard.release().await.unwrap();
    let _guard = within("the next task's turn", stays).await.unwrap();
}

/// A10: if the task that waits at the server is dropped, the next task of its process waits instead.
pub async fn a_dropped_head_is_succeeded<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let (mut head, next) = (start(b.lock(&key)).await, start(b.lock(&key)).await);
    head.until(waiters_are(&a, &key, 1)).await;
    drop(head);
    let next = tokio::spawn(next);
    guard.release().await.unwrap();
    let held = within("the successor's turn", next).await.unwrap().unwrap();
    assert!(held.is_held());
    assert!(!can_be_had(&a, &key).await, "an abandon must not hit the successor");
}

/// A10: the same when the next task has another ttl.
pub async fn a_dropped_head_of_other_terms_is_succeeded<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let head = start(b.lock(&key).ttl(Duration::from_secs(20))).await;
    let next = start(b.lock(&key).ttl(Duration::from_secs(40))).await;
    drop(head);
    let next = tokio::spawn(next);
    guard.release().await.unwrap();
    let held = within("the successor's turn", next).await.unwrap().unwrap();
    if f.capabilities().await.expires {
        assert!(held.remaining() > Duration::from_secs(20), "its own ttl");
    }
    assert!(!can_be_had(&a, &key).await);
}

/// A10: a wait that timed out disappears from the queue.
pub async fn a_timed_out_wait_leaves_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    refused(b.lock(&key).wait(Duration::from_millis(20))).await;
    waiters_are(&a, &key, 0).await;
    guard.release().await.unwrap();
    becomes_free(&a, &key).await;
}

/// A10: a request that is never polled has no effect.
pub async fn an_unpolled_request_does_nothing<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    drop(a.lock(&key));
    drop(a.lock(&key).into_future());
    drop(a.try_lock(&key).into_future());
    assert!(a.inspect(&key).await.unwrap().is_none());
    assert!(can_be_had(&a, &key).await);
}

/// A10: a task that is aborted while it waits, or while it holds, leaves neither a queue entry nor a lock.
pub async fn an_aborted_task_leaves_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let waiting = tokio::spawn(start(b.lock(&key)).await);
    let (locker, other) = (b.clone(), f.key("other"));
    let holding = tokio::spawn(async move {
        let _guard = locker.lock(other).await.unwrap();
        std::future::pending::<()>().await;
    });
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    waiters_are(&a, &key, 0).await;
    guard.release().await.unwrap();
    becomes_free(&a, &key).await;
    holding.abort();
    becomes_free(&a, &f.key("other")).await;
}

/// A10: many waits that start and are dropped do not affect the lock.
pub async fn many_dropped_waits_leave_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    for _ in 0..20 {
        let (local, remote) = (start(a.lock(&key)).await, start(b.lock(&key)).await);
        tokio::task::yield_now().await;
        drop((local, remote));
    }
    assert!(guard.is_held());
    waiters_are(&a, &key, 0).await;
    guard.release().await.unwrap();
    becomes_free(&b, &key).await;
}

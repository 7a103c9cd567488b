//! Releasing a lock.

use tenure_core::Released;

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, look, start, within};

/// A lock is free when `release` returns, and the engine shows nothing about it.
pub async fn release_frees<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert!(look(&b, &key).await.is_none());
    assert!(can_be_had(&b, &key).await);
}

/// A dropped guard is released in the background.
pub async fn drop_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    drop(hold(&a, &key).await);
    becomes_free(&b, &key).await;
}

/// A dropped guard wakes a waiter, in this process and in another.
pub async fn drop_wakes_the_next<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for waiter in [&a, &b] {
        let guard = hold(&a, &key).await;
        let next = start(waiter.lock(&key)).await;
        drop(guard);
        within("the waiter's turn", next).await.unwrap().release().await.unwrap();
    }
}

/// A release whose future is dropped half-way still takes effect.
pub async fn a_dropped_release_is_done<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for polls in 0..3 {
        let guard = hold(&a, &key).await;
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            let poll = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(release.as_mut().poll(cx).is_ready())
            });
            if poll.await {
                break;
            }
        }
        drop(release);
        becomes_free(&b, &key).await;
    }
}

/// t52: a panic while the lock is held releases it during unwinding.
pub async fn t52_a_panic_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (locker, name) = (a.clone(), key.clone());
    let task = tokio::spawn(async move {
        let _guard = hold(&locker, &name).await;
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    becomes_free(&b, &key).await;
}

/// A lock can be acquired and released many times.
pub async fn again_and_again<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for _ in 0..50 {
        for locker in [&a, &b] {
            let guard = locker.try_lock(&key).await.unwrap().expect("it was released");
            guard.release().await.unwrap();
        }
    }
}

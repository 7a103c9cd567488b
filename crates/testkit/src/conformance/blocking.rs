//! The twin for code without a runtime.

use tenure_core::{Locker, Released, blocking};

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, within};

/// Runs `work` on a thread that no runtime knows.
async fn on_a_thread<T: Send + 'static>(
    locker: &Locker,
    work: impl FnOnce(blocking::Locker) -> T + Send + 'static,
) -> T {
    let (locker, (done, result)) =
        (blocking::Locker::new(locker.clone()), tokio::sync::oneshot::channel());
    std::thread::spawn(move || drop(done.send(work(locker))));
    within("the thread", result).await.expect("the thread did not panic")
}

/// A thread locks, is alone, and releases.
pub async fn a_thread_locks_and_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let name = key.clone();
    let guard = on_a_thread(&a, move |a| a.lock(name).acquire()).await.unwrap();
    assert!(guard.is_held() && guard.key().as_str() == key);
    assert!(!can_be_had(&b, &key).await);
    let released = on_a_thread(&a, move |_| guard.release()).await;
    assert_eq!(released.unwrap(), Released::Freed);
    assert!(can_be_had(&b, &key).await);
}

/// A busy lock is `None` for an attempt; a wait gets it when it is released.
pub async fn a_thread_waits_its_turn<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let name = key.clone();
    assert!(on_a_thread(&b, move |b| b.try_lock(name).acquire()).await.unwrap().is_none());
    let name = key.clone();
    let releasing = tokio::spawn(async move { guard.release().await });
    let next = on_a_thread(&b, move |b| b.lock(name).acquire()).await.unwrap();
    releasing.await.unwrap().unwrap();
    assert!(next.is_held());
}

/// A guard that a thread drops is released.
pub async fn a_thread_drops_its_guard<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let name = key.clone();
    on_a_thread(&a, move |a| drop(a.lock(name).acquire().unwrap())).await;
    becomes_free(&b, &key).await;
}

/// Inside a runtime it errs instead of blocking it, and leaves nothing.
pub async fn inside_a_runtime_it_errs<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let blocking = blocking::Locker::new(a.clone());
    assert!(blocking.lock(&key).acquire().map(drop).unwrap_err().is_invalid());
    assert!(blocking.try_lock(&key).acquire().map(drop).unwrap_err().is_invalid());
    assert!(can_be_had(&a, &key).await);
}

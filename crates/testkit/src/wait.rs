//! Waiting for a state, with a deadline. Test code sleeps only here; the programs in `bin/` sleep on their
//! own.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::{Error, Locker};

/// How long a state may take to come. It is generous: a slow machine must not fail a test, and a test that
/// passes does not wait that long.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// How often a state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `state` returns true.
///
/// # Panics
///
/// If it does not within [`DEADLINE`]; the message contains `what`.
pub async fn eventually<F>(what: &str, state: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    within(what, until(state)).await;
}

/// Waits until `state` returns true, without a limit.
pub async fn until<F>(mut state: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    while !state().await {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The result of one poll, as text: for a forked child, which has no runtime to wait with.
pub fn outcome<T>(future: impl Future<Output = Result<T, Error>>) -> String {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(_)) => "done".into(),
        Poll::Ready(Err(error)) => error.to_string(),
        Poll::Pending => "waits".into(),
    }
}

/// Waits for `future` and returns its output.
///
/// # Panics
///
/// If it does not end within [`DEADLINE`]; the message contains `what`.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    in_time(DEADLINE, what, future).await
}

/// [`within`] with another limit.
///
/// # Panics
///
/// If it does not end within `limit`.
pub async fn in_time<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {limit:?} in vain: {what}"),
    }
}

/// [`eventually`] for code without a runtime.
///
/// # Panics
///
/// If `state` does not return true within [`DEADLINE`].
pub fn eventually_blocking(what: &str, mut state: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !state() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sleeps for `time`. For the duration of faults, never to wait for a state.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// [`pass`] for async code.
pub async fn lapse(time: Duration) {
    tokio::time::sleep(time).await;
}

/// How long a release may take. A lock with the default ttl of 30 s is renewed every 10 s, so it has 20 s left
/// whenever it is released: a change within this time is caused by the release, not by expiry.
const RELEASED_WITHIN: Duration = Duration::from_secs(15);

/// Waits until `key` has no holder and no waiter, and can be acquired.
///
/// # Panics
///
/// If either takes more than 15 s: a lock that only expires later was leaked. If the engine fails.
pub async fn nothing_is_left(locker: &Locker, key: &str) {
    let none = || async { locker.inspect(key).await.unwrap().is_none() };
    in_time(RELEASED_WITHIN, "nobody to hold it or wait for it", until(none)).await;
    let free = || async {
        match locker.try_lock(key).await.unwrap() {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    };
    in_time(RELEASED_WITHIN, "the lock to be free", until(free)).await;
}

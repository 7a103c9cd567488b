//! Waiting for a state, with a deadline: the only place in the tests that sleeps.

use std::future::Future;
use std::time::Duration;

/// How long a state may take to come. Generous: a slow machine must not fail a test, and a test
/// that passes never waits for it.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// How often a state is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until `state` holds.
///
/// # Panics
///
/// If it does not within [`DEADLINE`]; the message says `what` was waited for.
pub async fn eventually<F>(what: &str, state: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    within(what, until(state)).await;
}

/// Waits until `state` holds, however long that takes.
pub async fn until<F>(mut state: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    while !state().await {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits for `future` and gives its output.
///
/// # Panics
///
/// If it does not end within [`DEADLINE`]; the message says `what` was waited for.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    in_time(DEADLINE, what, future).await
}

/// The same with another limit.
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
/// If it does not within [`DEADLINE`].
pub fn eventually_blocking(what: &str, mut state: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !state() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Lets `time` pass: how long faults go on, never how long a state takes to come.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// [`pass`] for async code.
pub async fn lapse(time: Duration) {
    tokio::time::sleep(time).await;
}

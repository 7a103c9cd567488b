//! A log that panics. One test, since a subscriber is installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::time::Clock;
use tenure_core::{Guard, Locker, Memory};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How long to wait for an expected state.
const DEADLINE: Duration = Duration::from_secs(30);
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Panics on every error event.
struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, _: &Event<'_>) {
        PANICKED.store(true, Ordering::Release);
        panic!("on purpose: the log of a test");
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A log that panics on a loss affects nothing else: the lost lock is released, and a lease that was due at
/// the same time is renewed.
#[tokio::test]
async fn a_log_that_panics_costs_no_other_lock() {
    tracing::subscriber::set_global_default(Panicking).unwrap();
    let clock = Clock::manual();
    let memory = Memory::with_clock(clock.clone());
    let (locker, rival) = (Locker::new(memory.clone()), Locker::new(memory));
    let longest = Duration::from_secs(20);
    let lost = locker.lock("lost").max_hold(longest).await.unwrap();
    let kept = locker.lock("kept").await.unwrap();
    clock.advance(longest);
    let next = tokio::time::timeout(DEADLINE, rival.lock("lost").into_future()).await;
    drop(next.expect("the lost lock is released").unwrap());
    let renewed = tokio::time::timeout(DEADLINE, is_renewed(&kept)).await;
    renewed.expect("the other lock is renewed");
    assert!(PANICKED.load(Ordering::Acquire) && kept.is_held() && !lost.is_held());
}

/// Returns when the lease has been renewed. The test's clock does not advance meanwhile.
async fn is_renewed(guard: &Guard) {
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    while guard.remaining() < Duration::from_secs(25) {
        looks.tick().await;
    }
}

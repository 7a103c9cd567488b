//! Tokio's paused time: refused with the system clock, without effect on a manual clock.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use tenure_core::time::Clock;
use tenure_core::{Locker, Memory};

const REFUSED: &str = "tokio's time is paused here, and leases run by the machine's clock: in a test use \
    `Memory::with_clock(Clock::manual())`, or do not pause";

/// A lock on the system clock is refused while tokio's time is paused, also after it was advanced. It is
/// granted as soon as that time runs again.
#[tokio::test(start_paused = true)]
async fn paused_time_is_refused() {
    let locker = Locker::new(Memory::space("paused"));
    for _ in 0..2 {
        let lock = locker.lock("k").await.unwrap_err();
        assert!(lock.is_invalid());
        assert_eq!(lock.to_string(), REFUSED);
        assert_eq!(locker.try_lock("k").await.unwrap_err().to_string(), REFUSED);
        tokio::time::advance(Duration::from_secs(3600)).await;
    }
    tokio::time::resume();
    locker.lock("k").await.unwrap().release().await.unwrap();
    tokio::time::pause();
    assert!(locker.lock("k").await.unwrap_err().is_invalid());
}

/// Paused time is refused wherever a clock is needed: a wait for another task of this process, a renewal, and what
/// operators ask. A release is sent: refused, it would leave the lock.
#[tokio::test]
async fn paused_time_is_refused_while_a_lock_is_held() {
    let locker = Locker::new(Memory::space("paused-held"));
    let guard = locker.lock("k").await.unwrap();
    let seen = locker.inspect("k").await.unwrap().unwrap().holders[0].token.unwrap();
    tokio::time::pause();
    let started = std::time::Instant::now();
    let refusals = [
        locker.lock("k").wait(Duration::from_secs(5)).await.map(drop),
        locker.try_lock("k").await.map(drop),
        guard.renew().await,
        locker.inspect("k").await.map(drop),
        locker.list("*").await.map(drop),
        locker.watch("k").await.map(drop),
        locker.force_release("k", seen, "a test").await.map(drop),
        locker.diagnose().await.map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert!(refused.is_invalid() && refused.to_string().contains(REFUSED), "{refused}");
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    guard.release().await.unwrap();
    tokio::time::resume();
    locker.lock("k").await.unwrap().release().await.unwrap();
}

/// A shutdown cannot be refused: holders have their time to finish by the machine's clock, and tokio's paused time does
/// not move.
#[tokio::test]
async fn a_shutdown_takes_its_time_while_time_is_paused() {
    let locker = Locker::new(Memory::space("paused-shutdown"));
    let guard = locker.lock("k").await.unwrap();
    tokio::time::pause();
    let (virtual_start, start) = (tokio::time::Instant::now(), std::time::Instant::now());
    let drain = Duration::from_millis(300);
    let report = locker.shutdown(drain).await;
    assert_eq!((report.released, report.unreleased), (1, vec![]));
    assert!(!guard.is_held());
    assert!(start.elapsed() >= drain && start.elapsed() < drain * 10, "{:?}", start.elapsed());
    assert_eq!(virtual_start.elapsed(), Duration::ZERO, "of tokio's time");
}

/// Running time is never mistaken for paused time.
#[tokio::test]
async fn running_time_is_not_refused() {
    let clock = Clock::system();
    for _ in 0..100_000 {
        clock.must_run().unwrap();
    }
}

/// On a manual clock locks work while tokio's time is paused: waits and leases end by the manual clock only.
#[tokio::test(start_paused = true)]
async fn a_manual_clock_needs_no_timers() {
    let clock = Clock::manual();
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    let held = locker.lock("k").max_hold(Duration::from_secs(60)).await.unwrap();
    let wait = locker.lock("k").wait(Duration::from_secs(5));
    let waiting = tokio::spawn(wait.into_future());
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(!waiting.is_finished(), "tokio's time is not its time");
    clock.advance(Duration::from_secs(5));
    assert!(waiting.await.unwrap().unwrap_err().is_timeout());
    assert!(held.is_held());
    clock.advance(Duration::from_secs(55));
    assert!(!held.is_held(), "max_hold is over by the manual clock");
}

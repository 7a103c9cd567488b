//! A machine that is suspended: the clock of leases jumps.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory, Owner};
use tenure_testkit::wait::within;

/// t14: a machine that was suspended for longer than the ttl has lost its locks the moment it wakes, before
/// any request.
#[tokio::test]
async fn t14_a_suspended_machine_wakes_without_its_locks() {
    let clock = Clock::manual();
    let memory = Memory::with_clock(clock.clone());
    let (a, b) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = a.lock("k").await.unwrap();
    let view = guard.held();
    assert!(guard.is_held());
    clock.advance(Duration::from_secs(31));
    // No await lies between the jump and the check.
    assert!(!guard.is_held() && !view.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(within("the signal", guard.lost()).await, Loss::Expired);
    let rival = within("the rival's turn", b.lock("k").into_future()).await.unwrap();
    assert!(rival.fence() > guard.fence());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(rival.is_held());
}

/// t14: a suspend shorter than the ttl costs no lock.
#[tokio::test]
async fn t14_a_short_sleep_does_no_harm() {
    let clock = Clock::manual();
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    let guard = locker.lock("k").await.unwrap();
    for _ in 0..10 {
        clock.advance(Duration::from_secs(11));
        let renewed = || async { guard.remaining() > Duration::from_secs(25) };
        tenure_testkit::wait::eventually("the renewal", renewed).await;
    }
    guard.release().await.unwrap();
}

/// t14: an owner that wakes and acquires again does not re-enter a lost lock: it gets a loss error or a new grant.
#[tokio::test]
async fn t14_what_was_lost_asleep_is_not_reentered() {
    for _ in 0..50 {
        let clock = Clock::manual();
        let (locker, owner) = (Locker::new(Memory::with_clock(clock.clone())), Owner::new());
        let lost = locker.lock("k").owner(owner.clone()).await.unwrap();
        clock.advance(Duration::from_secs(31));
        match within("an answer", locker.lock("k").owner(owner).into_future()).await {
            Ok(again) => {
                assert!(again.is_held() && again.depth() == 1);
                assert!(again.fence() > lost.fence());
            }
            Err(error) => assert!(error.is_lost(), "{error:?}"),
        }
    }
}

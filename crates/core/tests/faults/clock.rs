//! A machine that is suspended: the clock of leases jumps.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory, Owner};
use tenure_testkit::wait::{DEADLINE, within};

use crate::support::{Stall, meddled, still};

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

/// t14: a reader that comes after a suspend does not join the lease that was lost, also if nobody has noticed the loss:
/// it gets a new grant. Another thread waits for it, because a task that joined again and again would never yield.
#[test]
fn t14_a_lost_lease_is_not_joined() {
    let (sender, answer) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ((clock, memory), (_go_on, stall)) = (still(), Stall::new());
            let stall = Arc::new(stall);
            let locker = meddled(&memory, &stall);
            let (lost, shares) = (locker.read("k").await.unwrap(), locker.read("k").await.unwrap());
            assert_eq!(shares.fence(), lost.fence());
            clock.advance(Duration::from_secs(11));
            stall.has_come().await;
            clock.advance(Duration::from_secs(20));
            let again = within("an answer", locker.read("k").into_future()).await.unwrap();
            assert!(again.is_held() && !lost.is_held() && !shares.is_held());
            assert!(again.fence() > lost.fence());
            sender.send(()).unwrap();
        });
    });
    answer.recv_timeout(DEADLINE).expect("a new grant in time");
}

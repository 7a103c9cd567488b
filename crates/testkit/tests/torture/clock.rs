//! Clocks that jump.

use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory, Owner};
use tenure_testkit::clock::WallClock;
use tenure_testkit::history::{self, Event, History};
use tenure_testkit::judge::Judge;
use tenure_testkit::process::Program;
use tenure_testkit::wait::within;

use crate::support::Dir;

/// A holder whose wall clock is `clock`'s.
fn holder_at(clock: &WallClock) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holder"));
    clock.drive(&mut command);
    command.arg("hold").stderr(Stdio::inherit());
    command
}

fn spawn(dir: &Dir, url: &str, owner: &str, more: &[&str]) -> Program {
    let mut command = holder_at(&clock(dir, owner));
    command.arg("--url").arg(url).args(["--key=k", "--owner", owner]).args(more);
    command.arg("--history").arg(dir.path(&format!("{owner}.jsonl")));
    command.arg("--registers").arg(dir.path(""));
    Program::spawn(&mut command)
}

fn clock(dir: &Dir, owner: &str) -> WallClock {
    WallClock::at(&dir.path(&format!("{owner}.clock")))
}

fn jump(dir: &Dir, owner: &str, by: &str) {
    clock(dir, owner).set(by);
}

/// Fences follow the wall clock when it runs ahead: the jump must be seen in them.
fn fences_jumped(history: &History) -> bool {
    const HALF_AN_HOUR: u64 = (30 * 60 * 1000 * 256) << 13;
    let fences = history.records().iter().filter_map(|record| match record.event {
        Event::Granted { fence, .. } => Some(fence),
        _ => None,
    });
    let fences: Vec<u64> = fences.collect();
    fences.windows(2).any(|pair| pair[1].abs_diff(pair[0]) > HALF_AN_HOUR)
}

/// t13: two processes whose wall clocks jump an hour ahead and an hour back take turns all the same.
#[test]
fn t13_wall_clocks_that_jump() {
    let dir = Dir::fresh();
    let mut holders = ["ahead", "back"].map(|owner| spawn(&dir, &dir.url(), owner, &[]));
    for by in [["+0", "+0"], ["+1h", "-1h"], ["-1h", "+1h"]] {
        jump(&dir, "ahead", by[0]);
        jump(&dir, "back", by[1]);
        for holder in &mut holders {
            holder.forget_lines();
            (0..5).for_each(|_| drop(holder.wait_for("released")));
        }
    }
    holders.iter().for_each(Program::stop);
    let history = ["ahead", "back"].map(|owner| dir.path(&format!("{owner}.jsonl")));
    let [ahead, back] = history.map(|path| history::read_file(&path).unwrap());
    let history = ahead.merge(back);
    assert!(fences_jumped(&history), "the shim had no effect");
    let verdict = Judge::new(history).verdict();
    verdict.assert_clean();
    assert_eq!(verdict.losses, 0);
}

/// t13: a lease that is renewed while the wall clock jumps is neither lost nor cut short.
#[test]
fn t13_a_lease_does_not_look_at_the_wall_clock() {
    let dir = Dir::fresh();
    let more = ["--rounds=1", "--ttl=2s", "--hold-least=4s", "--hold-most=4s"];
    let mut holder = spawn(&dir, "memory:", "holder", &more);
    holder.wait_for("held");
    jump(&dir, "holder", "+1h");
    holder.wait_for("released");
    assert!(holder.wait().success());
    let history = history::read_file(&dir.path("holder.jsonl")).unwrap();
    let verdict = Judge::new(history).verdict();
    verdict.assert_clean();
    assert_eq!((verdict.grants, verdict.losses), (1, 0));
}

/// t14: a machine that slept past the ttl has lost its locks the moment it wakes, before anything is asked.
#[tokio::test]
async fn t14_a_suspended_machine_wakes_without_its_locks() {
    let clock = Clock::manual();
    let memory = Memory::with_clock(clock.clone());
    let (a, b) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = a.lock("k").await.unwrap();
    let view = guard.held();
    assert!(guard.is_held());
    clock.advance(Duration::from_secs(31));
    // No await lies between the jump and the answer.
    assert!(!guard.is_held() && !view.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(within("the signal", guard.lost()).await, Loss::Expired);
    let rival = within("the rival's turn", b.lock("k").into_future()).await.unwrap();
    assert!(rival.fence() > guard.fence());
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(rival.is_held());
}

/// t14: a sleep shorter than the ttl costs nothing.
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

/// t14: an owner that wakes and asks again re-enters nothing that it has lost: it hears of the loss,
/// or gets a new grant.
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

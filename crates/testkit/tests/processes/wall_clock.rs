//! Wall clocks of processes that jump.

use std::process::{Command, Stdio};

use tenure_testkit::clock::WallClock;
use tenure_testkit::history::{self, Event, History};
use tenure_testkit::judge::Judge;
use tenure_testkit::process::Program;

use crate::support::Dir;

/// A holder that uses the wall clock `clock`.
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

/// Whether the fences show the jump: they follow the wall clock when it runs ahead.
fn fences_jumped(history: &History) -> bool {
    const HALF_AN_HOUR: u64 = (30 * 60 * 1000 * 256) << 13;
    let fences = history.records().iter().filter_map(|record| match record.event {
        Event::Granted { fence, .. } => Some(fence),
        _ => None,
    });
    let fences: Vec<u64> = fences.collect();
    fences.windows(2).any(|pair| pair[1].abs_diff(pair[0]) > HALF_AN_HOUR)
}

/// t13: two processes whose wall clocks jump an hour ahead and an hour back hold the lock in turn, without
/// overlap or loss.
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

/// t13: a lease that is renewed while the wall clock jumps is neither lost nor shortened.
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

//! Fault t69: the lock ends before the command.

use crate::common::{
    Running, Space, assert_matches, bare, done, is_alive, pid_in, status_of, unread, wait_for,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// `--max-hold`: TERM comes first, and a command can end by itself; the status is 79.
#[test]
fn t69_max_hold_asks_first() {
    let space = Space::new();
    let script =
        "exec 2>/dev/null; trap 'echo asked > log; exit 0' TERM; while :; do sleep 0.01; done";
    let start = Instant::now();
    let run = done(space.sh("run --max-hold 1s --grace 400ms --status-file status.json k", script));
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: --max-hold 1s is nearly over; sent TERM to \d+, KILL in \d+ms\ntenure: lost k\n",
    );
    assert_eq!(space.read("log"), "asked\n");
    assert!(start.elapsed() < Duration::from_millis(950), "{:?}", start.elapsed());
    let report = space.report();
    assert_eq!((&report["outcome"], &report["loss"]), (&"lost".into(), &"max_hold".into()));
    assert_eq!(report["child"]["status"], 0);
    assert!(space.is_free("k"));
}

/// Without `--grace`, TERM comes after nine tenths of the time, less the reserve.
#[test]
fn t69_max_hold_asks_late() {
    let space = Space::new();
    let run = done(space.sh("run --max-hold 2s --status-file status.json k", "exec sleep 60"));
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: --max-hold 2s is nearly over; sent TERM to \d+, KILL in \d+ms\ntenure: lost k\n",
    );
    let held = space.report()["held_ms"].as_u64().unwrap();
    assert!((1_590..2_000).contains(&held), "{held}");
}

/// A command that ignores TERM is killed before the time is over, with all its descendants.
#[test]
fn t69_term_then_kill_for_the_whole_group() {
    let space = Space::new();
    let script = "trap '' TERM; sleep 60 & echo $! > grandchild; while :; do sleep 0.01; done";
    let run = done(space.sh("run --max-hold 5s --grace 300ms --status-file status.json k", script));
    assert_eq!(run.code, Some(79));
    let report = space.report();
    assert_eq!(report["child"]["signal"], 9);
    let held = report["held_ms"].as_u64().unwrap();
    assert!((4_490..5_000).contains(&held), "{report}");
    let grandchild = pid_in(&space.path("grandchild"));
    wait_for("the grandchild to die", || !is_alive(grandchild));
}

/// A stopped command is continued, so that it can react to TERM.
#[test]
fn t69_a_stopped_command_is_asked_too() {
    let space = Space::new();
    let script = "trap 'echo asked > log; exit 0' TERM; kill -STOP $$; exit 1";
    let run = done(space.sh("run --max-hold 1s --grace 400ms --status-file status.json k", script));
    assert_eq!(run.code, Some(79));
    assert_eq!(space.read("log"), "asked\n");
    assert_eq!(space.report()["child"]["status"], 0);
}

/// A descendant that ignores TERM does not outlive a command that obeys it.
#[test]
fn t69_stragglers_are_killed() {
    let space = Space::new();
    let straggler = "trap '' TERM; echo $$ > straggler; while :; do sleep 0.01; done";
    let script = "sh -c \"$0\" & sleep 60";
    let mut run = space.tenure(["run", "--max-hold", "1s", "k", "--", "sh", "-c", script]);
    run.arg(straggler);
    assert_eq!(done(run).code, Some(79));
    let pid = pid_in(&space.path("straggler"));
    wait_for("the straggler to die", || !is_alive(pid));
}

/// When the next holder starts, the command of the previous one is dead.
#[test]
fn t69_kill_lands_before_the_next_holder() {
    let space = Space::new();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let first = Running::start(space.sh("run --max-hold 5s --grace 200ms k", script));
    let pid = pid_in(&space.path("pid"));
    let alive = format!("kill -0 {pid} 2>/dev/null && grep -q '^State:.[^Z]' /proc/{pid}/status");
    let next = done(space.sh("run -q k", &format!("if {alive}; then exit 1; fi")));
    assert_eq!(next.code, Some(0));
    assert_eq!(first.finish().code, Some(79));
}

/// `--on-lost kill` sends no TERM.
#[test]
fn t69_on_lost_kill() {
    let space = Space::new();
    let script = "trap 'echo asked > log' TERM; while :; do sleep 0.01; done";
    let run = done(space.sh("run --max-hold 500ms --on-lost kill k", script));
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: --max-hold 500ms is nearly over; sent KILL to \d+\ntenure: lost k\n",
    );
    assert_eq!(space.read("log"), "");
}

/// `--on-lost ignore` lets the command finish; the status is still 79.
#[test]
fn t69_on_lost_ignore() {
    let space = Space::new();
    let script = "sleep 0.8; echo finished > log; exit 4";
    let run =
        done(space.sh("run --max-hold 300ms --on-lost ignore --status-file status.json k", script));
    assert_eq!(run.code, Some(79));
    assert_eq!(
        run.err,
        "tenure: losing k: --max-hold is over; the command continues\ntenure: lost k\n"
    );
    assert_eq!(space.read("log"), "finished\n");
    let report = space.report();
    assert_eq!((&report["loss"], &report["child"]["status"]), (&"max_hold".into(), &4.into()));
}

/// After a stop that was longer than its lease, `tenure` checks the lock before anything else.
#[test]
fn t69_a_suspended_run_kills_first() {
    let space = Space::new();
    let script = "trap 'echo asked > log' TERM CONT; echo $$ > pid; while :; do sleep 0.01; done";
    let args = "run -q -u memory: --ttl 1s --status-file status.json k";
    let mut command = bare(args.split(' ').chain(["--", "sh", "-c", script]));
    command.current_dir(space.path(""));
    let run = Running::start(command);
    let pid = pid_in(&space.path("pid"));
    run.send(Signal::SIGSTOP);
    // Only time can show that the lease of a stopped process has ended.
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(is_alive(pid));
    run.send(Signal::SIGCONT);
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: no renewal was confirmed in time; sent KILL to \d+\ntenure: lost k\n",
    );
    assert!(!is_alive(pid));
    assert_eq!(space.read("log"), "");
    let report = space.report();
    assert_eq!((&report["outcome"], &report["loss"]), (&"lost".into(), &"expired".into()));
}

/// After a stop that was shorter than its lease, `tenure` continues normally.
#[test]
fn t69_a_short_stop_does_no_harm() {
    let space = Space::new();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done";
    let run = Running::start(space.sh("run k", script));
    pid_in(&space.path("pid"));
    run.send(Signal::SIGSTOP);
    run.send(Signal::SIGCONT);
    std::fs::write(space.path("go"), "").unwrap();
    let run = run.finish();
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

/// A reader that does not read our messages does not delay the kill.
#[test]
fn t69_a_full_pipe_does_not_delay_the_kill() {
    let space = Space::new();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let mut run = space.sh("run --max-hold 800ms --grace 200ms k", script);
    let (reader, writer) = unread();
    let mut child = run.stderr(writer).spawn().unwrap();
    drop(run);
    let pid = pid_in(&space.path("pid"));
    let start = Instant::now();
    wait_for("the command to die", || !is_alive(pid));
    // Due when `--max-hold` ends, which began before the command did.
    assert!(start.elapsed() < Duration::from_millis(1_500), "{:?}", start.elapsed());
    assert_eq!(status_of(&mut child), Some(79));
    drop(reader);
}

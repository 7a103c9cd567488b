//! A Redis server that is unreachable, rejects requests, or loses its data: the messages, and that the
//! command is dead before another process can acquire the lock.

use crate::common::wait_for;
use crate::common::{Done, PASSWORD, Running, Space, assert_matches, bare, done, is_alive, pid_in};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const STUBBORN: &str = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";

/// Runs the tool with this URL to its end.
fn at(url: &str, args: &[&str]) -> Done {
    let mut run = bare(args);
    run.env("TENURE_URL", url);
    done(run)
}

/// t69: the server is killed: TERM, then KILL before the lease would have ended, then 79.
#[test]
fn t69_server_killed() {
    let space = Space::redis();
    let args = "run --ttl 2s --grace 400ms --status-file status.json k";
    let run = Running::start(space.sh(args, STUBBORN));
    let pid = pid_in(&space.path("pid"));
    space.server().kill();
    let killed = Instant::now();
    wait_for("the command to die", || !is_alive(pid));
    // The last confirmed renewal was before the server was killed.
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    let address = regex::escape(&space.address());
    assert_matches(
        &run.err,
        &format!(
            "tenure: losing k: no renewal confirmed for 1s \\(redis `{address}`: cannot connect: \
             Connection refused \\(os error 111\\)\\); sent TERM to \\d+, KILL in \\d+ms\n\
             tenure: lost k\n"
        ),
    );
    let report = space.report();
    assert_eq!((&report["outcome"], &report["loss"]), (&"lost".into(), &"expired".into()));
    assert_eq!(report["child"]["signal"], 9);
}

/// t69: a command that obeys TERM ends by itself, and the status is 79 too.
#[test]
fn t69_server_killed_and_term_followed() {
    let space = Space::redis();
    let script =
        "trap 'echo asked > log; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let run = Running::start(space.sh("run --ttl 2s --status-file status.json k", script));
    pid_in(&space.path("pid"));
    space.server().kill();
    assert_eq!(run.finish().code, Some(79));
    assert_eq!(
        (space.read("log").as_str(), &space.report()["child"]["status"]),
        ("asked\n", &0.into())
    );
}

/// t69: the server stops replying; when the next holder starts, the command of the previous one is dead.
#[test]
fn t69_kill_lands_before_the_next_holder() {
    let space = Space::redis();
    let first = Running::start(space.sh("run --ttl 2s --grace 300ms k", STUBBORN));
    let pid = pid_in(&space.path("pid"));
    let alive = format!("kill -0 {pid} 2>/dev/null && grep -q '^State:.[^Z]' /proc/{pid}/status");
    let script = format!("if {alive}; then exit 1; fi");
    let next = Running::start(space.sh("run -q k", &script));
    space.server().pause();
    wait_for("the command to die", || !is_alive(pid));
    space.server().go_on();
    assert_eq!(next.finish().code, Some(0));
    let first = first.finish();
    assert_eq!(first.code, Some(79));
    assert_matches(
        &first.err,
        r"tenure: losing k: no renewal confirmed for 1s( \([^\n]+\))?; sent TERM to \d+, KILL in \d+ms\ntenure: lost k\n",
    );
}

/// t69: if the server loses the lock, the command gets KILL at once.
#[test]
fn t69_server_forgets() {
    let space = Space::redis();
    let run = Running::start(space.sh("run --ttl 2s --status-file status.json k", STUBBORN));
    let pid = pid_in(&space.path("pid"));
    space.server().client().text(&["FLUSHALL"]);
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: the engine no longer knows it as ours; sent KILL to \d+\ntenure: lost k\n",
    );
    assert_eq!(space.report()["loss"], "gone");
    assert!(!is_alive(pid));
}

/// While the server works, a command that runs longer than the ttl is not disturbed.
#[test]
fn t69_renewals_keep_the_command_alive() {
    let space = Space::redis();
    let run = done(space.sh("run --ttl 500ms k", "sleep 1.5; exit 4"));
    assert_eq!((run.code, run.err.as_str()), (Some(4), ""));
}

/// t69: after a stop that was longer than its lease, `tenure` sends KILL before anything else, and the next
/// holder's lock is not touched.
#[test]
fn t69_a_suspended_run_kills_first() {
    let space = Space::redis();
    let run = Running::start(space.sh("run --ttl 1s k", STUBBORN));
    let pid = pid_in(&space.path("pid"));
    run.send(Signal::SIGSTOP);
    wait_for("the lease to end", || space.is_free("k"));
    let _next = space.hold("run k");
    run.send(Signal::SIGCONT);
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        r"tenure: losing k: no renewal was confirmed in time; sent KILL to \d+\ntenure: lost k\n",
    );
    assert!(!is_alive(pid) && !space.is_free("k"));
}

/// An unreachable server is 69 for every command; the message has its address and no password.
#[test]
fn server_down() {
    let space = Space::guarded();
    space.server().kill();
    let commands: [&[&str]; 6] = [
        &["run", "k", "--", "true"],
        &["ls"],
        &["show", "k"],
        &["acquire", "k", "--ttl", "1m"],
        &["release", "k", "--token", "00112233445566778899aabbccddeeff"],
        &["release", "k", "--force", "--yes"],
    ];
    for args in commands {
        let run = at(&space.secret_url(), args);
        assert_eq!((run.code, run.out.as_str()), (Some(69), ""), "{args:?}");
        assert_eq!(
            run.err,
            format!(
                "tenure: error: `TENURE_URL` in the environment: engine unavailable: redis `{}`: cannot connect: \
                 Connection refused (os error 111)\n",
                space.address()
            )
        );
    }
}

/// A wrong or missing password is 69, and the message does not repeat it.
#[test]
fn wrong_passwords() {
    let space = Space::guarded();
    let run = at(&format!("redis://:guess-{PASSWORD}@{}", space.address()), &["ls"]);
    assert_eq!(run.code, Some(69));
    let start = format!(
        "tenure: error: `TENURE_URL` in the environment: refused by the engine: redis `{}`: ",
        space.address()
    );
    assert_eq!(
        run.err,
        format!(
            "{start}the user name or password is wrong: WRONGPASS invalid username-password pair or \
             user is disabled.\n"
        )
    );
    let run = at(&space.url(), &["run", "k", "--", "true"]);
    assert_eq!(run.code, Some(69));
    assert!(
        run.err.starts_with(&format!("{start}the server wants a password: NOAUTH ")),
        "{run:?}"
    );
}

/// If the server becomes unreachable during a wait, a message reports it, and the wait ends soon: 69.
#[test]
fn server_killed_while_waiting() {
    let space = Space::redis();
    space.server().client().text(&["SET", "tenure:lock:k", "theirs", "PX", "60000"]);
    let mut waiter = Running::start(space.tenure(["run", "k", "--", "true"]));
    assert_eq!(
        waiter.line().split(", ").next().unwrap(),
        "tenure: waiting for k: held by an unknown holder"
    );
    space.server().kill();
    let refused =
        regex::escape(&format!("redis `{}`: cannot connect: Connection refused", space.address()));
    let run = waiter.finish();
    assert_eq!(run.code, Some(69));
    assert_matches(
        &run.err,
        &format!(
            "(tenure: waiting for the server of k: {refused} \\(os error 111\\)\n)*tenure: error: lock \
             `k`: engine unavailable: {refused} \\(os error 111\\) \\(gave up after [\\d.]+s\\)\n"
        ),
    );
}

/// `--wait` limits the wait for an unreachable server. Messages name the server and the time left; the last
/// one has the time waited.
#[test]
fn a_wait_for_the_server_is_reported() {
    let space = Space::redis();
    space.server().kill();
    let refused =
        regex::escape(&format!("redis `{}`: cannot connect: Connection refused", space.address()));
    for command in
        [&["run", "-w", "4s", "k", "--", "true"][..], &["acquire", "-w", "4s", "k", "--ttl", "1m"]]
    {
        let run = space.done(command);
        assert_eq!(run.code, Some(69), "{run:?}");
        assert_matches(
            &run.err,
            &format!(
                "(tenure: waiting for the server of k: {refused} \\(os error 111\\); giving up in [0-3]s\n)+\
                 tenure: error: lock `k`: engine unavailable: {refused} \\(os error 111\\) \
                 \\(gave up after [4-9][\\d.]*s\\)\n"
            ),
        );
    }
}

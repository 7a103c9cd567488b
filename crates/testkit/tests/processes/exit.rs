//! A program that ends right after it dropped a guard.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_testkit::process::Program;
use tenure_testkit::servers::{EtcdServer, RedisServer};

/// Every shape of `main` in which a drop runs.
const SHAPES: [&str; 9] = [
    "returns",
    "current-thread",
    "question-mark",
    "installed",
    "guard-only",
    "task",
    "task-of-current-thread",
    "thread",
    "panic",
];

fn start(words: &[&str]) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exits"));
    let mut program = Program::spawn(command.args(words).stderr(Stdio::null()));
    program.wait_for("holds");
    program
}

/// Runs the program to its end on a server that stops replying once the lock is held. Returns how long the end took.
fn end_on_a_hung(server: &RedisServer, how: &str) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("go");
    let mut program = start(&[&server.url(), how, file.to_str().unwrap()]);
    server.pause();
    std::fs::write(&file, "").unwrap();
    let started = Instant::now();
    program.wait();
    server.go_on();
    started.elapsed()
}

fn held(server: &RedisServer) -> bool {
    server.client().text(&["GET", "tenure:lock:k"]).is_some()
}

/// G7: a guard that is dropped at the end of `main` is released before the process has ended, however `main` ends.
#[test]
fn a_guard_dropped_at_the_end_is_released() {
    let server = RedisServer::start();
    for how in SHAPES {
        start(&[&server.url(), how]).wait();
        assert!(!held(&server), "{how}: the process has ended, and its lock is still held");
    }
}

/// The same on etcd, whose connections are made in another way.
#[test]
fn a_guard_dropped_at_the_end_is_released_on_etcd() {
    let server = EtcdServer::start();
    // Each program acquires the lock for ten minutes, so it could not follow one that left it held.
    for how in SHAPES {
        start(&[&server.url(), how]).wait();
    }
    start(&[&server.url(), "returns"]).wait();
}

/// G7: a program ends soon although its server does not reply: the wait for releases has a limit.
#[test]
fn the_end_is_not_kept_up_by_a_server_that_hangs() {
    for how in ["returns", "current-thread", "task", "thread", "panic"] {
        let took = end_on_a_hung(&RedisServer::start(), how);
        assert!(took < Duration::from_secs(4), "{how}: {took:?}");
    }
}

/// G7: the limit is one for all guards: forty that outlive their locker end as soon as one does.
#[test]
fn the_end_has_one_limit_for_all_guards() {
    for how in ["many-guards", "many-tasks", "many-tasks-of-current-thread"] {
        let took = end_on_a_hung(&RedisServer::start(), how);
        assert!(took < Duration::from_secs(4), "{how}: {took:?}");
    }
}

/// With `flush_timeout(0)` the drop does not wait.
#[test]
fn a_flush_timeout_of_zero_does_not_wait() {
    let waits = end_on_a_hung(&RedisServer::start(), "returns");
    assert!(waits >= Duration::from_millis(500), "{waits:?}");
    let shortest = (0..5).map(|_| end_on_a_hung(&RedisServer::start(), "never-waits")).min();
    assert!(shortest < Some(Duration::from_millis(400)), "{shortest:?}");
}

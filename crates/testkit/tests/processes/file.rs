//! Processes on `file:` that are stopped, killed, forked, or exit.

use std::process::Command;

use tenure_testkit::conformance::start;
use tenure_testkit::process::Program;
use tenure_testkit::wait::{eventually, nothing_is_left, within};

use crate::support::Dir;

fn holder(command: &str, url: &str) -> Command {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_holder"));
    holder.args([command, "--url", url, "--key=k"]);
    holder
}

/// A program that holds `k` on `file:` until it is ended.
fn holds(dir: &Dir) -> Program {
    let mut command = holder("hold", &dir.url());
    command.args(["--owner=p", "--hold-least=1h", "--hold-most=1h", "--ttl=300ms"]);
    command.arg("--history").arg(dir.path("p.jsonl")).arg("--registers").arg(dir.path(""));
    let mut program = Program::spawn(&mut command);
    program.wait_for("held");
    program
}

/// t01: a stopped process keeps its lock on `file:` for as long as it lives: there is no lease that expires.
#[tokio::test]
async fn t01_a_stopped_process_keeps_its_file_lock() {
    let dir = Dir::fresh();
    let program = holds(&dir);
    program.stop();
    let rival = dir.locker();
    let clock = rival.clock();
    let until = clock.now().after(std::time::Duration::from_millis(900));
    eventually("three ttls to pass", || async { clock.now() >= until }).await;
    assert!(rival.try_lock("k").await.unwrap().is_none());
    let shown = rival.inspect("k").await.unwrap().unwrap();
    assert_eq!(shown.holders[0].holder.process.as_ref().unwrap().pid, program.pid());
    program.go_on();
}

/// t32: a killed process's lock on `file:` goes to the waiter.
#[tokio::test]
async fn t32_a_killed_process_frees_its_file_lock() {
    let dir = Dir::fresh();
    let mut program = holds(&dir);
    let rival = dir.locker();
    let wait = tokio::spawn(start(rival.lock("k")).await);
    program.kill();
    let (clock, killed) = (rival.clock(), rival.clock().now());
    let guard = within("the rival's turn", wait).await.unwrap().unwrap();
    let took = clock.now().since(killed);
    let most = std::time::Duration::from_millis(700);
    assert!(took < most, "the kernel frees it at once, not after {took:?}");
    guard.release().await.unwrap();
    nothing_is_left(&rival, "k").await;
}

/// t53: a forked child can neither release nor acquire. The parent keeps its lock, and can release it
/// although the child lives.
fn fork_on(url: &str) {
    let mut program = Program::spawn(&mut holder("fork", url));
    program.wait_for("held");
    let said = program.wait_for("child");
    let forked = "belongs to the process that forked this one";
    assert_eq!(said.matches(forked).count(), 2, "{said}");
    for _ in ["dropped", "released"] {
        assert_eq!(program.wait_for("parent holds"), "true");
        assert_eq!(program.wait_for("free after release"), "true");
    }
    assert_eq!(program.wait_for("child ended"), "true");
    assert!(program.wait().success());
}

/// t53: on `file:`, where the child inherits the open files that carry the kernel's locks.
#[test]
fn t53_a_forked_child_cannot_use_the_lock_on_file() {
    fork_on(&Dir::fresh().url());
}

/// t53: on `memory:`, where the child inherits a copy of the store itself.
#[test]
fn t53_a_forked_child_cannot_use_the_lock_on_memory() {
    fork_on("memory:");
}

/// t54: a process that exits without a release leaves nothing on `file:`.
#[tokio::test]
async fn t54_a_process_that_exits() {
    let dir = Dir::fresh();
    let mut program = Program::spawn(&mut holder("exit", &dir.url()));
    program.wait_for("held");
    assert!(program.wait().success());
    nothing_is_left(&dir.locker(), "k").await;
}

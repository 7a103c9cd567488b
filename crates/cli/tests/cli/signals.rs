//! Signals to `tenure`: during a wait, while the command runs, and SIGKILL.

use crate::common::{Running, Space, is_alive, pid_in, state, wait_for};
use nix::sys::signal::Signal;

/// A signal ends a wait at once with 128+N, and nothing of the wait is left.
#[test]
fn t54_signals_end_a_wait() {
    let space = Space::new();
    let holder = space.hold("run k");
    let signals = [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)];
    for (signal, code) in signals {
        let file = ["run", "--status-file", "status.json", "k", "--", "touch", "ran"];
        let mut waiter = Running::start(space.tenure(file));
        assert!(waiter.line().starts_with("tenure: waiting for k"));
        waiter.send(signal);
        assert_eq!(waiter.finish().code, Some(code));
        assert_eq!(space.report()["outcome"], "interrupted");
    }
    space.let_go();
    assert_eq!(holder.finish().code, Some(0));
    assert!(space.is_free("k"));
    assert!(!space.path("ran").exists());
}

/// Ctrl-C and similar signals reach the command, and the lock is free after its end.
#[test]
fn t69_signals_are_forwarded_and_the_lock_released() {
    let space = Space::new();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGQUIT, 131)] {
        let holder = space.hold("run k");
        holder.send(signal);
        assert_eq!(holder.finish().code, Some(code));
        assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(0));
        space.let_go();
    }
}

/// A command that handles the signal chooses its own status, and holds the lock until it ends.
#[test]
fn t54_the_lock_is_kept_until_the_command_ends() {
    let space = Space::new();
    let script = "trap 'touch told; while [ ! -e go ]; do sleep 0.01; done; exit 5' TERM; \
                  touch held; while :; do sleep 0.01; done";
    let run = Running::start(space.sh("run k", script));
    wait_for("the command", || space.path("held").exists());
    run.send(Signal::SIGTERM);
    wait_for("the signal to arrive", || space.path("told").exists());
    assert!(!space.is_free("k"));
    std::fs::write(space.path("go"), "").unwrap();
    assert_eq!(run.finish().code, Some(5));
    assert!(space.is_free("k"));
}

/// Signals that matter only to the command reach it too.
#[test]
fn other_signals_are_forwarded() {
    let space = Space::new();
    let script = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo winch' WINCH; \
                  trap 'exit 7' ALRM; touch held; while :; do sleep 0.01; done";
    let run = Running::start(space.sh("run k", &format!("exec > log; {script}")));
    wait_for("the command", || space.path("held").exists());
    for (signal, word) in
        [(Signal::SIGUSR1, "usr1"), (Signal::SIGUSR2, "usr2"), (Signal::SIGWINCH, "winch")]
    {
        run.send(signal);
        wait_for(word, || space.read("log").contains(word));
    }
    run.send(Signal::SIGALRM);
    assert_eq!(run.finish().code, Some(7));
}

/// A signal that `nohup` makes us ignore is ignored by the command too.
#[test]
fn ignored_signals_stay_ignored() {
    let space = Space::new();
    let script = "touch held; while [ -e held ]; do sleep 0.01; done";
    let tool = assert_cmd::cargo::cargo_bin!("tenure").display().to_string();
    let mut nohup = std::process::Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" run k -- sh -c \"$1\"", &tool, script]);
    nohup.env("TENURE_URL", space.url()).current_dir(space.path(""));
    let run = Running::start(nohup);
    wait_for("the command", || space.path("held").exists());
    run.send(Signal::SIGHUP);
    assert!(!space.is_free("k"));
    space.let_go();
    assert_eq!(run.finish().code, Some(0));
}

/// If we are killed, the kernel kills the command and frees the lock at once.
#[test]
fn t69_sigkill_takes_the_command_along() {
    let space = Space::new();
    let run = Running::start(space.sh("run k", "echo $$ > pid; exec sleep 60"));
    let pid = pid_in(&space.path("pid"));
    run.send(Signal::SIGKILL);
    assert_eq!(run.finish().code, None);
    wait_for("the command to die", || !is_alive(pid));
    assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(0));
}

/// Stop and continue reach the command without a terminal; the lock stays held meanwhile.
#[test]
fn stops_are_forwarded() {
    let space = Space::new();
    // The command must not be starting other processes: a shell that is stopped within a vfork is not
    // reported as stopped.
    nix::unistd::mkfifo(&space.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = Running::start(space.sh("run k", "echo $$ > pid; read line < go"));
    let pid = pid_in(&space.path("pid"));
    run.send(Signal::SIGTSTP);
    wait_for("the command to stop", || state(pid) == "T");
    assert!(!space.is_free("k"));
    run.send(Signal::SIGCONT);
    std::fs::write(space.path("go"), "on\n").unwrap();
    assert_eq!(run.finish().code, Some(0));
}

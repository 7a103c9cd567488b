//! Our output has no reader: no lock, no kill and no exit waits for one.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{Space, assert_matches, bare, status_of, unread, wait_for};

/// Runs a command whose stderr has no reader, and returns its status.
fn with_unread_stderr(mut command: Command) -> Option<i32> {
    let (_reader, writer) = unread();
    let mut child = command.stderr(writer).spawn().unwrap();
    status_of(&mut child)
}

/// t120: the messages before and after a wait delay neither the command nor the end of the run.
#[test]
fn a_run_after_a_wait() {
    let space = Space::redis();
    let holder = space.hold("run k");
    let (_reader, writer) = unread();
    let mut run = space.sh("run k", "echo started > log").stderr(writer).spawn().unwrap();
    // Longer than the silence at the start of a wait: the first line has been printed.
    wait_for("a wait of a second", || {
        space.show("k")["waiters"][0]["waiting_ms"].as_u64().is_some_and(|ms| ms > 1_000)
    });
    space.let_go();
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(status_of(&mut run), Some(0));
    assert_eq!(space.read("log"), "started\n");
    assert!(space.is_free("k"));
}

/// t120: messages at the start, and the engine's log, cause no delay either.
#[test]
fn a_run_with_more_messages() {
    let space = Space::new();
    for args in ["run -u memory: k", "run -vv k"] {
        let status = with_unread_stderr(space.sh(args, "echo started > log"));
        assert_eq!((status, space.read("log").as_str()), (Some(0), "started\n"), "{args}");
        std::fs::remove_file(space.path("log")).unwrap();
    }
}

/// An error exits with its status, also if its message is not read.
#[test]
fn errors() {
    assert_eq!(with_unread_stderr(bare(["run", "--nonsense"])), Some(64));
    assert_eq!(with_unread_stderr(bare(["ls", "-u", "zoo://h"])), Some(64));
}

/// `acquire` prints the token, also if its messages are not read.
#[test]
fn an_acquire() {
    let space = Space::redis();
    let (_reader, writer) = unread();
    let mut acquire = space.tenure(["acquire", "k", "--ttl", "1m"]);
    let mut acquire = acquire.stderr(writer).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(status_of(&mut acquire), Some(0));
    let token = std::io::read_to_string(acquire.stdout.take().unwrap()).unwrap();
    assert_matches(&token, "[0-9a-f]{32}\n");
}

/// If the token is not read, `acquire` waits no longer than the lease, and a signal ends the wait.
#[test]
fn a_token() {
    let space = Space::redis();
    let (_reader, writer) = unread();
    let mut acquire = space.tenure(["acquire", "k", "--ttl", "1m"]).stdout(writer).spawn().unwrap();
    wait_for("the lock to be held", || !space.is_free("k"));
    kill(Pid::from_raw(acquire.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(status_of(&mut acquire), Some(143));
    assert!(space.is_free("k"));
    let (_reader, writer) = unread();
    let mut acquire = space.tenure(["acquire", "k", "--ttl", "1s"]).stdout(writer).spawn().unwrap();
    assert_eq!(status_of(&mut acquire), Some(64));
    assert!(space.is_free("k"));
}

/// A report is dropped if its pipe is full.
#[test]
fn a_status_file() {
    let space = Space::new();
    let (_reader, writer) = unread();
    let mut run = space.tenure(["run", "--status-file", "/dev/stdout", "k", "--", "true"]);
    let mut run = run.stdout(writer).spawn().unwrap();
    assert_eq!(status_of(&mut run), Some(0));
}

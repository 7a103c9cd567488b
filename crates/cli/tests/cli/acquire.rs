//! `tenure acquire`: a lock that a script holds.

use crate::common::{Done, Running, Space, assert_matches, bare, done, wait_for};
use crate::screen::Screen;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NOT_RENEWED: &str =
    r"tenure: k has a ttl of 1m00s and is not renewed: rely on it until \d{4}-\d\d-\d\dT[\d:]+Z\n";

/// F1: only the token is on stdout, and the lock stays held under it after `tenure` has ended.
#[test]
fn the_token_is_printed() {
    let space = Space::redis();
    let run = space.done(["acquire", "k", "--ttl", "1m", "--reason", "by hand"]);
    assert_eq!(run.code, Some(0));
    assert_matches(&run.out, "[0-9a-f]{32}\n");
    assert_matches(&run.err, NOT_RENEWED);
    let holder = &space.show("k")["holders"][0];
    assert_eq!((&holder["program"], &holder["reason"]), (&"tenure".into(), &"by hand".into()));
    let run = space.done(["-q", "acquire", "j", "--ttl", "1m"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

/// The script of the help text works: acquire, work, release without showing the token.
#[test]
fn as_in_the_help() {
    let space = Space::redis();
    let tool = assert_cmd::cargo::cargo_bin!("tenure").display().to_string();
    let script = "token=$(\"$0\" acquire k --ttl 1m) || exit; \"$0\" show k | head -1; \
                  printf %s \"$token\" | \"$0\" release k --token-file -";
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", script, &tool]).env("TENURE_URL", space.url());
    let run = Running::start(sh).finish();
    assert_eq!((run.code, run.out.as_str()), (Some(0), "k\n"));
    assert_matches(&run.err, &format!("{NOT_RENEWED}tenure: released k\n"));
    assert_eq!(space.keys(), [""; 0]);
}

/// `--json` has the token, the fence, and the time until which the lock can be relied on.
#[test]
fn as_json() {
    let space = Space::redis();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let run = space.done(["acquire", "k", "--ttl", "1m", "--json"]);
    assert_matches(&run.err, NOT_RENEWED);
    let value: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(
        (&value["schema"], &value["key"], &value["ttl_ms"]),
        (&1.into(), &"k".into(), &60_000.into())
    );
    assert_eq!(value["token"].as_str().unwrap().len(), 32);
    assert!(value["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{value}");
    assert!(value["waited_ms"].as_u64().is_some(), "{value}");
    let until = Duration::from_millis(value["valid_until_unix_ms"].as_u64().unwrap());
    let relied_on = until - before;
    // Never later than the server's expiry; the margin is a hundredth of the ttl.
    assert!(
        relied_on > Duration::from_secs(59) && relied_on < Duration::from_secs(62),
        "{relied_on:?}"
    );
}

/// The lock is not renewed: it ends with its ttl.
#[test]
fn it_ends_by_itself() {
    let space = Space::redis();
    let token = space.done(["acquire", "k", "--ttl", "300ms"]).out;
    wait_for("the lease to end", || space.keys().is_empty());
    let run = space.done(["release", "k", "--token", token.trim()]);
    assert_eq!(run.code, Some(79));
    assert_eq!(
        run.err,
        "tenure: not released: k is not held with this token, or no longer; it is free\n"
    );
}

/// If another process holds the lock, the status is 75 or the value of `-E`, with the messages of `run`.
#[test]
fn not_acquired() {
    let space = Space::redis();
    let _holder = space.hold("run k");
    let busy = "tenure: not acquired: k is held by WHO for \\d+s";
    let run = space.done(["acquire", "-n", "k", "--ttl", "1m"]);
    assert_eq!((run.code, run.out.as_str()), (Some(75), ""));
    assert_matches(&run.err, &format!("{busy}\nhint: tenure show k\n"));
    let run = space.done(["acquire", "-w", "100ms", "-E", "3", "k", "--ttl", "1m"]);
    assert_eq!((run.code, run.out.as_str()), (Some(3), ""));
    assert_matches(&run.err, &format!("{busy} \\(gave up after 100ms\\)\nhint: tenure show k\n"));
}

/// A wait is reported as in `run`, and ends with the lock.
#[test]
fn after_a_wait() {
    let space = Space::redis();
    let holder = space.hold("run k");
    let mut waiter = Running::start(space.tenure(["acquire", "k", "--ttl", "1m"]));
    assert!(waiter.line().starts_with("tenure: waiting for k: held "));
    space.let_go();
    assert_eq!(holder.finish().code, Some(0));
    let run = waiter.finish();
    assert_eq!(run.code, Some(0));
    let waited =
        r"(tenure: waiting [^\n]+\n)*tenure: acquired k after (\d+ms|\d+(\.\d)?s) \(fence \d+\)\n";
    assert_matches(&run.err, &format!("{waited}{NOT_RENEWED}"));
    assert_matches(&run.out, "[0-9a-f]{32}\n");
}

/// t120: if the token cannot be printed, the lock is released.
#[test]
fn a_token_that_cannot_be_printed() {
    let space = Space::redis();
    let mut run = space.tenure(["acquire", "k", "--ttl", "1m"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = run.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "tenure: error: cannot print the token of `k`: No space left on device (os error 28); \
         the lock was released\n"
    );
    assert_eq!(space.keys(), [""; 0]);
}

/// A closed stdout is detected before the lock is acquired. A failed write to stdout is detected too.
#[test]
fn a_closed_stdout() {
    let space = Space::redis();
    let tool = assert_cmd::cargo::cargo_bin!("tenure").display().to_string();
    for (stdout, why) in [
        (">&-", "stdout is closed"),
        ("1</dev/zero", "Bad file descriptor (os error 9); the lock was released"),
    ] {
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", &format!("\"$0\" acquire k --ttl 1m {stdout}"), &tool]);
        let run = done({
            sh.env("TENURE_URL", space.url());
            sh
        });
        assert_eq!(run.code, Some(64), "{run:?}");
        assert_eq!(run.err, format!("tenure: error: cannot print the token of `k`: {why}\n"));
        assert_eq!(space.keys(), [""; 0]);
    }
    let run = Running::start(space.tenure(["acquire", "k", "--ttl", "1m"])).finish();
    assert_eq!(run.code, Some(0), "{run:?}");
}

fn refused(run: &Done, engine: &str, before: &str) {
    assert_eq!((run.code, run.out.as_str()), (Some(64), ""));
    assert_matches(
        &run.err,
        &format!(
            "{before}tenure: error: `tenure acquire` needs a server: a lock of `{engine}` ends with its \
             process\nhint: name a server with --url, or use `tenure run`\n"
        ),
    );
}

/// If locks end with their process, `acquire` is rejected, and nothing is created.
#[test]
fn refused_without_a_server() {
    let space = Space::untouched();
    refused(&space.done(["acquire", "k", "--ttl", "1m"]), "file:", "");
    assert!(!space.path("locks").exists());
    let alone = "tenure: memory: is not shared with other processes and excludes none of them\n";
    refused(&done(bare(["-u", "memory:", "acquire", "k", "--ttl", "1m"])), "memory:", alone);
    let default = r"tenure: no --url given, using file:/tmp/tenure-\d+\n";
    refused(&done(bare(["acquire", "k", "--ttl", "1m"])), "file:", default);
}

/// `--ttl` is required, and an invalid ttl is rejected before anything is sent.
#[test]
fn the_ttl_is_required() {
    let space = Space::redis();
    let run = space.done(["acquire", "k"]);
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "error: the following required arguments were not provided:\n  --ttl <DUR>\n\n\
         Usage: tenure acquire --ttl <DUR> <KEY>\n\nFor more information, try '--help'.\n"
    );
    let run = space.done(["acquire", "k", "--ttl", "0s"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        r"tenure: error: ttl \(0ns\) must be between \S+ and \S+ on `redis`\n",
    );
    assert_eq!(space.keys(), [""; 0]);
}

/// On a terminal, a hint shows how to release the lock.
#[test]
fn on_a_terminal() {
    let space = Space::redis();
    let mut acquire = bare(["-u", &space.url(), "acquire", "k", "--ttl", "1m"]);
    let screen = Screen::start(acquire.env("NO_COLOR", "1"));
    screen.expect(&format!("hint: tenure release -u {} --token TOKEN k\r\n", space.url()));
}

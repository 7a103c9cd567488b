//! `tenure acquire`: a lock that a script holds.

use crate::common::{Done, Running, Space, assert_matches, bare, done, wait_for};
use crate::screen::Screen;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SAID: &str = r"tenure: k has a ttl of 1m00s and nobody renews it: rely on it until \d{4}-\d\d-\d\dT[\d:]+Z\n";

/// The token alone is on stdout, and the lock is held under it although we have ended.
#[test]
fn the_token_is_printed() {
    let space = Space::redis();
    let run = space.done(["acquire", "k", "--ttl", "1m", "--reason", "by hand"]);
    assert_eq!(run.code, Some(0));
    assert_matches(&run.out, "[0-9a-f]{32}\n");
    assert_matches(&run.err, SAID);
    let holder = &space.show("k")["holders"][0];
    assert_eq!((&holder["program"], &holder["reason"]), (&"tenure".into(), &"by hand".into()));
    let run = space.done(["-q", "acquire", "j", "--ttl", "1m"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

/// A script can do what the help says: take, work, give back without showing the token to anybody.
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
    assert_matches(&run.err, &format!("{SAID}tenure: released k\n"));
    assert_eq!(space.keys(), [""; 0]);
}

/// `--json` has the token, the fence, and until when the lock can be relied on.
#[test]
fn as_json() {
    let space = Space::redis();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let run = space.done(["acquire", "k", "--ttl", "1m", "--json"]);
    assert_matches(&run.err, SAID);
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
    // Never later than the server keeps it; the margin is a hundredth.
    assert!(
        relied_on > Duration::from_secs(59) && relied_on < Duration::from_secs(62),
        "{relied_on:?}"
    );
}

/// Nobody renews it: it ends with its ttl.
#[test]
fn it_ends_by_itself() {
    let space = Space::redis();
    let token = space.done(["acquire", "k", "--ttl", "300ms"]).out;
    wait_for("the lease to end", || space.keys().is_empty());
    let run = space.done(["release", "k", "--token", token.trim()]);
    assert_eq!(run.code, Some(79));
    assert_eq!(
        run.err,
        "tenure: not released: k is not held under this token (any more); it is free\n"
    );
}

/// A lock that another has is 75 or what `-E` says, with the words of `run`.
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

/// A wait is told of as `run` does, then ends with the lock.
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
    assert_matches(&run.err, &format!("{waited}{SAID}"));
    assert_matches(&run.out, "[0-9a-f]{32}\n");
}

/// A token that reaches nobody leaves no lock.
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
         the lock was given back\n"
    );
    assert_eq!(space.keys(), [""; 0]);
}

/// A closed stdout is known before the lock is taken; one that cannot be written to is not taken for written.
#[test]
fn a_closed_stdout() {
    let space = Space::redis();
    let tool = assert_cmd::cargo::cargo_bin!("tenure").display().to_string();
    for (stdout, why) in [
        (">&-", "stdout is closed"),
        ("1</dev/zero", "Bad file descriptor (os error 9); the lock was given back"),
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
             process\nhint: name a server with --url, or put the work under `tenure run`\n"
        ),
    );
}

/// Where a lock ends with its process there is nothing to hand to a script, and nothing is created.
#[test]
fn refused_without_a_server() {
    let space = Space::untouched();
    refused(&space.done(["acquire", "k", "--ttl", "1m"]), "file:", "");
    assert!(!space.path("locks").exists());
    let alone = "tenure: memory: is shared with no other process, nothing is excluded\n";
    refused(&done(bare(["-u", "memory:", "acquire", "k", "--ttl", "1m"])), "memory:", alone);
    let default = r"tenure: no --url given, using file:/tmp/tenure-\d+\n";
    refused(&done(bare(["acquire", "k", "--ttl", "1m"])), "file:", default);
}

/// The ttl is not ours to choose, and one that makes no sense is refused before anything is sent.
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

/// A person on a terminal is told how to give it back.
#[test]
fn on_a_terminal() {
    let space = Space::redis();
    let mut acquire = bare(["-u", &space.url(), "acquire", "k", "--ttl", "1m"]);
    let screen = Screen::start(acquire.env("NO_COLOR", "1"));
    screen.expect(&format!("hint: tenure release -u {} --token TOKEN k\r\n", space.url()));
}

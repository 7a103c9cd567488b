//! Two runs and one lock: who waits, the messages, and how a wait ends.

use crate::common::{Running, Space, assert_matches, bare, done, wait_for};
use std::time::{Duration, Instant};

/// The part of a message that describes a holder of these tests.
const HELD: &str = r"held \d+s by WHO \(pid \d+\)";

/// The second of two runs waits for the first and runs after it; a short wait has no message.
#[test]
fn runs_exclude_each_other() {
    let space = Space::new();
    let script = "echo in >> log; sleep 0.05; echo out >> log";
    let runs: Vec<Running> = (0..4).map(|_| Running::start(space.sh("run -q k", script))).collect();
    for run in runs {
        assert_eq!(run.finish().code, Some(0));
    }
    assert_eq!(space.read("log"), "in\nout\n".repeat(4));
}

/// Different keys do not wait for each other.
#[test]
fn other_keys_are_free() {
    let space = Space::new();
    let _holder = space.hold("run a");
    assert_eq!(space.done(["run", "-n", "b", "--", "true"]).code, Some(0));
}

/// A wait below 400 ms has no message.
#[test]
fn short_waits_are_silent() {
    let space = Space::new();
    let holder = Running::start(space.sh("run k", "touch held; sleep 0.15"));
    wait_for("the lock to be held", || space.path("held").exists());
    let run = space.done(["run", "k", "--", "true"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert_eq!(holder.finish().code, Some(0));
}

/// The messages of a longer wait: the holder and its reason; at the end, the time waited.
#[test]
fn long_waits_are_reported() {
    let space = Space::new();
    let holder = space.hold("run --reason release_41 db-migrate");
    let mut waiter = Running::start(space.tenure(["run", "db-migrate", "--", "true"]));
    let line = waiter.line();
    assert_matches(
        &line,
        r#"tenure: waiting for db-migrate: held \d+s by WHO \(pid \d+, "release_41"\)(, you are 1st)?"#,
    );
    space.let_go();
    let run = waiter.finish();
    assert_eq!(run.code, Some(0));
    assert_matches(
        &run.err,
        r"tenure: acquired db-migrate after (\d+ms|\d+(\.\d)?s) \(fence \d+\)\n",
    );
    assert_eq!(holder.finish().code, Some(0));
}

/// With `-q` a wait has no messages.
#[test]
fn quiet_waits_are_silent() {
    let space = Space::new();
    let _holder = space.hold("run k");
    let run = space.done(["run", "-q", "-w", "600ms", "k", "--", "true"]);
    assert_eq!((run.code, run.err.as_str()), (Some(75), ""));
}

/// `-n` reports the holder at once, with a hint.
#[test]
fn no_wait_names_the_holder() {
    let space = Space::new();
    let _holder = space.hold("run k");
    let start = Instant::now();
    let run = space.done(["run", "-n", "k", "--", "true"]);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(run.code, Some(75));
    assert_matches(
        &run.err,
        "tenure: not acquired: k is held by WHO for \\d+s\nhint: tenure show k\n",
    );
}

/// The hint contains the URL of the run.
#[test]
fn hints_lead_to_the_same_place() {
    let space = Space::new();
    let _holder = space.hold("run k");
    let url = space.url();
    std::fs::write(space.path("url"), &url).unwrap();
    for option in [["-u", &url], ["--url-file", "url"]] {
        let mut run = bare(option.iter().chain(&["run", "-n", "k", "--", "true"]));
        run.current_dir(space.path(""));
        let run = done(run);
        let hint = format!("hint: tenure show {} k\n", option.join(" "));
        assert!(run.code == Some(75) && run.err.ends_with(&hint), "{run:?}");
    }
}

/// A wait with a limit ends in time, and its message has the result.
#[test]
fn waits_time_out() {
    let space = Space::new();
    let _holder = space.hold("run k");
    let run = space.done(["run", "-w", "600ms", "k", "--", "true"]);
    assert_eq!(run.code, Some(75));
    assert_matches(
        &run.err,
        &format!(
            "tenure: waiting for k: {HELD}(, you are 1st)?\ntenure: not acquired: k is held by \
             WHO for \\d+s \\(gave up after 600ms\\)\nhint: tenure show k\n"
        ),
    );
}

/// `--min-hold` keeps the lock closed after a short run; the message for the next run explains it.
#[test]
fn min_hold_keeps_twins_apart() {
    let space = Space::new();
    let start = Instant::now();
    let first = space.done(["run", "--min-hold", "1s", "k", "--", "true"]);
    assert_eq!((first.code, first.err.as_str()), (Some(0), ""));
    assert!(start.elapsed() < Duration::from_millis(900), "a run does not wait for its own rest");
    let twin = space.done(["run", "-n", "k", "--", "true"]);
    assert_eq!(twin.code, Some(75), "{twin:?}");
    assert_matches(
        &twin.err,
        "tenure: not acquired: k was released by WHO and is kept closed for another \\d+s\n\
         hint: tenure show k\n",
    );
    let late = space.done(["run", "-q", "k", "--", "true"]);
    assert_eq!(late.code, Some(0));
    assert!(start.elapsed() >= Duration::from_secs(1));
}

/// A ttl has no effect if locks end with their process; a message appears only if a ttl was set.
#[test]
fn ttl_on_file() {
    let space = Space::new();
    let run = space.done(["run", "--ttl", "10s", "k", "--", "true"]);
    assert_eq!(run.code, Some(0));
    assert_eq!(
        run.err,
        "tenure: --ttl has no effect on file: locks, they end with their process\n"
    );
}

/// Without a URL the user's own directory is used; one message reports it, unless `-q`.
#[test]
fn the_default_place_is_printed() {
    let expected = r"tenure: no --url given, using file:/tmp/tenure-\d+\n";
    let run = done(bare(["run", "tenure-cli-test", "--", "true"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_matches(&run.err, expected);
    let run = done(bare(["-q", "run", "tenure-cli-test", "--", "true"]));
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert_matches(&done(bare(["show", "tenure-cli-test"])).err, expected);
}

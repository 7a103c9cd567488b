//! `tenure watch`, and the position in the queue in `run` and `show`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{Done, Running, Space, assert_matches, bare, done, wait_for};

/// `2026-11-16T02:00:05.123Z`.
const AT: &str = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z";

/// `tenure ARGS`, where ARGS are separated by spaces.
fn tool(space: &Space, args: &str) -> Command {
    space.tenure(args.split_whitespace())
}

/// A command that holds its lock until the file `go` exists.
fn until(go: &str) -> String {
    format!("touch has-{go}; while [ ! -e {go} ]; do sleep 0.01; done")
}

fn holds(space: &Space, args: &str, go: &str) -> Running {
    let run = Running::start(space.sh(args, &until(go)));
    wait_for("the lock to be held", || space.path(&format!("has-{go}")).exists());
    run
}

/// Starts a watch, and returns when it is ready.
fn watching(command: Command) -> Running {
    let mut watch = Running::start(command);
    assert_matches(&watch.line(), "tenure: watching, \\d+ locks? (is|are) held now");
    watch
}

fn touch(space: &Space, name: &str) {
    std::fs::write(space.path(name), "").unwrap();
}

fn succeeds(run: Running) -> Done {
    let done = run.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    done
}

/// Acquired, handed over to the next process, released: the full text of each line.
#[test]
fn events_in_words() {
    let space = Space::redis();
    let watch = watching(tool(&space, "watch --count 3"));
    let first = holds(&space, "run --reason one db-migrate", "one");
    let mut second = Running::start(space.sh("run db-migrate", &until("two")));
    assert!(second.line().starts_with("tenure: waiting for db-migrate: held "));
    let (one, two) = (first.pid(), second.pid());
    touch(&space, "one");
    succeeds(first);
    wait_for("the turn", || space.path("has-two").exists());
    touch(&space, "two");
    succeeds(second);
    let run = succeeds(watch);
    assert_eq!(run.err, "");
    assert_matches(
        &run.out,
        &format!(
            "{AT} db-migrate acquired by WHO \\(pid {one}, \"one\"\\)\n\
             {AT} db-migrate handed over to WHO \\(pid {two}\\) by WHO \\(pid {one}, \"one\"\\) after \\d+s\n\
             {AT} db-migrate released by WHO \\(pid {two}\\) after \\d+s\n"
        ),
    );
}

/// Acquired, handed over and released as JSON: one object per line, with the fields of `ls`.
#[test]
fn events_as_json() {
    let space = Space::redis();
    let watch = watching(tool(&space, "watch --json --count 2 db*"));
    succeeds(Running::start(space.sh("run other", "true")));
    let first = holds(&space, "run --reason one db", "one");
    let pid = first.pid();
    touch(&space, "one");
    succeeds(first);
    let run = succeeds(watch);
    let who = |left: &str| {
        format!(
            "\\{{\"user\":\"[^\"]+\",\"host\":\"[^\"]+\",\"pid\":{pid},\"program\":\"tenure\",\
             \"since_unix_ms\":\\d+,\"label\":null,\"reason\":\"one\",\"held_ms\":\\d+,\
             \"lease_left_ms\":{left},\"cooling_down\":false,\"fence\":\"\\d+\"\\}}"
        )
    };
    let line = |event: &str, left: &str| {
        format!(
            "\\{{\"schema\":1,\"at_unix_ms\":\\d+,\"event\":\"{event}\",\"key\":\"db\",\
             \"holder\":{},\"from\":null,\"by\":null,\"waiters\":0\\}}\n",
            who(left)
        )
    };
    assert_matches(&run.out, &(line("acquired", "\\d+") + &line("released", "null")));
}

/// A killed holder loses its lock: when its lease ends, or at once where the kernel frees it.
#[test]
fn killed_holders() {
    for space in [Space::redis(), Space::new()] {
        let watch = watching(tool(&space, "watch --count 2"));
        let holder = holds(&space, "run -q --ttl 1s k", "one");
        wait_for("the event", || watch.printed().contains("acquired"));
        let pid = holder.pid();
        holder.send(Signal::SIGKILL);
        assert_matches(
            &succeeds(watch).out,
            &format!(
                "{AT} k acquired by WHO \\(pid {pid}\\)\n\
                 {AT} k lost by WHO \\(pid {pid}\\) after \\d+s\n"
            ),
        );
    }
}

/// File locks are watched too, by polling.
#[test]
fn files_are_watched() {
    let space = Space::new();
    let watch = watching(space.tenure(["watch", "--json", "--count", "2"]));
    let holder = space.hold("run k");
    wait_for("the event", || watch.printed().contains("\"acquired\""));
    space.let_go();
    succeeds(holder);
    let lines = succeeds(watch).out;
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<_> =
        events.map(|event| (event["event"].clone(), event["waiters"].clone())).collect();
    assert_eq!(events, [("acquired".into(), Value::Null), ("released".into(), Value::Null)]);
}

/// A forced release is reported, with who did it and why.
#[test]
fn forced() {
    let space = Space::redis();
    let holder = holds(&space, "run k", "one");
    let watch = watching(tool(&space, "watch --color always --count 1"));
    let force = space.done(["release", "k", "--force", "--yes", "--reason", "stuck"]);
    assert_eq!(force.code, Some(0), "{force:?}");
    let pid = holder.pid();
    assert_matches(
        &succeeds(watch).out,
        &format!(
            "{AT} k \x1b\\[33mforced\x1b\\[0m from WHO \\(pid {pid}\\) after \\d+s by WHO: stuck\n"
        ),
    );
}

/// Signals end a watch as they end a wait.
#[test]
fn signals_end_it() {
    let space = Space::new();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let watch = watching(space.tenure(["watch"]));
        watch.send(signal);
        let run = watch.finish();
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(code), "", ""));
    }
}

/// When the reader closes the pipe, the watch ends without a message.
#[test]
fn a_closed_pipe_ends_it() {
    let space = Space::new();
    let mut watch = space.tenure(["watch"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(watch.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "tenure: watching, 0 locks are held now\n");
    drop(watch.stdout.take());
    let _holder = space.hold("run k");
    let mut ended = None;
    wait_for("the end", || {
        ended = watch.try_wait().unwrap();
        ended.is_some()
    });
    line.clear();
    std::io::Read::read_to_string(&mut said, &mut line).unwrap();
    assert_eq!((ended.unwrap().code(), line.as_str()), (Some(0), ""));
}

/// A reader that does not read does not prevent the watch from ending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read() {
    let space = Space::redis();
    let mut watch = tool(&space, "watch --json");
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let full = watch.stdout.take().unwrap();
    let locker = tenure::connect(&space.server().url()).await.unwrap();
    let mut guards = Vec::new();
    // More lines than fit into a pipe, which holds 64 KiB less the unused rest of each page.
    for n in 0..400 {
        guards.push(locker.lock(format!("k{n}")).await.unwrap());
    }
    wait_for("the pipe to be full", || rustix::io::ioctl_fionread(&full).unwrap() > 60_000);
    let pid = nix::unistd::Pid::from_raw(watch.id().try_into().unwrap());
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    let mut ended = None;
    wait_for("the end", || {
        ended = watch.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(130));
}

/// An unreachable server is an error at the start; later the watch waits for it.
#[test]
fn servers_that_are_away() {
    let space = Space::redis();
    let mut watch = watching(tool(&space, "watch --count 3"));
    let holder = holds(&space, "run k", "one");
    wait_for("the event", || watch.printed().contains("acquired"));
    space.server().kill();
    let port = space.server().port();
    assert_matches(
        &watch.line(),
        &format!("tenure: cannot see the locks, trying again: redis `127.0.0.1:{port}`: [^\n]+"),
    );
    let run = done(tool(&space, "watch"));
    assert_eq!((run.code, run.out.as_str()), (Some(69), ""));
    assert_matches(
        &run.err,
        &format!(
            "tenure: error: `TENURE_URL` in the environment: [^\n]*redis `127.0.0.1:{port}`: cannot connect: [^\n]+\n"
        ),
    );
    space.server().restart();
    wait_for("the end to be told", || watch.printed().contains("ended"));
    drop(holder);
    succeeds(Running::start(space.sh("run again", "sleep 0.2")));
    let run = succeeds(watch);
    assert_matches(
        &run.out,
        &format!(
            "{AT} k acquired [^\n]+\n\
             {AT} k ended: released or lost by WHO \\(pid \\d+\\) after \\d+s, it is not known which\n\
             {AT} again acquired [^\n]+\n"
        ),
    );
}

/// A missing directory is an error, and is not created.
#[test]
fn inspecting_creates_nothing() {
    let space = Space::untouched();
    let run = space.done(["watch"]);
    let dir = space.path("locks");
    let missing = format!(
        "tenure: error: `TENURE_URL` in the environment: lock directory `{}` does not exist\n",
        dir.display()
    );
    assert_eq!((run.code, run.out.as_str(), run.err), (Some(69), "", missing));
    assert!(!dir.exists());
    assert_eq!(done(bare(["-u", "memory:", "watch", "--count", "0"])).code, Some(64));
}

/// A waiter's message has its position in the queue, and `show` has the whole queue in order.
#[test]
fn places_in_the_queue() {
    let space = Space::redis();
    let holder = holds(&space, "run --reason one k", "one");
    let second = Running::start(space.sh("run --reason two k", "true"));
    let queue = |count: usize| {
        let shown = done(tool(&space, "show --json k")).out;
        serde_json::from_str::<Value>(&shown).unwrap()["lock"]["waiters"].as_array().map(Vec::len)
            == Some(count)
    };
    wait_for("the second to wait", || queue(1));
    let third = Running::start(space.sh("run k", "true"));
    wait_for("the third to wait", || queue(2));
    let (mut second, mut third) = (second, third);
    let held =
        format!("held \\d+s by WHO \\(pid {}, \"one\"\\), [12]\\ds of lease left", holder.pid());
    assert_matches(&second.line(), &format!("tenure: waiting for k: {held}, you are 1st"));
    assert_matches(&third.line(), &format!("tenure: waiting for k: {held}, you are 2nd"));
    let shown = done(tool(&space, "show k"));
    assert_matches(
        &shown.out,
        &format!(
            "k\n  mode      exclusive\n  holder    WHO \\(pid {}, tenure\\)\n  reason    one\n  \
             held for  \\d+s \\(since \\S+Z\\)\n  lease     [12]\\ds left\n  \
             fence     \\d+\n  queue     2 waiting, next first\n    1. WHO \\(pid {}, \"two\"\\), exclusive, waiting \\d+s\n    \
             2. WHO \\(pid {}\\), exclusive, waiting \\d+s\n",
            holder.pid(),
            second.pid(),
            third.pid()
        ),
    );
    touch(&space, "one");
    for run in [holder, second, third] {
        succeeds(run);
    }
}

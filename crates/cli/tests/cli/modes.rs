//! Readers, permits and several keys: who runs together, the environment, the messages, `ls`, `show` and force.

use crate::common::{Done, Running, Space, assert_matches, done, is_alive, pid_in, wait_for};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Starts a run that writes what it finds in its environment to the file `mark`, and holds until `mark` is removed.
fn hold(space: &Space, args: &str, mark: &str) -> Running {
    let script = format!(
        "echo $TENURE_KEY,$TENURE_FENCE,$TENURE_FENCES,$TENURE_MODE,$TENURE_PERMITS,$TENURE_SLOT > .{mark}; \
         mv .{mark} {mark}; while [ -e {mark} ]; do sleep 0.01; done"
    );
    let running = Running::start(space.sh(args, &script));
    wait_for(mark, || space.path(mark).exists());
    running
}

fn end(space: &Space, running: Running, mark: &str) {
    std::fs::remove_file(space.path(mark)).unwrap();
    let run = running.finish();
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
}

/// Runs `tenure ARGS -- true`.
fn tried(space: &Space, args: &str) -> Done {
    space.done(args.split_whitespace().chain(["--", "true"]))
}

/// B2, F1: runs with `--shared` hold a key together, and keep out a run without it; `ls` counts them in one line.
#[test]
fn b2_shared_runs_hold_together() {
    let space = Space::redis();
    let (one, two) = (hold(&space, "run -s k", "one"), hold(&space, "run --shared k", "two"));
    assert_matches(&space.read("one"), "k,\\d+,\\d+,shared,,\n");
    let (pid, other) = (one.pid(), two.pid());
    assert_matches(
        &space.done(["ls"]).out,
        &format!(
            "KEY +MODE +HOLDER +HELD FOR +LEASE LEFT +WAITERS +FENCE +REASON\n\
             k +shared 2 +WHO pid ({pid}|{other}) \\+1 +- +[23]\\ds +0 +- +-\n"
        ),
    );
    let writer = tried(&space, "run -n k");
    assert_eq!(writer.code, Some(75));
    assert_matches(
        &writer.err,
        "tenure: not acquired: k is (held|read) by WHO\nhint: tenure show k\n",
    );
    let writer = tried(&space, "run -w 600ms k");
    assert_matches(
        &writer.err,
        "tenure: waiting for k: read by WHO \\(pid \\d+\\) and 1 other, \\d+s of lease left, you are 1st\n\
         tenure: not acquired: k is (held|read) by WHO \\(gave up after 600ms\\)\nhint: tenure show k\n",
    );
    end(&space, one, "one");
    end(&space, two, "two");
    assert_eq!(tried(&space, "run -n k").code, Some(0));
}

/// B2: the same in files.
#[test]
fn b2_shared_runs_in_files() {
    let space = Space::new();
    let (one, two) = (hold(&space, "run -s k", "one"), hold(&space, "run -s k", "two"));
    let shown = space.show("k");
    assert_eq!(shown["mode"], "shared");
    assert_eq!(shown["holders"].as_array().unwrap().len(), 2);
    let writer = tried(&space, "run -n k");
    assert_eq!(writer.code, Some(75));
    assert_matches(
        &writer.err,
        "tenure: not acquired: k is (held|read) by WHO for \\d+s\nhint: tenure show k\n",
    );
    end(&space, one, "one");
    end(&space, two, "two");
    assert_eq!(tried(&space, "run -n k").code, Some(0));
}

/// B2: a reader waits behind a writer that came first, and its message names that writer.
#[test]
fn b2_a_reader_waits_behind_a_writer() {
    let space = Space::redis();
    let first = hold(&space, "run -s k", "first");
    let mut writer = Running::start(space.sh("run k", "echo w >> log"));
    assert_matches(&writer.line(), "tenure: waiting for k: read by WHO [^\n]+, you are 1st");
    let mut reader = Running::start(space.sh("run -s k", "echo r >> log"));
    let pid = writer.pid();
    assert_matches(
        &reader.line(),
        &format!(
            "tenure: waiting for k: behind WHO \\(pid {pid}\\), who wants it alone, you are 2nd"
        ),
    );
    let queue = space.done(["show", "k"]).out;
    assert_matches(
        &queue,
        &format!(
            ".*  queue     2 waiting, next first\n    1. WHO \\(pid {pid}\\), exclusive, waiting \\d+s\n    \
             2. WHO \\(pid \\d+\\), shared, waiting \\d+s\n"
        ),
    );
    end(&space, first, "first");
    for run in [writer, reader] {
        let run = run.finish();
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    assert_eq!(space.read("log"), "w\nr\n");
}

/// B3, F1: so many runs have a permit at once, each with a slot of its own; the next one is refused or waits, and gets
/// the slot that becomes free. A run inside a run does not see the slot of the outer one.
#[test]
fn b3_runs_take_permits() {
    let space = Space::redis();
    let one = hold(&space, "run -N 2 k", "one");
    assert_matches(&space.read("one"), "k,\\d+,\\d+,permits,1,0\n");
    let two = hold(&space, "run --slots 2 k", "two");
    assert_matches(&space.read("two"), "k,\\d+,\\d+,permits,1,1\n");
    let full = tried(&space, "run -N 2 -n k");
    assert_eq!(full.code, Some(75));
    assert_matches(
        &full.err,
        "tenure: not acquired: k is held by WHO( with 1 of 2 permits)?\nhint: tenure show k\n",
    );
    let full = tried(&space, "run -N 2 -w 600ms k");
    assert_matches(
        &full.err,
        "tenure: waiting for k: 2 of 2 permits taken, held by WHO \\(pid \\d+\\) and 1 other, \
         \\d+s of lease left, you are 1st\ntenure: not acquired: k is held by WHO( with 1 of 2 permits)? \
         \\(gave up after 600ms\\)\nhint: tenure show k\n",
    );
    let next = Running::start(space.sh("run -q -N 2 k", "echo $TENURE_SLOT > next"));
    wait_for("one to wait", || space.show("k")["waiters"][0].is_object());
    end(&space, one, "one");
    assert_eq!(next.finish().code, Some(0));
    assert_eq!(space.read("next"), "0\n");
    let bin = env!("CARGO_BIN_EXE_tenure");
    let inner = "\"$0\" run other -- sh -c 'echo $TENURE_MODE,$TENURE_SLOT,$TENURE_PERMITS.'";
    let nested = space.done(["run", "-N", "2", "k", "--", "sh", "-c", inner, bin]);
    assert_eq!((nested.code, nested.out.as_str()), (Some(0), "exclusive,,.\n"));
    end(&space, two, "two");
}

/// B3: `--take` counts; several permits have no slot. The report and `show --json` have the numbers, also for
/// different capacities.
#[test]
fn b3_weights() {
    let space = Space::redis();
    let heavy = hold(&space, "run -N 4 --take 3 --status-file status.json k", "heavy");
    assert_matches(&space.read("heavy"), "k,\\d+,\\d+,permits,3,\n");
    assert_eq!(tried(&space, "run -N 4 --take 2 -n k").code, Some(75));
    let light = hold(&space, "run -N 5 k", "light");
    let shown = space.show("k");
    assert_eq!((&shown["mode"], &shown["permits"]), (&"permits".into(), &4.into()));
    assert_eq!(shown["capacity"], 5);
    let mut held: Vec<_> = shown["holders"].as_array().unwrap().iter().collect();
    held.sort_by_key(|holder| holder["permits"].as_u64());
    let of = |holder: &Value| {
        (holder["permits"].clone(), holder["capacity"].clone(), holder["slot"].clone())
    };
    assert_eq!(of(held[0]), (1.into(), 5.into(), 0.into()), "the heavy one has no number");
    assert_eq!(of(held[1]), (3.into(), 4.into(), Value::Null));
    assert_eq!(held[0]["token_start"].as_str().unwrap().len(), 8);
    end(&space, light, "light");
    end(&space, heavy, "heavy");
    let report = space.report();
    assert_eq!((&report["mode"], &report["permits"]), (&"permits".into(), &3.into()));
    assert_eq!((&report["slot"], &report["outcome"]), (&Value::Null, &"exited".into()));
    assert_eq!(report["fence"], report["keys"][0]["fence"]);
}

/// Modes that contradict each other, and an engine without a mode: 64, and the message says why.
#[test]
fn modes_that_are_refused() {
    let (space, file) = (Space::redis(), Space::new());
    let usage = "\n\nUsage: tenure run [OPTIONS] <KEY>... -- <COMMAND>...\n\n\
                 For more information, try '--help'.\n";
    let several = tried(&space, "run -N 2 a b");
    let flaw = "error: the argument '--slots <N>' cannot be used with several keys";
    assert_eq!((several.code, several.err), (Some(64), format!("{flaw}{usage}")));
    let refused = tried(&file, "run -N 2 k");
    assert_eq!(refused.code, Some(64));
    assert_eq!(
        refused.err,
        "tenure: error: lock `k`: not supported by this engine: the kernel does not count file locks: they \
         have no permits\n"
    );
    let many: Vec<String> = (0..101).map(|number| format!("k{number}")).collect();
    let run = tried(&file, &format!("run {}", many.join(" ")));
    let text = "tenure: error: 101 keys were asked for at once; ask for at most 100\n";
    assert_eq!((run.code, run.err.as_str()), (Some(64), text));
}

/// B4: several keys are held together, on a server and in files. The fences are in the order of the command line, and a
/// key that is named twice counts once.
#[test]
fn b4_several_keys() {
    for space in [Space::redis(), Space::new()] {
        let run = hold(&space, "run --status-file status.json b a b", "both");
        let environment = space.read("both");
        let shown = ["a", "b"].map(|key| space.show(key)["holders"][0]["fence"].clone());
        let [a, b] = shown.map(|fence| fence.as_str().unwrap().to_owned());
        assert_eq!(environment, format!("b,{b},{b} {a} {b},exclusive,,\n"));
        end(&space, run, "both");
        let report = space.report();
        assert_eq!((&report["key"], &report["fence"]), (&"b".into(), &b.clone().into()));
        let key = |key: &str, fence: &str| serde_json::json!({"key": key, "fence": fence});
        assert_eq!(report["keys"], Value::Array(vec![key("b", &b), key("a", &a), key("b", &b)]));
        assert!(space.is_free("a") && space.is_free("b"));
    }
}

/// B4, F1: the messages, the hint and the report name the key that is in the way; nothing stays locked. With `--shared`
/// all keys are read.
#[test]
fn b4_the_key_in_the_way_is_named() {
    for space in [Space::redis(), Space::new()] {
        let holder = hold(&space, "run m", "m");
        let run = tried(&space, "run -n --status-file status.json a m z");
        assert_eq!(run.code, Some(75));
        assert_matches(
            &run.err,
            "tenure: not acquired: m is held by WHO for \\d+s\nhint: tenure show m\n",
        );
        let report = space.report();
        assert_eq!((&report["key"], &report["failed_key"]), (&"a".into(), &"m".into()));
        assert_eq!(report["outcome"], "not_acquired");
        let mut waiter = Running::start(space.sh("run z m a", "true"));
        assert_matches(&waiter.line(), "tenure: waiting for m: held \\d+s by WHO [^\n]+");
        assert!(!space.is_free("a"), "the smaller key is held meanwhile");
        end(&space, holder, "m");
        let run = waiter.finish();
        assert_eq!(run.code, Some(0));
        assert_matches(&run.err, "tenure: acquired a, m, z after [^\n]+s\n");
        assert!(["a", "m", "z"].iter().all(|key| space.is_free(key)));
    }
    let space = Space::redis();
    let (one, two) = (hold(&space, "run -s a b", "one"), hold(&space, "run -s b c", "two"));
    assert_eq!(space.show("b")["holders"].as_array().unwrap().len(), 2);
    assert_matches(&space.read("two"), "b,\\d+,\\d+ \\d+,shared,,\n");
    end(&space, one, "one");
    end(&space, two, "two");
}

const STUBBORN: &str = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";

/// t69: in every mode the command is dead before a lease ends that cannot be renewed.
#[test]
fn t69_every_mode_kills_in_time() {
    for (args, key) in [("-s k", "k"), ("-N 2 k", "k"), ("k l", "[kl]")] {
        let space = Space::redis();
        let args = format!("run --ttl 2s --grace 400ms --status-file status.json {args}");
        let run = Running::start(space.sh(&args, STUBBORN));
        let pid = pid_in(&space.path("pid"));
        space.server().kill();
        let killed = Instant::now();
        wait_for("the command to die", || !is_alive(pid));
        assert!(killed.elapsed() < Duration::from_secs(2), "{args}: {:?}", killed.elapsed());
        let run = run.finish();
        assert_eq!(run.code, Some(79), "{run:?}");
        let text = format!(
            "tenure: losing {key}: no renewal confirmed for 1s [^\n]+; sent TERM to \\d+, KILL in \\d+ms\n\
             tenure: lost {key}\n"
        );
        assert_matches(&run.err, &text);
        let report = space.report();
        assert_eq!((&report["outcome"], &report["loss"]), (&"lost".into(), &"expired".into()));
        assert!(report["failed_key"].is_string(), "{report}");
    }
}

/// t92: if one of several keys is taken away, the command is killed, the message names that key, and the other key is
/// released.
#[test]
fn t92_one_key_of_several_is_taken_away() {
    let space = Space::redis();
    let run = Running::start(space.sh("run --ttl 2s --status-file status.json a b", STUBBORN));
    pid_in(&space.path("pid"));
    assert_eq!(space.done(["release", "b", "--force", "--yes", "--reason", "stuck"]).code, Some(0));
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        "tenure: losing b: released by force: WHO: stuck; sent KILL to \\d+\ntenure: lost b\n",
    );
    let report = space.report();
    assert_eq!((&report["failed_key"], &report["loss"]), (&"b".into(), &"forced".into()));
    assert!(space.is_free("a") && space.is_free("b"));
}

/// t116: of several holders, force needs the start of a token, and says what to type. It hits that holder only.
#[test]
fn t116_force_on_one_of_several() {
    let space = Space::redis();
    let (one, two) = (
        hold(&space, "run --ttl 2s -N 2 --reason one k", "one"),
        hold(&space, "run --ttl 2s -N 2 --reason two k", "two"),
    );
    let refused = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(refused.code, Some(64));
    assert_eq!(
        refused.err,
        "tenure: error: lock `k` has 2 holders: --token says which one\n\
         hint: tenure show k, then tenure release --force --token TOKEN k\n"
    );
    let shown = space.done(["show", "k"]).out;
    assert_matches(
        &shown,
        "k\n  mode      2 of 2\n  holders   2\n    HOLDER +MODE +SLOT +HELD FOR +LEASE LEFT +FENCE +TOKEN +REASON\n\
         (    WHO pid \\d+ +1 of 2 +[01] +- +\\ds +- +[0-9a-f]{8} +(one|two)\n){2}  queue     empty\n",
    );
    let line = shown.lines().find(|line| line.ends_with("two")).unwrap();
    let start = line.split_whitespace().rev().nth(1).unwrap();
    let force = |start: &str| space.done(["release", "k", "--force", "--yes", "--token", start]);
    let unknown = force("00000000");
    assert_eq!(unknown.code, Some(75));
    assert_eq!(
        unknown.err,
        "tenure: error: no holder of `k` has a token that starts with `00000000`\nhint: tenure show k\n"
    );
    assert_eq!(
        force("xyz").err,
        "tenure: error: invalid start of a token: expected the 8 hexadecimal digits that \
         `tenure show` prints\n"
    );
    let forced = force(start);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let pid = two.pid();
    assert_matches(
        &forced.err,
        &format!(
            "tenure: k is held by WHO \\(pid {pid}, \"two\"\\), \\ds of lease left, its process runs on this machine\n\
             tenure: released k by force: WHO \\(pid {pid}, \"two\"\\) will see it at its next renewal, and may \
             continue until then\n"
        ),
    );
    let lost = two.finish();
    assert_eq!(lost.code, Some(79));
    assert_matches(
        &lost.err,
        "tenure: losing k: released by force: WHO; sent KILL to \\d+\ntenure: lost k\n",
    );
    end(&space, one, "one");
}

/// `--min-hold` and `--max-hold` hold for permits and for several keys.
#[test]
fn holds_are_bounded_in_every_mode() {
    let space = Space::redis();
    assert_eq!(tried(&space, "run -N 1 --min-hold 1m k").code, Some(0));
    let closed = tried(&space, "run -N 1 -n k");
    assert_eq!(closed.code, Some(75));
    assert_matches(
        &closed.err,
        "tenure: not acquired: k (is held by WHO|was released by WHO and is kept closed for another \\d+s)\n\
         hint: tenure show k\n",
    );
    assert_matches(&space.done(["ls"]).out, "KEY [^\n]+\nk +closed +WHO pid [^\n]+\n");
    for args in ["-s", "-N 2", "b"] {
        let args = format!("run --max-hold 3s --grace 1s {args} a");
        let run = done(space.sh(&args, "exec sleep 60"));
        assert_eq!(run.code, Some(79), "{args}: {run:?}");
        assert_matches(
            &run.err,
            "tenure: losing [ab]: --max-hold 3s is nearly over; sent TERM to \\d+, KILL in [^\n]+\n\
             tenure: lost [ab]\n",
        );
    }
}

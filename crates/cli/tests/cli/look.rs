//! `tenure ls`, `tenure show` and completion.

use crate::common::{Running, Space, assert_matches, bare, done, wait_for};
use serde_json::Value;

/// `ls` shows every lock on a line of its own.
#[test]
fn ls_as_a_table() {
    let space = Space::new();
    let holder = space.hold("run db-migrate");
    let run = space.done(["ls"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let pid = holder.pid();
    assert_matches(
        &run.out,
        &format!(
            "KEY +MODE +HOLDER +HELD FOR +LEASE LEFT +WAITERS +FENCE\n\
             db-migrate +exclusive +WHO pid {pid} +\\d+s +- +(-|0) +\\d+\n"
        ),
    );
}

/// `ls` with nothing to show says so, on stderr, and that is no error.
#[test]
fn ls_of_nothing() {
    let space = Space::new();
    let run = space.done(["ls"]);
    assert_eq!(run.code, Some(0));
    assert_eq!((run.out.as_str(), run.err.as_str()), ("", "tenure: no locks\n"));
    let run = space.done(["ls", "--json"]);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("{\"schema\":1,\"locks\":[]}\n", ""));
}

/// `ls --json` has everything that the table has, and more.
#[test]
fn ls_as_json() {
    let space = Space::new();
    let holder = space.hold("run --reason why k");
    let listing: Value = serde_json::from_str(&space.done(["ls", "--json"]).out).unwrap();
    assert_eq!(listing["schema"], 1);
    let lock = &listing["locks"][0];
    assert_eq!((&lock["key"], &lock["mode"]), (&"k".into(), &"exclusive".into()));
    let found = &lock["holders"][0];
    assert_eq!(found["pid"], holder.pid().as_raw());
    let us = tenure::Client::this_process();
    assert_eq!(
        (&found["user"], &found["host"]),
        (&us.user.as_str().into(), &us.host.as_str().into())
    );
    assert_eq!(found["program"], "tenure");
    assert_eq!((&found["reason"], &found["lease_left_ms"]), (&"why".into(), &Value::Null));
    assert!(found["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(found["held_ms"].as_u64().is_some());
}

/// `run` and `show` take a name literally, `ls` takes a pattern in which it can be escaped.
#[test]
fn t59_patterns_are_for_ls_only() {
    let space = Space::new();
    let script = |mark: &str| format!("touch {mark}; while [ ! -e go ]; do sleep 0.01; done");
    let runs = [("a*", "one"), ("ab", "two")].map(|(key, mark)| {
        let run = Running::start(space.tenure(["run", key, "--", "sh", "-c", &script(mark)]));
        wait_for("the lock to be held", || space.path(mark).exists());
        run
    });
    assert_eq!(space.show("a*")["key"], "a*");
    assert!(space.is_free("a?"));
    let keys = |glob: &str| {
        let listing: Value = serde_json::from_str(&space.done(["ls", "--json", glob]).out).unwrap();
        let keys = listing["locks"].as_array().unwrap().iter().map(|lock| lock["key"].to_string());
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys("a*"), r#""a*" "ab""#);
    assert_eq!(keys(r"a\*"), r#""a*""#);
    assert_eq!(keys("b*"), "");
    std::fs::write(space.path("go"), "").unwrap();
    for run in runs {
        assert_eq!(run.finish().code, Some(0));
    }
}

/// `show` tells of the holder in full.
#[test]
fn show_in_full() {
    let space = Space::new();
    let holder = space.hold("run --reason release_41 k");
    let run = space.done(["show", "k"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let pid = holder.pid();
    assert_matches(
        &run.out,
        &format!(
            "k\n  mode      exclusive\n  holder    WHO \\(pid {pid}, tenure\\)\n  \
             reason    release_41\n  held for  \\d+s \\(since \\S+Z\\)\n  \
             lease     no end of its own\n  fence     \\d+\n  queue     [^\n]+\n"
        ),
    );
}

/// A lock that nobody holds is free, which is an answer and no error.
#[test]
fn show_of_a_free_lock() {
    let space = Space::new();
    let run = space.done(["show", "k"]);
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), "k is free\n", ""));
}

/// A look creates nothing: a directory that is not there is an error, one that is stays empty.
#[test]
fn looks_create_nothing() {
    let space = Space::untouched();
    let locks = space.path("locks");
    let missing =
        format!("tenure: error: TENURE_URL: lock directory `{}` does not exist\n", locks.display());
    for args in [&["ls"][..], &["ls", "--json"], &["show", "k"]] {
        let run = space.done(args);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(69), "", &*missing));
    }
    let mut ask = space.tenure(["--", "tenure", "show", "db"]);
    ask.env("TENURE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    assert_eq!(done(ask).out, "");
    assert!(!locks.exists());
    assert_eq!(space.done(["run", "k", "--", "true"]).code, Some(0), "a run creates it");
    let files = || std::fs::read_dir(&locks).unwrap().count();
    let before = files();
    space.done(["ls"]);
    assert!(space.is_free("other"));
    assert_eq!(files(), before);
}

/// What `--at-least` keeps closed is called so by both.
#[test]
fn closed_locks() {
    let space = Space::new();
    space.done(["run", "--at-least", "1m", "k", "--", "true"]);
    assert_matches(&space.done(["ls"]).out, "KEY [^\n]+\nk +closed +WHO pid [^\n]+\n");
    assert_matches(
        &space.done(["show", "k"]).out,
        "k\n  mode      closed\n  holder    WHO [^\n]+\n  held for  [^\n]+\n  \
         closed    for another 5\\ds\n.*",
    );
}

/// Who looks into, or locks in, the memory of one process is told how little that is, unless `-q`.
#[test]
fn memory_is_told_about() {
    let alone = "tenure: memory: is shared with no other process, nothing is excluded\n";
    let cases: [(&[&str], &str, &str); 4] = [
        (&["-u", "memory:", "run", "k", "--", "true"], "", ""),
        (&["-u", "memory:x", "run", "k", "--", "true"], "", ""),
        (&["-u", "memory:", "show", "k"], "k is free\n", ""),
        (&["-u", "memory:", "ls"], "", "tenure: no locks\n"),
    ];
    for (args, out, more) in cases {
        let run = done(bare(args));
        assert_eq!(run.code, Some(0), "{run:?}");
        assert_eq!((run.out.as_str(), run.err), (out, format!("{alone}{more}")));
        assert_eq!(done(bare(["-q"].iter().chain(args))).err, "");
    }
}

/// The log has colours where they are wanted, and only there.
#[test]
fn logs_in_colour() {
    let space = Space::new();
    let log = |args: &str| {
        let run = done(space.sh(args, "true"));
        assert!(run.err.contains("lock acquired"), "{run:?}");
        run.err
    };
    assert!(!log("run -v k").contains('\x1b'));
    assert!(!log("run -v --color never k").contains('\x1b'));
    assert!(log("run -v --color always k").contains('\x1b'));
}

/// Every shell gets a script, and the script's questions are answered with live keys.
#[test]
fn completions() {
    let space = Space::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = space.done(["completions", shell]);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{shell}");
        assert!(run.out.contains("TENURE_COMPLETE"), "{shell}");
    }
    let _holder = space.hold("run db-migrate");
    let mut ask = space.tenure(["--", "tenure", "show", "db"]);
    ask.env("TENURE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    assert_eq!(done(ask).out, "db-migrate");
}

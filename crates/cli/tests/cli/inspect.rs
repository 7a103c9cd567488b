//! `tenure ls`, `tenure show` and completion.

use crate::common::{Running, Space, assert_matches, bare, done, wait_for};
use crate::screen::Screen;
use serde_json::Value;

/// `ls` shows every lock on a line of its own.
#[test]
fn ls_as_a_table() {
    let space = Space::new();
    let holder = space.hold("run --reason release_41 db-migrate");
    let run = space.done(["ls"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let pid = holder.pid();
    assert_matches(
        &run.out,
        &format!(
            "KEY +MODE +HOLDER +HELD FOR +LEASE LEFT +WAITERS +FENCE +REASON\n\
             db-migrate +exclusive +WHO pid {pid} +\\d+s +- +(-|0) +\\d+ +release_41\n"
        ),
    );
}

/// `ls` without a match prints a message on stderr and exits with 0.
#[test]
fn ls_of_nothing() {
    let space = Space::new();
    let run = space.done(["ls"]);
    assert_eq!(run.code, Some(0));
    assert_eq!((run.out.as_str(), run.err.as_str()), ("", "tenure: no locks\n"));
    let run = space.done(["ls", "--json"]);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("{\"schema\":1,\"locks\":[]}\n", ""));
}

/// `ls --sort waiters` puts the locks with most waiters first, in the table and in the JSON. A wrong value is
/// named.
#[test]
fn ls_sorted() {
    let space = Space::redis();
    for key in ["a", "b"] {
        assert_eq!(space.done(["acquire", key, "--ttl", "1m"]).code, Some(0));
    }
    let _waiting = Running::start(space.tenure(["run", "b", "--", "true"]));
    wait_for("one to wait", || space.show("b")["waiters"][0].is_object());
    let first = |args: &[&str]| {
        let listing: Value = serde_json::from_str(&space.done(args).out).unwrap();
        listing["locks"][0]["key"].as_str().unwrap().to_owned()
    };
    assert_eq!(first(&["ls", "--json"]), "a");
    assert_eq!(first(&["ls", "--json", "--sort", "waiters"]), "b");
    assert_eq!(first(&["ls", "--json", "--sort", "held"]), "a");
    assert_matches(
        &space.done(["ls", "--sort", "waiters"]).out,
        "KEY [^\n]+\nb [^\n]+\na [^\n]+\n",
    );
    let wrong = space.done(["ls", "--sort", "size"]);
    assert_eq!(wrong.code, Some(64));
    assert!(wrong.err.contains("invalid value 'size' for '--sort <BY>'"), "{wrong:?}");
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
    let us = tenure::Process::this_process();
    assert_eq!(
        (&found["user"], &found["host"]),
        (&us.user.as_str().into(), &us.host.as_str().into())
    );
    assert_eq!(found["program"], "tenure");
    assert_eq!((&found["reason"], &found["lease_left_ms"]), (&"why".into(), &Value::Null));
    assert!(found["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(found["held_ms"].as_u64().is_some());
}

/// `run` and `show` take a name literally; `ls` takes a pattern, in which special characters can be escaped.
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

/// `show` prints everything about the holder.
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
             lease     does not expire\n  fence     \\d+\n  queue     [^\n]+\n"
        ),
    );
}

/// For a lock without a holder, `show` prints that it is free, and exits with 0.
#[test]
fn show_of_a_free_lock() {
    let space = Space::new();
    let run = space.done(["show", "k"]);
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), "k is free\n", ""));
}

/// Reading creates nothing: a missing directory is an error, and an existing one stays empty.
#[test]
fn inspecting_creates_nothing() {
    let space = Space::untouched();
    let locks = space.path("locks");
    let missing = format!(
        "tenure: error: `TENURE_URL` in the environment: lock directory `{}` does not exist\n",
        locks.display()
    );
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

/// `ls` and `show` call a lock closed that `--min-hold` keeps closed.
#[test]
fn closed_locks() {
    let space = Space::new();
    space.done(["run", "--min-hold", "1m", "k", "--", "true"]);
    assert_matches(&space.done(["ls"]).out, "KEY [^\n]+\nk +closed +WHO pid [^\n]+\n");
    assert_matches(
        &space.done(["show", "k"]).out,
        "k\n  mode      closed\n  holder    WHO [^\n]+\n  granted   \\d+s ago\n  \
         closed    for another 5\\ds\n.*",
    );
}

/// With `memory:`, a message explains that no other process is excluded, unless `-q`.
#[test]
fn memory_is_warned_about() {
    let alone = "tenure: memory: is not shared with other processes and excludes none of them\n";
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

/// The log is coloured only if colours are on.
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

/// t123: every shell gets a script, and its completions are the locked keys.
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
    let mut ask = space.tenure(["--", "tenure", "--url", "redis"]);
    ask.env("TENURE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_IFS", "\n");
    let urls = "redis://\nredis+sentinel://\nredis-cluster://\nredis+quorum://";
    assert_eq!(done(ask).out, urls);
}

/// t123: Bash completes keys and URLs with colons, at which it splits words: before, at and after the colon.
#[test]
fn bash_completes_behind_colons() {
    let space = Space::new();
    let _holder = space.hold("run order:42:pay");
    let mut screen = Screen::shell(&space);
    screen.type_in("PATH=${T%/*}:$PATH; source <(tenure completions bash); echo rea''dy\n");
    screen.expect("ready");
    let place = format!("-u {}", space.url());
    screen.type_in("unset TENURE_URL\n");
    for (number, typed) in ["or", "order:", "order:4", "order:42:"].into_iter().enumerate() {
        screen.type_in(&format!("tenure {place} show {typed}\t | sed s/^/{number}:/\n"));
        screen.expect(&format!("\n{number}:order:42:pay\r\n{number}:  mode"));
    }
}

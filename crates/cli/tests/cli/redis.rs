//! `run`, `ls` and `show` on a Redis server. Server failures are in `redis_lost.rs`.

use crate::common::{
    PASSWORD, Running, Space, assert_matches, bare, done, is_alive, pid_in, wait_for,
};
use crate::screen::Screen;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Runs on one server exclude each other, and leave no keys.
#[test]
fn runs_exclude_each_other() {
    let space = Space::redis();
    let script = "echo in >> log; sleep 0.05; echo out >> log";
    let runs: Vec<Running> = (0..4).map(|_| Running::start(space.sh("run -q k", script))).collect();
    for run in runs {
        assert_eq!(run.finish().code, Some(0));
    }
    assert_eq!(space.read("log"), "in\nout\n".repeat(4));
    assert_eq!(space.keys(), [""; 0]);
}

/// The command's environment has its lock, and fences rise.
#[test]
fn environment() {
    let space = Space::redis();
    let script = "echo $TENURE_KEY,$TENURE_FENCE,$TENURE_OWNER,$TENURE_TTL_MS";
    let run = done(space.sh("run --ttl 10s db-migrate", script));
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert_matches(&run.out, r"db-migrate,\d+,WHO/\d+,10000\n");
    let fence = || done(space.sh("run k", "echo $TENURE_FENCE")).out.trim().parse::<u64>().unwrap();
    let (first, second) = (fence(), fence());
    assert!(second > first, "{first} {second}");
}

/// A waiter's message names the holder, its reason and the time left of the lease; the last one has the time
/// waited.
#[test]
fn long_waits_are_reported() {
    let space = Space::redis();
    let holder = space.hold("run --reason release_41 db-migrate");
    let mut waiter = Running::start(space.tenure(["run", "db-migrate", "--", "true"]));
    let pid = holder.pid();
    assert_matches(
        &waiter.line(),
        &format!(
            "tenure: waiting for db-migrate: held \\d+s by WHO \\(pid {pid}, \"release_41\"\\), \
             [23]\\ds of lease left, you are 1st"
        ),
    );
    space.let_go();
    let run = waiter.finish();
    assert_eq!(run.code, Some(0));
    assert_matches(
        &run.err,
        r"(tenure: waiting [^\n]+\n)*tenure: acquired db-migrate after (\d+ms|\d+(\.\d)?s) \(fence \d+\)\n",
    );
    assert_eq!(holder.finish().code, Some(0));
}

/// Without a wait, or after a short one, the message names the holder: 75.
#[test]
fn not_acquired() {
    let space = Space::redis();
    let _holder = space.hold("run k");
    let run = space.done(["run", "-n", "k", "--", "true"]);
    assert_eq!(run.code, Some(75));
    assert_matches(
        &run.err,
        "tenure: not acquired: k is held by WHO for \\d+s\nhint: tenure show k\n",
    );
    let run = space.done(["run", "-w", "600ms", "-E", "9", "k", "--", "true"]);
    assert_eq!(run.code, Some(9));
    assert_matches(
        &run.err,
        "tenure: waiting for k: held \\d+s by WHO \\(pid \\d+\\), \\d+s of lease left, you are 1st\n\
         tenure: not acquired: k is held by WHO for \\d+s \\(gave up after 600ms\\)\n\
         hint: tenure show k\n",
    );
}

/// `--min-hold` keeps the lock closed after a short run; `ls` and `show` call it closed.
#[test]
fn min_hold_keeps_twins_apart() {
    let space = Space::redis();
    assert_eq!(space.done(["run", "--min-hold", "1m", "k", "--", "true"]).code, Some(0));
    let twin = space.done(["run", "-n", "k", "--", "true"]);
    assert_eq!(twin.code, Some(75));
    assert_matches(
        &twin.err,
        "tenure: not acquired: k was released by WHO and is kept closed for another \\d+s\n\
         hint: tenure show k\n",
    );
    assert_matches(&space.done(["ls"]).out, "KEY [^\n]+\nk +closed +WHO pid [^\n]+\n");
    assert_matches(
        &space.done(["show", "k"]).out,
        "k\n  mode      closed\n  holder    WHO [^\n]+\n  granted   \\d+s ago\n  \
         closed    for another \\d+s\n  queue     empty\n",
    );
}

/// `ls` shows the lease, the waiters and the fence.
#[test]
fn ls_as_a_table() {
    let space = Space::redis();
    let run = space.done(["ls"]);
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), "", "tenure: no locks\n"));
    let holder = space.hold("run db-migrate");
    let run = space.done(["ls"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let pid = holder.pid();
    assert_matches(
        &run.out,
        &format!(
            "KEY +MODE +HOLDER +HELD FOR +LEASE LEFT +WAITERS +FENCE +REASON\n\
             db-migrate +exclusive +WHO pid {pid} +\\d+s +[23]\\ds +0 +\\d+ +-\n"
        ),
    );
}

/// G3: with `lock_key` in the URL, a run holds the key that other programs already use, and `ls` shows its fence. `ls`
/// also shows the locks of the other programs.
#[test]
fn a_fleets_names() {
    let space = Space::redis();
    let url = format!("{}?lock_key=distributed_lock:{{key}}", space.url());
    let mut raw = space.server().client();
    let theirs = ["SET", "distributed_lock:order:2", "theirs", "NX", "PX", "60000"];
    assert_eq!(raw.text(&theirs).as_deref(), Some("OK"));
    let script = "\"$0\" -u \"$1\" ls --json; echo $TENURE_FENCE";
    let bin = env!("CARGO_BIN_EXE_tenure");
    let run = space.done(["-u", &url, "run", "order:1", "--", "sh", "-c", script, bin, &url]);
    let (listing, fence) = run.out.trim().rsplit_once('\n').unwrap();
    let listing: Value = serde_json::from_str(listing).unwrap();
    let locks = listing["locks"].as_array().unwrap();
    assert_eq!((&locks[0]["key"], &locks[1]["key"]), (&"order:1".into(), &"order:2".into()));
    assert_eq!(locks[0]["holders"][0]["fence"], fence);
    assert!(locks[1]["holders"][0]["user"].is_null(), "{listing}");
    assert_eq!(space.done(["-u", &url, "run", "-n", "order:2", "--", "true"]).code, Some(75));
    assert_eq!(raw.text(&["GET", "distributed_lock:order:2"]).as_deref(), Some("theirs"));
}

/// `ls --json` and `show --json` have the same fields as on any engine.
#[test]
fn ls_and_show_as_json() {
    let space = Space::redis();
    let holder = space.hold("run --reason why k");
    let listing: Value = serde_json::from_str(&space.done(["ls", "--json"]).out).unwrap();
    assert_eq!(listing["schema"], 1);
    let shown = space.show("k");
    for lock in [&listing["locks"][0], &shown] {
        assert_eq!((&lock["key"], &lock["mode"]), (&"k".into(), &"exclusive".into()));
        let found = &lock["holders"][0];
        assert_eq!(found["pid"], holder.pid().as_raw());
        assert_eq!((&found["program"], &found["reason"]), (&"tenure".into(), &"why".into()));
        assert!((20_000..=30_000).contains(&found["lease_left_ms"].as_u64().unwrap()), "{found}");
        assert!(found["held_ms"].as_u64().is_some() && !found["cooling_down"].as_bool().unwrap());
        assert!(found["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{found}");
    }
    assert!(space.show("free").is_null());
}

/// `run` and `show` take a name literally; `ls` takes a pattern, in which special characters can be escaped.
/// Other keys on the same server do not appear.
#[test]
fn t59_patterns_are_for_ls_only() {
    let space = Space::redis();
    let mut raw = space.server().client();
    raw.text(&["SET", "a-neighbour", "1"]);
    let take = |key: &str| space.done(["acquire", "--ttl", "1m", key]).code;
    for key in ["a*", "ab", "a[b]", r"a\b", "a?"] {
        assert_eq!(take(key), Some(0), "{key}");
    }
    let keys = |glob: &str| {
        let listing: Value = serde_json::from_str(&space.done(["ls", "--json", glob]).out).unwrap();
        let keys = listing["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str());
        keys.map(Option::unwrap).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys("*"), r"a* a? a[b] a\b ab");
    assert_eq!(keys(r"a\*"), "a*");
    assert_eq!(keys(r"a\?"), "a?");
    assert_eq!(keys(r"a\[b\]"), "a[b]");
    assert_eq!(keys(r"a\\b"), r"a\b");
    assert_eq!(keys("a[b]"), "ab");
    assert_eq!(keys("b*"), "");
    assert_eq!(space.show("a*")["key"], "a*");
    assert!(space.is_free("a**") && space.is_free("a[a-z]"));
}

/// `show` prints everything about the holder.
#[test]
fn show_in_full() {
    let space = Space::redis();
    let run = space.done(["show", "k"]);
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), "k is free\n", ""));
    let holder = space.hold("run --reason release_41 k");
    let run = space.done(["show", "k"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let pid = holder.pid();
    assert_matches(
        &run.out,
        &format!(
            "k\n  mode      exclusive\n  holder    WHO \\(pid {pid}, tenure\\)\n  \
             reason    release_41\n  held for  \\d+s \\(since \\S+Z\\)\n  \
             lease     [23]\\ds left\n  fence     \\d+\n  queue     [^\n]+\n"
        ),
    );
}

/// t123: keys on the server are offered as completions.
#[test]
fn completions() {
    let space = Space::redis();
    let _holder = space.hold("run db-migrate");
    let mut ask = space.tenure(["--", "tenure", "release", "db"]);
    ask.env("TENURE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2");
    assert_eq!(done(ask).out, "db-migrate");
}

/// t123: a key that is not a plain word for every shell is never offered, because other users chose it.
#[test]
fn odd_keys_do_not_complete() {
    let space = Space::redis();
    let odd = [
        "x$(touch pwned)",
        "x`id`",
        "x;id",
        "x y",
        "x'",
        "x\\",
        "x~",
        "x*",
        "x{a,b}",
        "x!",
        "xé",
        "-x",
    ];
    for key in odd.iter().chain(&["x1"]) {
        assert_eq!(space.done(["acquire", "--ttl", "1m", "--", key]).code, Some(0), "{key}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        for typed in ["x", ""] {
            let mut ask = space.tenure(["--", "tenure", "show", typed]);
            ask.env("TENURE_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "2");
            let offered = done(ask).out;
            assert!(offered.contains("x1"), "{shell}: {offered:?}");
            let found = odd.iter().find(|key| offered.contains(**key));
            assert_eq!(found, None, "{shell}: {offered:?}");
        }
    }
}

/// t60: a lock of another program is waited for like any other; a key that is not a lock is an error.
#[test]
fn t60_foreign_keys() {
    let space = Space::redis();
    let mut raw = space.server().client();
    raw.text(&["SET", "tenure:lock:k", "theirs", "PX", "60000"]);
    let run = space.done(["run", "-n", "k", "--", "true"]);
    assert_eq!(run.code, Some(75));
    assert_eq!(
        run.err,
        "tenure: not acquired: k is held by an unknown holder\nhint: tenure show k\n"
    );
    raw.text(&["SET", "tenure:lock:k", "theirs"]);
    let run = space.done(["run", "k", "--", "true"]);
    assert_eq!(run.code, Some(69));
    assert_eq!(
        run.err,
        format!(
            "tenure: error: lock `k`: refused by the engine: redis `{}`: the key `tenure:lock:k` \
             has no expiry: it is no lock\n",
            space.address()
        )
    );
}

/// t54: the lock is free however a run ends: at once, or after the ttl if `tenure` was killed.
#[test]
fn t54_ends_free_the_lock() {
    let space = Space::redis();
    assert_eq!(done(space.sh("run k", "exit 3")).code, Some(3));
    assert!(space.is_free("k"));
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let holder = space.hold("run k");
        holder.send(signal);
        assert_eq!(holder.finish().code, Some(code));
        assert_eq!(space.keys(), [""; 0], "{signal}");
        space.let_go();
    }
    let run = Running::start(space.sh("run --ttl 1s k", "echo $$ > pid; exec sleep 60"));
    let pid = pid_in(&space.path("pid"));
    run.send(Signal::SIGKILL);
    assert_eq!(run.finish().code, None);
    wait_for("the command to die", || !is_alive(pid));
    wait_for("the lease to end", || space.is_free("k"));
}

/// t54: a signal ends a wait at once, and nothing of it stays on the server.
#[test]
fn t54_signals_end_a_wait() {
    let space = Space::redis();
    let holder = space.hold("run k");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut waiter = Running::start(space.tenure(["run", "k", "--", "touch", "ran"]));
        assert!(waiter.line().starts_with("tenure: waiting for k"));
        let start = Instant::now();
        waiter.send(signal);
        assert_eq!(waiter.finish().code, Some(code));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    space.let_go();
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(space.keys(), [""; 0]);
    assert!(!space.path("ran").exists());
}

/// Ctrl-C on a terminal during a wait leaves no key behind, for `run` and for `acquire`.
#[test]
fn t69_ctrl_c_while_waiting() {
    let space = Space::redis();
    let holder = space.hold("run k");
    let mut screen = Screen::shell(&space);
    for (round, line) in ["run k -- touch ran", "acquire k --ttl 1m"].iter().enumerate() {
        screen.type_in(&format!("$T {line}\n"));
        wait_for("the wait", || screen.shown().matches("waiting for k: held").count() > round);
        screen.type_in("\x03");
        screen.type_in(&format!("echo code{round}=$?\n"));
        screen.expect(&format!("code{round}=130"));
    }
    space.let_go();
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(space.keys(), [""; 0]);
    assert!(!space.path("ran").exists());
}

/// A password is used to connect, but neither the command nor any message gets it.
#[test]
fn passwords_stay_with_us() {
    let space = Space::guarded();
    std::fs::write(space.path("url"), space.secret_url() + "\n").unwrap();
    let file = space.path("url").display().to_string();
    let url = space.secret_url();
    let look = |variable: &str, value: &str, args: &[&str]| {
        let mut run = bare(args.iter().copied().chain(["run", "k", "--", "env"]));
        run.env(variable, value);
        let run = done(run);
        assert!(!format!("{run:?}").contains(PASSWORD), "{variable} {args:?}: {run:?}");
        assert!(run.out.contains("TENURE_KEY=k\n"), "{variable} {args:?}: {run:?}");
    };
    for args in [&[][..], &["-vv"]] {
        look("TENURE_URL", &url, args);
        look("TENURE_URL_FILE", &file, args);
        look("REDIS_URL", &url, args);
        let option = ["--url-file", &file];
        look("NO_COLOR", "1", &[args, &option].concat());
    }
    for args in [&["-vv", "ls"][..], &["-vv", "show", "k"], &["-vv", "acquire", "k", "--ttl", "1s"]]
    {
        let mut run = bare(args);
        run.env("TENURE_URL", &url);
        let run = done(run);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(!format!("{run:?}").contains(PASSWORD), "{run:?}");
    }
}

/// `TENURE_URL` has priority over the application's `REDIS_URL`, which the command then inherits.
#[test]
fn our_variable_comes_first() {
    let (space, other) = (Space::redis(), Space::redis());
    let _holder = space.hold("run k");
    let mut run = space.tenure(["run", "-n", "k", "--", "true"]);
    run.env("REDIS_URL", other.url());
    assert_eq!(done(run).code, Some(75), "it looked where TENURE_URL says");
    let mut run = bare(["run", "-n", "k", "--", "sh", "-c", "echo [$REDIS_URL]"]);
    run.env("REDIS_URL", space.url());
    assert_eq!(done(run).code, Some(75), "it looked where REDIS_URL says");
    let mut run = other.tenure(["run", "-n", "k", "--", "sh", "-c", "echo [$REDIS_URL]"]);
    run.env("REDIS_URL", space.url());
    assert_eq!(done(run).out, format!("[{}]\n", space.url()));
}

/// `--wait` also covers the server: if the server is unreachable at the start and comes back in time, the run
/// succeeds.
#[test]
fn a_server_that_is_away_at_the_start_is_waited_for() {
    let space = Space::redis();
    space.server().kill();
    let waits = Running::start(space.tenure(["run", "-w", "10m", "k", "--", "true"]));
    let acquires = Running::start(space.tenure(["acquire", "-w", "10m", "a", "--ttl", "1m"]));
    let soon = ["run", "-w", "10m", "--unavailable-after", "300ms", "k", "--", "true"];
    let limit = ["run", "--unavailable-after", "2s", "k", "--", "true"];
    let one = ["run", "-w", "1s", "k", "--", "true"];
    let none = ["run", "k", "--", "true"];
    for (words, least) in [(&soon[..], 300), (&limit, 2_000), (&one, 1_000), (&none, 0)] {
        let started = Instant::now();
        let run = space.done(words);
        assert_eq!(run.code, Some(69), "{words:?}: {run:?}");
        // A pause before the next attempt that would not end in time is left out.
        let least = Duration::from_millis(least) * 9 / 10;
        assert!(started.elapsed() >= least, "{words:?} after {:?}", started.elapsed());
    }
    space.server().restart();
    for run in [waits, acquires] {
        let run = run.finish();
        assert_eq!(run.code, Some(0), "{run:?}");
    }
}

/// If the server becomes unreachable during a wait, the wait continues until its limit.
#[test]
fn a_server_that_goes_away_is_waited_for() {
    let space = Space::redis();
    let _holder = space.hold("run --ttl 2s --on-lost ignore k");
    let mut waits = Running::start(space.tenure(["run", "-w", "10m", "k", "--", "true"]));
    waits.line();
    space.server().kill();
    // Longer than a wait without a limit tolerates a server that cannot be reached or does not reply: 6 s.
    let started = Instant::now();
    assert_eq!(space.done(["run", "-w", "7s", "other", "--", "true"]).code, Some(69));
    assert!(started.elapsed() > Duration::from_millis(6_500), "after {:?}", started.elapsed());
    space.server().restart();
    let run = waits.finish();
    assert_eq!(run.code, Some(0), "{run:?}");
}

/// t117: if the server is paused, every command exits with 69, not with "held by another".
#[test]
fn a_server_that_stands_still_is_69_to_all() {
    let space = Space::redis();
    space.server().pause();
    let words = [&["run", "-n", "k", "--", "true"][..], &["run", "-w", "3s", "k", "--", "true"]];
    for words in words {
        let started = Instant::now();
        for run in [(); 3].map(|()| Running::start(space.tenure(words.iter()))) {
            let run = run.finish();
            assert_eq!(run.code, Some(69), "{run:?}");
        }
        // The longer limit is three seconds. No time is spent on clean-up at a server that does not reply.
        assert!(started.elapsed() < Duration::from_secs(5), "{words:?}: {:?}", started.elapsed());
    }
    space.server().go_on();
}

//! The end of a run: exit statuses and the status file.

use crate::common::{Running, Space, assert_matches, bare, done};

/// The exit status is exactly the command's own.
#[test]
fn the_commands_own_status() {
    let space = Space::new();
    for code in [0, 1, 3, 75, 255] {
        let run = done(space.sh("run k", &format!("exit {code}")));
        assert_eq!((run.code, run.err.as_str()), (Some(code), ""));
    }
}

/// A command that a signal ended gives 128+N, also if the signal has no name.
#[test]
fn signals_are_128_and_more() {
    let space = Space::new();
    for (signal, code) in [(9, 137), (15, 143), (40, 168)] {
        let run = done(space.sh("run k", &format!("kill -{signal} $$")));
        assert_eq!(run.code, Some(code), "{run:?}");
    }
}

/// A lock that another process holds gives 75, or the value of `-E`.
#[test]
fn not_acquired_is_75() {
    let space = Space::new();
    let _holder = space.hold("run k");
    assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(75));
    assert_eq!(space.done(["run", "-n", "-E", "9", "k", "--", "true"]).code, Some(9));
    assert_eq!(space.done(["run", "-w", "50ms", "k", "--", "true"]).code, Some(75));
}

/// A missing command gives 127, a command that cannot be run 126; neither leaves a lock.
#[test]
fn commands_that_cannot_be_run() {
    let space = Space::new();
    std::fs::write(space.path("plain"), "text").unwrap();
    let missing = space.done(["run", "k", "--", "no-such-command-here"]);
    assert_eq!(missing.code, Some(127));
    assert_eq!(missing.err, "tenure: error: command `no-such-command-here` not found\n");
    let plain = space.done(["run", "k", "--", "./plain"]);
    assert_eq!(plain.code, Some(126));
    assert_eq!(
        plain.err,
        "tenure: error: command `./plain` cannot be run: Permission denied (os error 13)\n"
    );
    assert!(space.is_free("k"));
}

/// A command that fails only when it is started leaves no lock either.
#[test]
fn a_broken_command_releases_the_lock() {
    use std::os::unix::fs::PermissionsExt as _;
    let space = Space::new();
    std::fs::write(space.path("broken"), "#!/no/such/interpreter\n").unwrap();
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(space.path("broken"), all).unwrap();
    let run = space.done(["run", "k", "--", "./broken"]);
    assert_eq!(run.code, Some(127), "{run:?}");
    assert_eq!(run.err, "tenure: error: command `./broken` not found\n");
    assert!(space.is_free("k"));
}

/// A directory that cannot store locks gives 69, and the message names it.
#[test]
fn unreachable_is_69() {
    let run = done(bare(["run", "-u", "file:/dev/null/locks", "k", "--", "true"]));
    assert_eq!(run.code, Some(69), "{run:?}");
    assert_matches(&run.err, "tenure: error: .*/dev/null.*\n");
}

/// If the URL was not on the command line, the message names the variable or file.
#[test]
fn urls_are_blamed_on_their_source() {
    let space = Space::new();
    let unknown = "unknown engine `zookeeper:` in url, expected `memory:`, `file:DIR`, \
                   `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
                   `redis-cluster://HOST,HOST`, `redis+quorum://HOST,HOST,HOST` or `etcd://HOST`";
    for name in ["TENURE_URL", "REDIS_URL"] {
        let mut run = bare(["run", "k", "--", "true"]);
        run.env(name, "zookeeper://:s3cret@localhost");
        let run = done(run);
        assert_eq!(
            (run.code, run.err),
            (Some(64), format!("tenure: error: `{name}` in the environment: {unknown}\n"))
        );
    }
    std::fs::write(space.path("url"), "zookeeper://:s3cret@localhost\n").unwrap();
    let run = space.done(["--url-file", "url", "ls"]);
    assert_eq!(run.code, Some(64));
    assert_eq!(run.err, format!("tenure: error: --url-file `url`: {unknown}\n"));
}

/// A command without `--` before it gives 64, and the message suggests `--`.
#[test]
fn missing_dashes_are_suggested() {
    let run = done(bare(["run", "a", "echo", "hi"]));
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "error: the following required arguments were not provided:\n  <COMMAND>...\n\n  \
         tip: put `--` before the command\n\nUsage: tenure run <KEY>... -- <COMMAND>...\n\n\
         For more information, try '--help'.\n"
    );
}

/// `tenure --help` names the engines of every URL, except `memory:`, whose locks nobody else would see.
#[test]
fn help_names_every_engine() {
    let help = done(bare(["--help"])).out;
    for form in tenure::url_forms().filter(|form| *form != "memory:") {
        let scheme = form.split(':').next().unwrap();
        assert!(help.contains(&format!("{scheme}:")), "{scheme} is not in:\n{help}");
    }
}

/// Invalid arguments give 64, help gives 0.
#[test]
fn usage_is_64() {
    let nonsense: [&[&str]; 8] = [
        &[],
        &["run"],
        &["run", "k"],
        &["run", "k", "true"],
        &["run", "-w", "soon", "k", "--", "true"],
        &["run", "--on-lost", "cry", "k", "--", "true"],
        &["dance"],
        &["-u", "gopher://x", "ls"],
    ];
    for args in nonsense {
        assert_eq!(done(bare(args)).code, Some(64), "{args:?}");
    }
    for args in [["run", "--help"], ["--version", "-q"]] {
        let run = done(bare(args));
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

/// The message names the invalid value.
#[test]
fn bad_values_are_named() {
    let space = Space::new();
    let run = space.done(["run", "--max-hold", "1 fortnight", "k", "--", "true"]);
    assert_eq!(run.code, Some(64));
    assert!(run.err.contains("invalid value '1 fortnight' for '--max-hold <DUR>'"), "{run:?}");
    let run = space.done(["run", "--min-hold", "10s", "--max-hold", "5s", "k", "--", "true"]);
    assert_eq!(run.code, Some(64));
    assert_eq!(run.err, "tenure: error: `--min-hold 10s` must not be more than `--max-hold 5s`\n");
}

/// The status file after a successful run.
#[test]
fn status_file_of_a_success() {
    let space = Space::new();
    let run = done(space.sh("run --status-file status.json k", "sleep 0.05; exit 3"));
    assert_eq!(run.code, Some(3));
    let report = space.report();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["key"], "k");
    assert_eq!(report["outcome"], "exited");
    assert!(report["loss"].is_null() && report.as_object().unwrap().contains_key("loss"));
    assert_eq!(report["child"], serde_json::json!({"status": 3, "signal": null}));
    assert!(report["held_ms"].as_u64().unwrap() >= 50, "{report}");
    assert!(report["waited_ms"].as_u64().is_some(), "{report}");
    assert!(report["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{report}");
}

/// The report has the process id and the times, from before the wait until after the command.
#[test]
fn status_file_has_time_and_pid() {
    let space = Space::new();
    let now = || tenure::time::UnixMillis::now().0;
    let before = now();
    let run = Running::start(space.sh("run --status-file status.json k", "sleep 0.05"));
    // `env` starts the tool by exec, so the process id is the same.
    let pid = run.pid().as_raw();
    assert_eq!(run.finish().code, Some(0));
    let (report, after) = (space.report(), now());
    assert_eq!(report["pid"], pid);
    let [started, ended] =
        ["started", "ended"].map(|at| report[format!("{at}_unix_ms")].as_u64().unwrap());
    assert!(before <= started && started + 50 <= ended && ended <= after, "{report}");
}

/// A killed run leaves no report, also not the one of an earlier run.
#[test]
fn an_old_status_file_is_removed() {
    let space = Space::new();
    std::fs::write(space.path("status.json"), "old").unwrap();
    let run = space.hold("run --status-file status.json k");
    assert!(!space.path("status.json").exists());
    run.send(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(run.finish().code, None);
    assert!(!space.path("status.json").exists());
}

/// Every outcome has its own word in the status file.
#[test]
fn status_file_of_every_outcome() {
    let space = Space::new();
    let file = ["--status-file", "status.json"];
    let outcome = |args: &[&str], command: &[&str]| {
        let before = ["run"].iter().chain(&file).chain(args).chain(&["--"]);
        space.done(before.chain(command));
        space.report()["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(outcome(&["k"], &["true"]), "exited");
    assert_eq!(outcome(&["k"], &["sh", "-c", "kill -9 $$"]), "signalled");
    assert_eq!(outcome(&["k"], &["no-such-command-here"]), "not_found");
    assert_eq!(outcome(&["k"], &["/tmp/"]), "not_runnable");
    assert_eq!(outcome(&["a\nb"], &["true"]), "usage");
    assert_eq!(outcome(&["-u", "file:/dev/null/x", "k"], &["true"]), "unreachable");
    assert_eq!(outcome(&["--max-hold", "200ms", "k"], &["sleep", "60"]), "lost");
    let _holder = space.hold("run k");
    assert_eq!(outcome(&["-n", "k"], &["true"]), "not_acquired");
}

/// A status file that cannot be written is reported before the command starts.
#[test]
fn unwritable_status_file() {
    let space = Space::new();
    let run = done(space.sh("run --status-file no/such/dir k", "touch ran"));
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "tenure: error: cannot write the status file `no/such/dir`: No such file or directory \
         (os error 2)\n"
    );
    assert!(!space.path("ran").exists());
}

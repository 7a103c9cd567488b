//! What the command inherits, and what it does not.

use crate::common::{Space, assert_matches, bare, done, is_alive, pid_in};
use std::io::Write as _;
use std::process::Stdio;

/// The command's environment has the key, fence, owner and ttl of its lock.
#[test]
fn environment() {
    let space = Space::new();
    let script = "echo $TENURE_KEY,$TENURE_FENCE,$TENURE_OWNER,$TENURE_TTL_MS";
    let run = done(space.sh("run db-migrate", script));
    assert_matches(&run.out, r"db-migrate,\d+,WHO/\d+,30000\n");
}

/// Fences rise from one run to the next.
#[test]
fn fences_rise() {
    let space = Space::new();
    let fence = || done(space.sh("run k", "echo $TENURE_FENCE")).out.trim().parse::<u64>().unwrap();
    let (first, second) = (fence(), fence());
    assert!(second > first, "{first} {second}");
}

/// The command does not get our URL, which may contain a password. It gets the application's URL.
#[test]
fn our_url_is_not_passed_on() {
    let space = Space::new();
    let script = "echo [$TENURE_URL][$TENURE_URL_FILE][$REDIS_URL]";
    let mut run = space.sh("run k", script);
    run.env("TENURE_URL_FILE", "/nowhere").env("REDIS_URL", "redis://:pw@app");
    assert_eq!(done(run).out, "[][][redis://:pw@app]\n");
    let mut run = bare(["run", "k", "--", "sh", "-c", script]);
    run.env("REDIS_URL", space.url());
    assert_eq!(done(run).out, "[][][]\n");
}

/// A URL can come from a file.
#[test]
fn url_files() {
    let space = Space::new();
    std::fs::write(space.path("url"), format!("{}\n", space.url())).unwrap();
    let path = space.path("url");
    let file = ["run", "--url-file", path.to_str().unwrap(), "k", "--", "true"];
    let run = done(bare(file));
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let run = done(bare(["run", "--url-file", "/no/file", "k", "--", "true"]));
    assert_eq!(run.code, Some(64));
    assert_matches(&run.err, "tenure: error: cannot read the URL from `/no/file`: .*\n");
}

/// A password never appears in our messages.
#[test]
fn passwords_are_never_shown() {
    for url in ["redis://:hunter2@127.0.0.1:1/0", "nonsense://me:hunter2@host"] {
        for args in [["-v", "ls", "--json"], ["run", "k", "--"]] {
            let mut run = bare(args.iter().copied().chain(["true"]).take(4));
            run.env("TENURE_URL", url);
            let run = done(run);
            assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
            assert_ne!(run.code, Some(0));
        }
    }
}

/// Arguments reach the command unchanged, without a shell.
#[test]
fn arguments_are_literal() {
    let space = Space::new();
    let run = space.done(["run", "k", "--", "printf", "[%s]", "a b", "$HOME", "*", "--", "-n"]);
    assert_eq!(run.out, "[a b][$HOME][*][--][-n]");
}

/// The command reads our standard input.
#[test]
fn stdin_is_inherited() {
    let space = Space::new();
    let mut run = space.tenure(["run", "k", "--", "cat"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"over the pipe").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"over the pipe");
}

/// The command leads a process group of its own.
#[test]
fn own_process_group() {
    let space = Space::new();
    let run = done(space.sh("run k", "cut -d' ' -f1,5 /proc/$$/stat"));
    let (pid, group) = run.out.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

/// The command has no open descriptor in the lock directory.
#[test]
fn the_locks_descriptor_is_not_inherited() {
    let space = Space::new();
    let run = done(space.sh("run k", "ls -l /proc/$$/fd"));
    assert!(!run.out.contains("locks"), "{run:?}");
}

/// A grandchild that outlives the command does not keep the lock, and is not killed.
#[test]
fn grandchildren_do_not_keep_the_lock() {
    let space = Space::new();
    let script = "sleep 60 >/dev/null 2>&1 & echo $! > pid";
    assert_eq!(done(space.sh("run k", script)).code, Some(0));
    let pid = pid_in(&space.path("pid"));
    assert!(space.is_free("k"));
    assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(0));
    assert!(is_alive(pid));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
}

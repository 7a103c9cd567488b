//! How the tool reads `tenure.toml`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{PASSWORD, Space, bare, done};

/// The tool in the space's directory, with lock settings from files only.
fn in_dir(space: &Space, args: &[&str]) -> Command {
    let mut command = bare(args);
    command.current_dir(space.path(".")).env("XDG_CONFIG_HOME", space.path("user"));
    command
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Prints how many lock files for `deploy` are in a directory, while the command runs.
const LOOK: &str = "ls \"$1\" | grep -c deploy.lock";

/// The file of the working directory overrides the user's, `TENURE_URL` overrides both, a flag overrides all.
/// A file overrides `REDIS_URL`.
#[test]
fn the_strongest_place_chooses() {
    let space = Space::untouched();
    let url = |name: &str| format!("file:{}", space.path(name).display());
    let file = |name: &str| format!("[lock]\nurl = '{}'\n", url(name));
    let is_in = |name: &str, flags: &[&str], env: Option<String>| {
        let dir = space.path(name).display().to_string();
        let script = ["--", "sh", "-c", LOOK, "sh", &dir];
        let mut command = in_dir(&space, &[&["run", "deploy"], flags, &script].concat());
        command.envs(env.map(|url| ("TENURE_URL", url)));
        let run = done(command);
        assert_eq!((run.code, run.out.as_str()), (Some(0), "1\n"), "{name}: {run:?}");
    };
    write(&space.path("user/tenure/tenure.toml"), &file("by-user"));
    is_in("by-user", &[], None);
    write(&space.path("tenure.toml"), &file("by-project"));
    is_in("by-project", &[], None);
    let script = format!("ls {} | grep -c deploy.lock", space.path("by-project").display());
    let mut command = in_dir(&space, &["run", "deploy", "--", "sh", "-c", &script]);
    command.env("REDIS_URL", url("by-application"));
    assert_eq!(done(command).out, "1\n", "the application's Redis is weaker than a file of ours");
    is_in("by-env", &[], Some(url("by-env")));
    is_in("by-flag", &["-u", &url("by-flag")], Some(url("by-env")));
}

/// Server, prefix, ttl and wait from the user's file; `--prefix` overrides it. The command does not get the
/// password.
#[test]
fn everything_by_file() {
    let space = Space::guarded();
    let port = space.server().port();
    write(
        &space.path("user/tenure/tenure.toml"),
        &format!(
            "[lock]\ndriver = 'redis'\nprefix = 'shop'\nttl = '77s'\nwait = '2s'\n\
             [redis]\nhost = '127.0.0.1'\nport = {port}\n"
        ),
    );
    let script = "echo $TENURE_TTL_MS ${TENURE_REDIS_PASSWORD-none}";
    let with = |args: &[&str]| {
        let mut command = in_dir(&space, args);
        command.env("TENURE_REDIS_PASSWORD", PASSWORD);
        command
    };
    let run = done(with(&["run", "deploy", "--", "sh", "-c", script]));
    assert_eq!((run.code, run.out.as_str()), (Some(0), "77000 none\n"), "{run:?}");

    let token = done(with(&["acquire", "deploy", "--ttl", "10m"]));
    assert_eq!(token.code, Some(0), "{token:?}");
    assert!(space_has(&space, "shop:lock:deploy"));
    let busy = done(with(&["run", "deploy", "--", "true"]));
    assert_eq!(busy.code, Some(75), "{busy:?}");
    assert!(busy.err.contains("(gave up after 2s)"), "{busy:?}");
    let other = done(with(&["run", "deploy", "--prefix", "other", "--", "true"]));
    assert_eq!(other.code, Some(0), "{other:?}");
}

fn space_has(space: &Space, key: &str) -> bool {
    let mut client = space.server().client();
    client.command(&["AUTH", PASSWORD]);
    client.text(&["GET", key]).is_some()
}

/// An invalid setting is a usage error that names the field; so is an unknown engine.
#[test]
fn refusals_name_the_field() {
    let space = Space::untouched();
    let refused = |toml: &str| {
        write(&space.path("tenure.toml"), toml);
        let done = done(in_dir(&space, &["ls"]));
        assert_eq!(done.code, Some(64), "{done:?}");
        done.err
    };
    assert_eq!(
        refused("[lock]\nttl = '5ms'\n"),
        "tenure: error: invalid `lock.ttl` in `tenure.toml`: `5ms` is not a time from 10ms to 365 days, such \
         as `15s`\n"
    );
    assert_eq!(
        refused("[lock]\nurl = 'zookeeper://:hunter2@h'\n"),
        "tenure: error: `lock.url` in `tenure.toml`: unknown engine `zookeeper:` in url, expected `memory:`, \
         `file:DIR`, `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
         `redis-cluster://HOST,HOST`, `redis+quorum://HOST,HOST,HOST` or `etcd://HOST`\n"
    );
}

/// A configured `unavailable_after` is how long a server is waited for that is away at the start. The time left of
/// `wait` is not shown then: it is not what ends the wait. With `-n` nothing is waited for.
#[test]
fn unavailable_after_by_file() {
    let space = Space::redis();
    space.server().kill();
    let run = |wait: &str, args: &[&str]| {
        let text = format!("[lock]\nurl = '{}'\nunavailable_after = '2s'\n{wait}", space.url());
        write(&space.path("tenure.toml"), &text);
        let start = Instant::now();
        let run = done(in_dir(&space, args));
        assert_eq!(run.code, Some(69), "{run:?}");
        (start.elapsed(), run.err)
    };
    let least = Duration::from_millis(1_800);
    for args in [&["run", "k", "--", "true"][..], &["acquire", "k", "--ttl", "1m"]] {
        let (took, said) = run("", args);
        assert!(took >= least, "{args:?} after {took:?}: {said}");
    }
    let (took, said) = run("wait = '10m'\n", &["run", "k", "--", "true"]);
    assert!(took >= least, "after {took:?}: {said}");
    assert!(
        said.contains("waiting for the server of k") && !said.contains("giving up in"),
        "{said}"
    );
    let (took, said) = run("", &["run", "-n", "k", "--", "true"]);
    assert!(took < least && !said.contains("waiting for the server"), "after {took:?}: {said}");
}

/// A configured `max_hold` ends the command as `--max-hold` does: with TERM first.
#[test]
fn t69_max_hold_by_file() {
    let space = Space::untouched();
    let locks = space.path("locks");
    let text = format!("[lock]\nurl = 'file:{}'\nmax_hold = '1s'\n", locks.display());
    write(&space.path("tenure.toml"), &text);
    let script =
        "exec 2>/dev/null; trap 'echo asked > log; exit 0' TERM; while :; do sleep 0.01; done";
    let args = ["run", "deploy", "--grace", "400ms", "--", "sh", "-c", script];
    let run = done(in_dir(&space, &args));
    assert_eq!((run.code, space.read("log").as_str()), (Some(79), "asked\n"), "{run:?}");
    assert!(run.err.contains("sent TERM to"), "{run:?}");
}

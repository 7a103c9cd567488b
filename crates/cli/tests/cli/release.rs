//! `tenure release`: by token, and by force.

use crate::common::{Running, Space, assert_matches, bare, done, pid_in, wait_for};
use crate::screen::Screen;
use std::process::Stdio;

fn acquire(space: &Space, key: &str) -> String {
    let run = space.done(["acquire", key, "--ttl", "1m"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.out.trim().into()
}

/// A token releases its lock once.
#[test]
fn by_token() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    let run = space.done(["release", "k", "--token", &token]);
    assert_eq!(
        (run.code, run.out.as_str(), run.err.as_str()),
        (Some(0), "", "tenure: released k\n")
    );
    assert_eq!(space.keys(), [""; 0]);
    let again = space.done(["release", "k", "--token", &token]);
    assert_eq!(again.code, Some(79));
    assert_eq!(
        again.err,
        "tenure: not released: k is not held with this token, or no longer; it is free\n"
    );
}

/// An old token does not affect the present holder, and the message names that holder.
#[test]
fn t02_a_newer_holder_is_not_touched() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(0));
    let holder = space.hold("run k");
    let run = space.done(["release", "k", "--token", &token]);
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        "tenure: not released: k is not held with this token, or no longer; it is held by WHO for \\d+s\n",
    );
    assert!(!space.is_free("k"));
    space.let_go();
    assert_eq!(holder.finish().code, Some(0), "it had its lock to the end");
}

/// The token can come from a file or from stdin, so that it does not appear in the process list.
#[test]
fn tokens_from_elsewhere() {
    let space = Space::redis();
    std::fs::write(space.path("token"), acquire(&space, "k") + "\n").unwrap();
    assert_eq!(space.done(["release", "k", "--token-file", "token"]).code, Some(0));
    std::fs::write(space.path("token"), acquire(&space, "k")).unwrap();
    let mut run = space.tenure(["release", "k", "--token-file", "-"]);
    run.stdin(Stdio::from(std::fs::File::open(space.path("token")).unwrap()));
    assert_eq!(done(run).code, Some(0));
    assert_eq!(space.keys(), [""; 0]);
    let run = space.done(["release", "k", "--token-file", "none"]);
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "tenure: error: cannot read the token from `none`: No such file or directory (os error 2)\n"
    );
}

/// An invalid token is rejected without being repeated; contradicting options are rejected.
#[test]
fn usage() {
    let space = Space::redis();
    for token in ["", "s3cret", "00112233445566778899aabbccddeefg"] {
        let run = space.done(["release", "k", "--token", token]);
        assert_eq!(run.code, Some(64));
        assert_eq!(
            run.err,
            "tenure: error: invalid token: expected the 32 hexadecimal digits that `tenure acquire` \
             printed\n"
        );
    }
    let token = "00112233445566778899aabbccddeeff";
    let nonsense: [&[&str]; 6] = [
        &["release", "k"],
        &["release", "--force"],
        &["release", "k", "--token-file", "x", "--force"],
        &["release", "k", "--token", token, "--yes"],
        &["release", "k", "--token", token, "--reason", "x"],
        &["release", "k", "--token", token, "--token-file", "x"],
    ];
    for args in nonsense {
        assert_eq!(space.done(args).code, Some(64), "{args:?}");
    }
}

/// If locks end with their process, there are no tokens.
#[test]
fn no_tokens_without_a_server() {
    let token = "00112233445566778899aabbccddeeff";
    let space = Space::new();
    let run = space.done(["release", "k", "--token", token]);
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "tenure: error: `file:` has no tokens: its locks end with their process\n\
         hint: tenure show k\n"
    );
}

/// t68: the former holder learns that it was forced, by whom and why, and exits with 79.
#[test]
fn t68_forced() {
    let space = Space::redis();
    let script = "echo $$ > pid; exec sleep 60";
    let args = "run --ttl 2s --reason release_41 --status-file status.json k";
    let run = Running::start(space.sh(args, script));
    pid_in(&space.path("pid"));
    let forced = space.done(["release", "k", "--force", "--yes", "--reason", "stuck since noon"]);
    assert_eq!((forced.code, forced.out.as_str()), (Some(0), ""));
    let pid = run.pid();
    assert_matches(
        &forced.err,
        &format!(
            "tenure: k is held \\d+s by WHO \\(pid {pid}, \"release_41\"\\), \\ds of lease left, its \
             process runs on this machine\ntenure: released k by force: WHO \\(pid {pid}, \
             \"release_41\"\\) will see it at its next renewal, and may continue until then\n"
        ),
    );
    let run = run.finish();
    assert_eq!(run.code, Some(79));
    assert_matches(
        &run.err,
        "tenure: losing k: released by force: WHO: stuck since noon; sent KILL to \\d+\ntenure: lost k\n",
    );
    assert_eq!(space.report()["loss"], "forced");
}

/// Without a reason the former holder still learns by whom; with `-q`, `release` prints nothing.
#[test]
fn t68_forced_without_a_reason() {
    let space = Space::redis();
    let run = Running::start(space.sh("run --ttl 2s k", "echo $$ > pid; exec sleep 60"));
    pid_in(&space.path("pid"));
    let forced = space.done(["-q", "release", "k", "--force", "--yes"]);
    assert_eq!((forced.code, forced.err.as_str()), (Some(0), ""));
    assert_matches(
        &run.finish().err,
        "tenure: losing k: released by force: WHO; sent KILL to \\d+\ntenure: lost k\n",
    );
}

/// t68: a lock of a script can be released by force too; the script learns it when it releases.
#[test]
fn t68_a_script_is_forced() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    let forced = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(forced.code, Some(0));
    assert_matches(
        &forced.err,
        "tenure: k is held \\d+s by WHO \\(pid \\d+\\), \\d+s of lease left, its process has ended, \
         as that of `tenure acquire` always has\n\
         tenure: released k by force: a script that has its token will see it when it releases\n",
    );
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(79));
}

/// If the lock is free, there is nothing to do.
#[test]
fn nothing_to_force() {
    for space in [Space::redis(), Space::new()] {
        let run = space.done(["release", "k", "--force"]);
        assert_eq!((run.code, run.out.as_str()), (Some(0), ""));
        assert_eq!(run.err, "tenure: nothing to release: k is free\n");
    }
}

/// Without a terminal the operator cannot confirm, so `--yes` is required.
#[test]
fn force_needs_yes_off_a_terminal() {
    let space = Space::redis();
    acquire(&space, "k");
    let run = space.done(["release", "k", "--force"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        "tenure: k is held [^\n]+\ntenure: error: --force needs --yes if there is no terminal to ask on\n",
    );
    assert!(!space.is_free("k"));
}

/// A25: a file lock cannot be released by force; the message names the process to end.
#[test]
fn force_on_file_names_the_process() {
    let space = Space::new();
    let holder = space.hold("run --reason why k");
    let run = space.done(["release", "k", "--force"]);
    assert_eq!(run.code, Some(64));
    let (pid, host) = (holder.pid(), regex::escape(&tenure::Process::this_process().host));
    assert_matches(
        &run.err,
        &format!(
            "tenure: k is held \\d+s by WHO \\(pid {pid}, \"why\"\\), its process runs on this machine\n\
             tenure: error: lock `k`: not supported by this engine: a file lock ends with its process: \
             end pid {pid} on `{host}` \\(tenure, \"why\"\\)\n"
        ),
    );
}

/// A lock that is only kept closed is opened, on files and on Redis. A lock that an older version closed has
/// no token to compare, so it is not opened; it opens by itself.
#[test]
fn force_on_a_closed_lock() {
    let closed = "tenure: k was released by WHO \\(pid \\d+\\), kept closed for another \\d+s\n";
    for space in [Space::new(), Space::redis()] {
        assert_eq!(space.done(["run", "--min-hold", "1m", "k", "--", "true"]).code, Some(0));
        assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(75), "it is closed");
        let run = space.done(["release", "k", "--force", "--yes"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        assert_matches(&run.err, &format!("{closed}tenure: opened k\n"));
        assert_eq!(space.done(["run", "-n", "k", "--", "true"]).code, Some(0));
    }
    let space = Space::redis();
    let value = "-t1:closed::1800000000000:host:1:user:program";
    space.server().client().text(&["SET", "tenure:lock:k", value, "PX", "60000"]);
    let run = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(run.code, Some(75));
    assert_matches(
        &run.err,
        "tenure: k was released by user@host \\(pid 1\\), kept closed for another \\d+s\n\
         tenure: error: lock `k` was closed by an older version of tenure\nhint: it opens by itself\n",
    );
    assert!(!space.is_free("k"));
}

/// A lock of another program is not released.
#[test]
fn force_on_a_foreign_lock() {
    let space = Space::redis();
    space.server().client().text(&["SET", "tenure:lock:k", "theirs", "PX", "60000"]);
    let run = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        "tenure: k is held by an unknown holder, \\d+s of lease left\n\
         tenure: error: lock `k` is held by a program that is not tenure\n\
         hint: release it there, or delete its key by hand\n",
    );
    assert!(!space.is_free("k"));
}

/// A29: `show`, a waiter and `--force` report that a newer version holds the lock.
#[test]
fn force_on_a_newer_lock() {
    let space = Space::redis();
    let value = "-t2:client:token:1:host:1:user:program";
    space.server().client().text(&["SET", "tenure:lock:k", value, "PX", "60000"]);
    let shown = space.done(["show", "k"]);
    assert!(shown.out.contains("holder    a newer version of tenure\n"), "{}", shown.out);
    let refused = space.done(["run", "-n", "k", "--", "true"]);
    assert!(refused.err.contains("k is held by a newer version of tenure"), "{}", refused.err);
    let run = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        "tenure: k is held by a newer version of tenure, \\d+s of lease left\n\
         tenure: error: lock `k` is held by a newer version of tenure\n\
         hint: release it there, or with that version's `tenure`\n",
    );
    assert!(!space.is_free("k"));
}

const QUESTION: &str = "type the key again to take it away: ";

fn ask(space: &Space, key: &str) -> Screen {
    let mut release = bare(["release", key, "--force"]);
    release.env("TENURE_URL", space.url()).env("NO_COLOR", "1");
    let screen = Screen::start(&release);
    screen.expect(QUESTION);
    screen
}

/// On a terminal the key must be typed again.
#[test]
fn typed_again() {
    let space = Space::redis();
    acquire(&space, "db migrate");
    let mut screen = ask(&space, "db migrate");
    screen.type_in("db migrat\n");
    screen.expect("tenure: not released: db migrate was not typed\r\n");
    assert_eq!(screen.code(), Some(75));
    let mut screen = ask(&space, "db migrate");
    screen.type_in("\x04");
    screen.expect("tenure: not released: db migrate was not typed\r\n");
    assert!(!space.is_free("db migrate"));
    let mut screen = ask(&space, "db migrate");
    screen.type_in("db migrate\n");
    screen.expect("tenure: released db migrate by force: ");
    assert_eq!(screen.code(), Some(0));
    assert!(space.is_free("db migrate"));
}

/// Ctrl-C at the question leaves the lock held.
#[test]
fn ctrl_c_at_the_question() {
    let space = Space::redis();
    acquire(&space, "k");
    let mut screen = Screen::shell(&space);
    screen.type_in("$T release k --force\n");
    screen.expect(QUESTION);
    screen.type_in("\x03");
    // A shell discards text that was typed before its prompt when a signal ended its job.
    wait_for("the prompt", || screen.shown().ends_with("ps1:"));
    screen.type_in("echo code=$?\n");
    screen.expect("code=130");
    assert!(!space.is_free("k"));
}

/// A25: a new holder that acquired the lock while the question was open keeps it, and the message names it.
#[test]
fn a_newer_holder_is_not_hit() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    let mut screen = ask(&space, "k");
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(0));
    let newer = space.hold("run k");
    screen.type_in("k\n");
    screen.expect("tenure: not released: k has changed hands meanwhile; it is held by ");
    screen.expect("hint: tenure show k\r\n");
    assert_eq!(screen.code(), Some(75));
    space.let_go();
    assert_eq!(newer.finish().code, Some(0), "it had its lock to the end");
}

/// If the lock was released while the question was open, it is free, and the status is 0.
#[test]
fn released_meanwhile() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    let mut screen = ask(&space, "k");
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(0));
    screen.type_in("k\n");
    screen.expect("tenure: nothing to release: k is free\r\n");
    assert_eq!(screen.code(), Some(0));
}

/// While the question is open, a renewal shows that the holder is alive; a lease that only gets shorter does
/// not.
#[test]
fn renewals_are_reported() {
    let space = Space::redis();
    acquire(&space, "left");
    let left = ask(&space, "left");
    let _holder = space.hold("run --ttl 6s k");
    let screen = ask(&space, "k");
    screen.expect("tenure: k was renewed just now: its holder is alive\r\n");
    screen.expect(&format!("alive\r\n{QUESTION}"));
    assert!(!left.shown().contains("renewed"), "{}", left.shown());
}

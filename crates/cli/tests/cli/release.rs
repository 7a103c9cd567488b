//! `tenure release`: by its token, and by force.

use crate::common::{Running, Space, assert_matches, bare, done, pid_in, wait_for};
use crate::screen::Screen;
use std::process::Stdio;

fn acquire(space: &Space, key: &str) -> String {
    let run = space.done(["acquire", key, "--ttl", "1m"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.out.trim().into()
}

/// What a token can do: free its lock once.
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
        "tenure: not released: k is not held under this token (any more); it is free\n"
    );
}

/// The token of the past does nothing to whoever has the lock now, and says who that is.
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
        "tenure: not released: k is not held under this token \\(any more\\); it is held by WHO for \\d+s\n",
    );
    assert!(!space.is_free("k"));
    space.let_go();
    assert_eq!(holder.finish().code, Some(0), "it had its lock to the end");
}

/// The token can come from a file or from stdin, so that it need not stand in the list of processes.
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

/// What is no token is refused without being repeated; what does not go together is refused.
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
        &["release", "k", "--token", token, "--force"],
        &["release", "k", "--token", token, "--yes"],
        &["release", "k", "--token", token, "--reason", "x"],
        &["release", "k", "--token", token, "--token-file", "x"],
    ];
    for args in nonsense {
        assert_eq!(space.done(args).code, Some(64), "{args:?}");
    }
}

/// Where a lock ends with its process there are no tokens.
#[test]
fn no_tokens_without_a_server() {
    let token = "00112233445566778899aabbccddeeff";
    let space = Space::new();
    let run = space.done(["release", "k", "--token", token]);
    assert_eq!(run.code, Some(64));
    assert_eq!(
        run.err,
        "tenure: error: there are no tokens here: a lock of `file:` ends with its process\n\
         hint: tenure show k\n"
    );
}

/// t68: the former holder hears that it was forced, by whom and why, and ends with 79.
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
             \"release_41\"\\) learns it at the next renewal, and may go on until then\n"
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

/// Without a reason the former holder still hears by whom; `-q` says nothing of it here.
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

/// t68: what a script holds can be taken away too; it finds out when it releases.
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
         tenure: released k by force: a script that has its token learns it at its release\n",
    );
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(79));
}

/// Nothing held is nothing to do.
#[test]
fn nothing_to_force() {
    for space in [Space::redis(), Space::new()] {
        let run = space.done(["release", "k", "--force"]);
        assert_eq!((run.code, run.out.as_str()), (Some(0), ""));
        assert_eq!(run.err, "tenure: nothing to release: k is free\n");
    }
}

/// Off a terminal nobody can be asked, so `--yes` has to be said.
#[test]
fn force_needs_yes_off_a_terminal() {
    let space = Space::redis();
    acquire(&space, "k");
    let run = space.done(["release", "k", "--force"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        "tenure: k is held [^\n]+\ntenure: error: --force needs --yes where nobody can be asked\n",
    );
    assert!(!space.is_free("k"));
}

/// A25: a file lock cannot be taken away; the message says which process to end.
#[test]
fn force_on_file_names_the_process() {
    let space = Space::new();
    let holder = space.hold("run --reason why k");
    let run = space.done(["release", "k", "--force"]);
    assert_eq!(run.code, Some(64));
    let (pid, host) = (holder.pid(), regex::escape(&tenure::Client::this_process().host));
    assert_matches(
        &run.err,
        &format!(
            "tenure: k is held \\d+s by WHO \\(pid {pid}, \"why\"\\), its process runs on this machine\n\
             tenure: error: lock `k`: not supported by this engine: a file lock ends with its process: \
             end pid {pid} on `{host}` \\(tenure, \"why\"\\)\n"
        ),
    );
}

/// A lock that is only kept closed has no holder: `file:` opens it, Redis says that it will open.
#[test]
fn force_on_a_closed_lock() {
    let space = Space::new();
    assert_eq!(space.done(["run", "--at-least", "1m", "k", "--", "true"]).code, Some(0));
    let run = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(run.code, Some(0));
    assert_matches(
        &run.err,
        "tenure: k was released by WHO \\(pid \\d+\\), kept closed for another \\d+s\ntenure: opened k\n",
    );
    let space = Space::redis();
    assert_eq!(space.done(["run", "--at-least", "1m", "k", "--", "true"]).code, Some(0));
    let run = space.done(["release", "k", "--force", "--yes"]);
    assert_eq!(run.code, Some(75));
    assert_matches(
        &run.err,
        "tenure: k was released by WHO \\(pid \\d+\\), kept closed for another \\d+s\n\
         tenure: error: lock `k` has no holder any more, and opens by itself\n",
    );
}

/// Another program's lock is not ours to take.
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

/// A29: a newer version's lock is called so, by `show`, by one that wants it, and by `--force`.
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

/// On a terminal the key has to be typed again.
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

/// Ctrl-C at the question takes nothing away.
#[test]
fn ctrl_c_at_the_question() {
    let space = Space::redis();
    acquire(&space, "k");
    let mut screen = Screen::shell(&space);
    screen.type_in("$T release k --force\n");
    screen.expect(QUESTION);
    screen.type_in("\x03");
    // A shell whose job a signal has ended forgets what was typed before its prompt.
    wait_for("the prompt", || screen.shown().ends_with("ps1:"));
    screen.type_in("echo code=$?\n");
    screen.expect("code=130");
    assert!(!space.is_free("k"));
}

/// A25: a holder that came while the operator was thinking is not hit, and is named.
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

/// A lock that was given back while the operator was thinking is free, and that is all that was wanted.
#[test]
fn given_back_meanwhile() {
    let space = Space::redis();
    let token = acquire(&space, "k");
    let mut screen = ask(&space, "k");
    assert_eq!(space.done(["release", "k", "--token", &token]).code, Some(0));
    screen.type_in("k\n");
    screen.expect("tenure: nothing to release: k is free\r\n");
    assert_eq!(screen.code(), Some(0));
}

/// While the question is open, a renewal shows that the holder lives; a lease that only runs down
/// is not taken for one.
#[test]
fn renewals_are_told() {
    let space = Space::redis();
    acquire(&space, "left");
    let left = ask(&space, "left");
    let _holder = space.hold("run --ttl 6s k");
    let screen = ask(&space, "k");
    screen.expect("tenure: k was renewed just now: its holder is alive\r\n");
    screen.expect(&format!("alive\r\n{QUESTION}"));
    assert!(!left.shown().contains("renewed"), "{}", left.shown());
}

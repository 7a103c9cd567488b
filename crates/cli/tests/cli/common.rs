//! What all tests of the tool share: a directory of their own, the tool itself, and waiting for a
//! state with a deadline.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::{PipeReader, PipeWriter, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::NamedTempFile;
use tenure_testkit::servers::{RedisServer, Reply};

/// Longer than anything takes on a machine that is merely slow.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A place for locks that no other test knows: a directory, or a Redis server.
pub(crate) struct Space {
    dir: tempfile::TempDir,
    server: Option<RedisServer>,
}

/// The password of the servers that have one.
pub(crate) const PASSWORD: &str = "hunter2";

/// What a finished run said and how it ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Space {
    pub(crate) fn new() -> Self {
        let space = Space::untouched();
        // As the tool makes it, for looks do not: they may come before the first run.
        DirBuilder::new().mode(0o700).create(space.path("locks")).unwrap();
        space
    }

    /// The same before anybody has locked anything.
    pub(crate) fn untouched() -> Self {
        Space { dir: tempfile::tempdir().unwrap(), server: None }
    }

    /// Locks on a Redis server.
    pub(crate) fn redis() -> Self {
        Space { server: Some(RedisServer::start()), ..Space::untouched() }
    }

    /// Locks on a Redis server that wants a password.
    pub(crate) fn guarded() -> Self {
        let server = RedisServer::start_with(&["--requirepass", PASSWORD]);
        Space { server: Some(server), ..Space::untouched() }
    }

    pub(crate) fn server(&self) -> &RedisServer {
        self.server.as_ref().unwrap()
    }

    /// `127.0.0.1:PORT`, as messages name the server.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server().port())
    }

    /// What the server keeps, but for the fence.
    pub(crate) fn keys(&self) -> Vec<String> {
        let Reply::Many(keys) = self.server().client().command(&["KEYS", "*"]) else { panic!() };
        let text = |key: &Reply| format!("{key:?}");
        keys.iter().map(text).filter(|key| !key.contains("tenure:fence")).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        match &self.server {
            Some(server) => server.url(),
            None => format!("file:{}", self.path("locks").display()),
        }
    }

    /// The same for a server that wants a password.
    pub(crate) fn secret_url(&self) -> String {
        format!("redis://:{PASSWORD}@{}", self.address())
    }

    /// The tool with this place, and an environment that says nothing about locks.
    pub(crate) fn tenure<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = bare(args);
        command.env("TENURE_URL", self.url()).current_dir(self.dir.path());
        command
    }

    /// `tenure ARGS` to its end.
    pub(crate) fn done<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        done(self.tenure(args))
    }

    /// `tenure ARGS`, where ARGS are separated by spaces, then `-- sh -c SCRIPT`.
    pub(crate) fn sh(&self, args: &str, script: &str) -> Command {
        self.tenure(args.split_whitespace().chain(["--", "sh", "-c", script]))
    }

    /// Starts a run that holds `key` until this file is removed; returns when the command runs.
    pub(crate) fn hold(&self, args: &str) -> Running {
        let (held, script) =
            (self.path("held"), "touch held; while [ -e held ]; do sleep 0.01; done");
        let running = Running::start(self.sh(args, script));
        wait_for("the lock to be held", || held.exists());
        running
    }

    pub(crate) fn let_go(&self) {
        std::fs::remove_file(self.path("held")).unwrap();
    }

    /// What `show KEY --json` says of the lock; null if it is free.
    pub(crate) fn show(&self, key: &str) -> Value {
        let shown = self.done(["show", "--json", key]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        serde_json::from_str::<Value>(&shown.out).unwrap()["lock"].take()
    }

    pub(crate) fn is_free(&self, key: &str) -> bool {
        self.show(key).is_null()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.read("status.json")).unwrap()
    }
}

/// A program with no signal ignored, whatever this test was started with: `nohup` ignores HUP, and a
/// shell's `&` ignores INT and QUIT.
pub(crate) fn unmuted(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "--"]).arg(program);
    command
}

/// The tool without any place for its locks.
pub(crate) fn bare<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = unmuted(assert_cmd::cargo::cargo_bin!("tenure"));
    for name in ["TENURE_URL", "TENURE_URL_FILE", "REDIS_URL", "NO_COLOR"] {
        command.env_remove(name);
    }
    // Nor does a file of whoever runs this test.
    command.env("XDG_CONFIG_HOME", "/no/such/directory");
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn done(command: Command) -> Done {
    Running::start(command).finish()
}

/// A tool that is still running. Killed with the test, should that fail.
///
/// It writes to files: a pipe would stay open, and the test with it, as long as any descendant lives.
pub(crate) struct Running {
    child: Child,
    out: NamedTempFile,
    err: NamedTempFile,
    /// How much of `err` the test has read already.
    read: usize,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let (out, err) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        command.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
        Running { child: command.spawn().unwrap(), out, err, read: 0 }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for the end, within the deadline.
    pub(crate) fn finish(mut self) -> Done {
        wait_for("the run to end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let out = std::fs::read_to_string(self.out.path()).unwrap();
        Done { code, out, err: self.unread() }
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        wait_for("a line", || self.unread().contains('\n'));
        let line = self.unread().split('\n').next().unwrap().to_owned();
        self.read += line.len() + 1;
        line
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        std::fs::read_to_string(self.out.path()).unwrap()
    }

    fn unread(&self) -> String {
        std::fs::read_to_string(self.err.path()).unwrap()[self.read..].to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `state` is so, and fails after the deadline.
pub(crate) fn wait_for(what: &str, mut state: impl FnMut() -> bool) {
    let start = Instant::now();
    while !state() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The letter that the kernel gives a process's state; empty if there is no such process.
pub(crate) fn state(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().chars().take(1).collect()
}

/// Whether a process runs (a zombie does not).
pub(crate) fn is_alive(pid: i32) -> bool {
    !["", "Z", "X"].contains(&state(pid).as_str())
}

/// The process id that a command wrote to a file; waits until it has.
pub(crate) fn pid_in(path: &Path) -> i32 {
    let read = || std::fs::read_to_string(path).ok()?.trim().parse().ok();
    wait_for("a process id", || read().is_some());
    read().unwrap()
}

/// Asserts that all of `text` matches a pattern, in which `WHO` is this user on this machine.
pub(crate) fn assert_matches(text: &str, pattern: &str) {
    let us = tenure::Client::this_process();
    let who = regex::escape(&format!("{}@{}", us.user, us.host));
    let pattern = pattern.replace("WHO", &who);
    let whole = regex::Regex::new(&format!("^(?s:{pattern})$")).unwrap();
    assert!(whole.is_match(text), "{text:?} does not match {pattern:?}");
}

/// A pipe that is full and that nobody reads: a write to it blocks.
pub(crate) fn unread() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut end = &writer;
    for size in [4096, 1] {
        while end.write(&[b'.'; 4096][..size]).is_ok() {}
    }
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

/// The status of a process that must end within the deadline.
pub(crate) fn status_of(child: &mut Child) -> Option<i32> {
    wait_for("the run to end", || child.try_wait().unwrap().is_some());
    child.wait().unwrap().code()
}

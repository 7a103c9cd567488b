//! Shared by all tests of the tool: a separate directory, the tool itself, and waits with a deadline.

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

/// Longer than any step takes on a machine that is only slow.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A store for locks that no other test uses: a directory, or a Redis server.
pub(crate) struct Space {
    dir: tempfile::TempDir,
    server: Option<RedisServer>,
}

/// The password of the servers that have one.
pub(crate) const PASSWORD: &str = "hunter2";

/// The output and exit status of a finished run.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Space {
    pub(crate) fn new() -> Self {
        let space = Space::untouched();
        // Created with the mode that the tool uses. Commands that only read do not create it, and a test may
        // start with one.
        DirBuilder::new().mode(0o700).create(space.path("locks")).unwrap();
        space
    }

    /// A space whose lock directory does not exist yet.
    pub(crate) fn untouched() -> Self {
        Space { dir: tempfile::tempdir().unwrap(), server: None }
    }

    /// Locks on a Redis server.
    pub(crate) fn redis() -> Self {
        Space { server: Some(RedisServer::start()), ..Space::untouched() }
    }

    /// Locks on a Redis server that requires a password.
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

    /// The keys on the server, without the fence.
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

    /// The URL with the password, for a server that requires one.
    pub(crate) fn secret_url(&self) -> String {
        format!("redis://:{PASSWORD}@{}", self.address())
    }

    /// The tool with the URL of this space, and no other lock settings in its environment.
    pub(crate) fn tenure<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = bare(args);
        command.env("TENURE_URL", self.url()).current_dir(self.dir.path());
        command
    }

    /// Runs `tenure ARGS` to its end.
    pub(crate) fn done<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Done {
        done(self.tenure(args))
    }

    /// `tenure ARGS`, where ARGS are separated by spaces, then `-- sh -c SCRIPT`.
    pub(crate) fn sh(&self, args: &str, script: &str) -> Command {
        self.tenure(args.split_whitespace().chain(["--", "sh", "-c", script]))
    }

    /// Starts a run that holds the lock until the file `held` is removed; returns when the command runs.
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

    /// The lock in `show KEY --json`; null if it is free.
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

/// A program with default signal handling, whatever this test inherited: `nohup` ignores HUP, and a shell's
/// `&` ignores INT and QUIT.
pub(crate) fn unmuted(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", "--"]).arg(program);
    command
}

/// The tool without any setting for where the locks are.
pub(crate) fn bare<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = unmuted(assert_cmd::cargo::cargo_bin!("tenure"));
    for name in ["TENURE_URL", "TENURE_URL_FILE", "REDIS_URL", "NO_COLOR"] {
        command.env_remove(name);
    }
    // Also ignore the configuration file of the user who runs this test.
    command.env("XDG_CONFIG_HOME", "/no/such/directory");
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn done(command: Command) -> Done {
    Running::start(command).finish()
}

/// A running tool. It is killed when the value is dropped, so also if the test fails.
///
/// Its output goes to files: a pipe would stay open, and block the test, as long as any descendant lives.
pub(crate) struct Running {
    child: Child,
    out: NamedTempFile,
    err: NamedTempFile,
    /// How much of `err` the test has read.
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

    /// Waits for its end, within the deadline.
    pub(crate) fn finish(mut self) -> Done {
        wait_for("the run to end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let out = std::fs::read_to_string(self.out.path()).unwrap();
        Done { code, out, err: self.unread() }
    }

    /// The next line on stderr.
    pub(crate) fn line(&mut self) -> String {
        wait_for("a line", || self.unread().contains('\n'));
        let line = self.unread().split('\n').next().unwrap().to_owned();
        self.read += line.len() + 1;
        line
    }

    /// Its stdout so far.
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

/// Waits until `state` returns true, and fails after the deadline.
pub(crate) fn wait_for(what: &str, mut state: impl FnMut() -> bool) {
    let start = Instant::now();
    while !state() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel's letter for the state of a process; empty if the process does not exist.
pub(crate) fn state(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().unwrap_or_default().chars().take(1).collect()
}

/// Whether a process runs (a zombie does not).
pub(crate) fn is_alive(pid: i32) -> bool {
    !["", "Z", "X"].contains(&state(pid).as_str())
}

/// The process id that a command writes to a file; waits for it.
pub(crate) fn pid_in(path: &Path) -> i32 {
    let read = || std::fs::read_to_string(path).ok()?.trim().parse().ok();
    wait_for("a process id", || read().is_some());
    read().unwrap()
}

/// Asserts that the whole `text` matches a pattern, in which `WHO` is this user on this machine.
pub(crate) fn assert_matches(text: &str, pattern: &str) {
    let us = tenure::Process::this_process();
    let who = regex::escape(&format!("{}@{}", us.user, us.host));
    let pattern = pattern.replace("WHO", &who);
    let whole = regex::Regex::new(&format!("^(?s:{pattern})$")).unwrap();
    assert!(whole.is_match(text), "{text:?} does not match {pattern:?}");
}

/// A full pipe without a reader: a write to it blocks.
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

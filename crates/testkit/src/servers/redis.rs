//! A `redis-server` process, and a client for raw commands.
//!
//! The client is a few lines of our own and not the driver, so that a test of the driver does not depend on
//! the driver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::WallClock;
use crate::process::Program;
use crate::wait::{DEADLINE, eventually_blocking};

/// Settings with which every acknowledged write survives a kill.
const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// Settings that make loading slow, with replies during loading.
const SLOW_LOADING: [&str; 4] =
    ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"];
/// Enough keys for half a minute of slow loading.
const FILL: &str = "for i = 1, 60000 do redis.call('SET', 'fill:' .. i, 'x') end";

/// The short read time-out, for callers that retry.
const SOON: Duration = Duration::from_secs(1);

/// A Redis server of one test, without persistence by default. It is killed when dropped.
pub struct RedisServer {
    /// In a mutex, because only one thread may read its output.
    program: Mutex<Program>,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
    clock: Option<WallClock>,
}

impl RedisServer {
    /// Starts a server, and waits until it replies.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, or it does not reply in time.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments of its command line: `["--maxmemory", "2mb"]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in(crate::servers::data_dir(), args, None, free_port)
    }

    /// Starts a server that persists every write before it replies: it keeps its data over a
    /// [`restart`](Self::restart).
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_persistent() -> Self {
        Self::start_with(&PERSISTENT)
    }

    /// Starts a server whose wall clock can be set, see [`clock`](Self::clock).
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start), or if there is no `faketime`.
    pub fn start_with_clock(args: &[&str]) -> Self {
        let dir = crate::servers::data_dir();
        let clock = WallClock::at(&dir.path().join("clock"));
        Self::start_in(dir, args, Some(clock), free_port)
    }

    /// Starts a node of a cluster, optionally with its own clock.
    pub(super) fn start_node(args: &[&str], has_clock: bool) -> Self {
        let dir = crate::servers::data_dir();
        let clock = has_clock.then(|| WallClock::at(&dir.path().join("clock")));
        Self::start_in(dir, args, clock, free_port_of_node)
    }

    /// Starts a replica of this server, and waits until it acknowledges writes.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_replica(&self) -> Self {
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &self.port.to_string()]);
        let mut client = replica.client();
        eventually_blocking("the replica to be connected", || {
            let info = client.text(&["INFO", "replication"]).unwrap_or_default();
            info.contains("master_link_status:up")
        });
        self.wait_for_replicas("probe");
        replica
    }

    /// Waits until all replicas of this server have acknowledged a write of the key `name`, which is gone
    /// afterwards. That may be a second after a replica says that it is connected.
    pub(super) fn wait_for_replicas(&self, name: &str) {
        let mut client = self.client();
        eventually_blocking("replicas to acknowledge a write", || {
            let info = client.text(&["INFO", "replication"]).unwrap_or_default();
            let count = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
            let count = count.unwrap_or_default().trim();
            client.command(&["SET", name, "1"]);
            client.command(&["DEL", name]);
            count != "0"
                && client.command(&["WAIT", count, "100"])
                    == Reply::Int(count.parse().unwrap_or(-1))
        });
    }

    fn start_in(
        dir: TempDir,
        args: &[&str],
        clock: Option<WallClock>,
        free_port: fn() -> u16,
    ) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).into()).collect();
        // Another process may take the port between our check and the server's bind.
        for _ in 0..10 {
            let port = free_port();
            let mut program = launch(&dir, port, &args, clock.as_ref());
            if is_up(&mut program, port) {
                return RedisServer { program: Mutex::new(program), port, args, dir, clock };
            }
        }
        panic!("redis-server ended at once, ten times; its arguments: {args:?}");
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The working directory of the server.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.program().pid()
    }

    /// A connection for raw commands.
    ///
    /// # Panics
    ///
    /// If the server does not accept it.
    pub fn client(&self) -> RedisClient {
        self.try_client().expect("the server accepts connections")
    }

    /// A connection for raw commands, to a server that may be down.
    ///
    /// # Errors
    ///
    /// If the server does not accept it.
    pub fn try_client(&self) -> std::io::Result<RedisClient> {
        RedisClient::connect(self.port)
    }

    /// Pauses the server (`SIGSTOP`): connections stay open, without replies.
    pub fn pause(&self) {
        self.program().stop();
    }

    /// Continues the server (`SIGCONT`).
    pub fn go_on(&self) {
        self.program().go_on();
    }

    /// Kills the server (`SIGKILL`).
    pub fn kill(&self) {
        self.program().kill();
    }

    /// Kills the server and starts it again on the same port: without its data, unless it is
    /// [persistent](Self::start_persistent).
    ///
    /// # Panics
    ///
    /// If it does not reply in time.
    pub fn restart(&self) {
        let mut program = self.program();
        program.kill();
        eventually_blocking("the server to be up again", || {
            *program = launch(&self.dir, self.port, &self.args, self.clock.as_ref());
            is_up(&mut program, self.port)
        });
    }

    /// Kills the server, deletes its append-only files, and starts it again.
    ///
    /// # Panics
    ///
    /// If the files cannot be removed, or the server does not reply in time.
    pub fn restart_empty(&self) {
        self.kill();
        let files = self.dir.path().join("appendonlydir");
        if files.exists() {
            std::fs::remove_dir_all(files).expect("its files can be removed");
        }
        self.restart();
    }

    /// Fills the server, saves, and starts it again so that it replies `LOADING` for half a minute, or until
    /// [`end_loading`](Self::end_loading).
    ///
    /// # Panics
    ///
    /// If it does not reply `LOADING` in time.
    pub fn restart_loading(&self) {
        let mut client = self.client();
        client.command(&["EVAL", FILL, "0"]);
        client.command(&["SAVE"]);
        let mut program = self.program();
        program.kill();
        let slow = SLOW_LOADING.map(String::from);
        let args = [self.args.as_slice(), &slow].concat();
        *program = launch(&self.dir, self.port, &args, self.clock.as_ref());
        eventually_blocking("the server to be loading", || self.is_loading());
    }

    /// Makes it load the rest at full speed, and waits until it has loaded.
    ///
    /// # Panics
    ///
    /// If it does not reply.
    pub fn end_loading(&self) {
        self.client().command(&["CONFIG", "SET", "key-load-delay", "0"]);
        eventually_blocking("the server to have loaded", || !self.is_loading());
    }

    fn is_loading(&self) -> bool {
        let asked = RedisClient::connect(self.port).and_then(|mut client| client.ask(&["PING"]));
        matches!(asked, Ok(Reply::Error(error)) if error.starts_with("LOADING"))
    }

    /// The wall clock of the server.
    ///
    /// # Panics
    ///
    /// If the server was not [started with one](Self::start_with_clock).
    pub fn clock(&self) -> &WallClock {
        self.clock.as_ref().expect("a server that was started with a clock")
    }

    fn program(&self) -> MutexGuard<'_, Program> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A free port. Each port is used once in a process, so that two concurrent tests never share a server, and a
/// port stays closed after its server has ended. All ports are below 20,000: above are the bus ports of
/// cluster nodes, and the ports that the kernel assigns to connections and proxies.
pub(super) fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(997);
    let next = || 10_000 + first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % 10_000;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports = std::iter::repeat_with(|| next() as u16);
    ports.take(10_000).find(is_free).expect("a free port")
}

/// A free port for a node of a cluster. The nodes connect to each other on the port 10,000 above it; only
/// version 7 and later can use another.
fn free_port_of_node() -> u16 {
    let is_free = |bus| TcpListener::bind(("127.0.0.1", bus)).is_ok();
    let ports = std::iter::repeat_with(free_port);
    let has_bus = |port: &u16| port.checked_add(10_000).is_some_and(is_free);
    ports.take(1_000).find(has_bus).expect("two free ports")
}

fn launch(dir: &TempDir, port: u16, args: &[String], clock: Option<&WallClock>) -> Program {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "no `redis-server` found: `cargo xtask test` installs it");
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.arg("--dir").arg(dir.path()).args(args);
    if let Some(clock) = clock {
        clock.drive(&mut command);
    }
    Program::spawn(&mut command)
}

/// Whether the server replies; `false` if it has ended. The port must be its own: otherwise the server of
/// another test that took the port first would reply.
pub(super) fn is_up(program: &mut Program, port: u16) -> bool {
    let mut ended = false;
    eventually_blocking("redis-server to answer", || {
        ended = !program.is_running();
        let is_answered =
            || RedisClient::connect(port).is_ok_and(|mut client| client.is_answered());
        ended || program.listens_on(port) && is_answered()
    });
    !ended
}

/// A connection that sends commands one by one.
pub struct RedisClient {
    stream: BufReader<TcpStream>,
}

/// The reply of a server (RESP2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Null.
    Nil,
    /// A number.
    Int(i64),
    /// A string, or a status.
    Text(String),
    /// An array.
    Many(Vec<Reply>),
    /// An error.
    Error(String),
}

impl RedisClient {
    pub(super) fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(RedisClient { stream: BufReader::new(stream) })
    }

    /// Sets a short read time-out.
    pub(crate) fn soon(self) -> std::io::Result<Self> {
        self.stream.get_ref().set_read_timeout(Some(SOON))?;
        Ok(self)
    }

    fn is_answered(&mut self) -> bool {
        let _ = self.stream.get_ref().set_read_timeout(Some(SOON));
        // A server that requires a password is up too.
        self.ask(&["PING"]).is_ok_and(|reply| match reply {
            Reply::Text(text) => text == "PONG",
            Reply::Error(error) => error.starts_with("NOAUTH"),
            _ => false,
        })
    }

    /// Sends `words` and waits for the reply.
    ///
    /// # Panics
    ///
    /// If no reply comes.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Reply {
        match self.ask(words) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply to {words:?}: {error}"),
        }
    }

    /// Sends `words` and returns the reply as text; `None` if it is null.
    ///
    /// # Panics
    ///
    /// If the reply is an error or an array, or no reply comes.
    #[track_caller]
    pub fn text(&mut self, words: &[&str]) -> Option<String> {
        match self.command(words) {
            Reply::Nil => None,
            Reply::Int(number) => Some(number.to_string()),
            Reply::Text(text) => Some(text),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    /// Sends `words` to a server that may not reply.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or the reply does not come.
    pub fn try_command(&mut self, words: &[&str]) -> std::io::Result<Reply> {
        self.ask(words)
    }

    fn ask(&mut self, words: &[&str]) -> std::io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> std::io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        let Some(kind) = line.chars().next() else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        let rest = &line[1..];
        match (kind, rest.parse::<i64>().unwrap_or(0)) {
            ('+', _) => Ok(Reply::Text(rest.into())),
            ('-', _) => Ok(Reply::Error(rest.into())),
            (':', number) => Ok(Reply::Int(number)),
            (_, -1) => Ok(Reply::Nil),
            ('$', length) => self.bulk(length),
            (_, count) => {
                (0..count).map(|_| self.reply()).collect::<Result<_, _>>().map(Reply::Many)
            }
        }
    }

    fn bulk(&mut self, length: i64) -> std::io::Result<Reply> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0) + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(bytes.len() - 2);
        Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server is up when `start` returns, loses its data by a restart, and ends when dropped.
    #[test]
    fn start_restart_drop() {
        let server = RedisServer::start();
        let mut client = server.client();
        assert_eq!(client.text(&["SET", "a", "1"]), Some("OK".into()));
        assert_eq!(client.command(&["GET", "a"]), Reply::Text("1".into()));
        server.restart();
        assert_eq!(server.client().command(&["GET", "a"]), Reply::Nil);
        let port = server.port();
        drop(server);
        assert!(RedisClient::connect(port).is_err());
    }

    /// A server whose port was taken by another one is not up, however soon the other one replies. (Two tests
    /// once shared a server, and one found the locks of the other.)
    #[test]
    fn a_port_that_another_took() {
        let first = RedisServer::start();
        let mut second = launch(&crate::servers::data_dir(), first.port(), &[], None);
        assert!(!is_up(&mut second, first.port()));
    }

    /// Arguments reach the server, and a paused server continues.
    #[test]
    fn arguments_and_pause() {
        let server = RedisServer::start_with(&["--maxmemory", "3mb"]);
        server.pause();
        server.go_on();
        let got = server.client().command(&["CONFIG", "GET", "maxmemory"]);
        assert_eq!(
            got,
            Reply::Many(vec![Reply::Text("maxmemory".into()), Reply::Text("3145728".into())])
        );
    }

    /// A persistent server restarts with all acknowledged writes, unless its files are deleted too, and a
    /// replica has its master's data.
    #[test]
    fn persistence_and_replica() {
        let server = RedisServer::start_persistent();
        server.client().command(&["SET", "a", "1"]);
        server.restart();
        let replica = server.start_replica();
        let mut client = replica.client();
        assert_eq!(client.text(&["GET", "a"]).as_deref(), Some("1"));
        let refused = client.command(&["SET", "a", "2"]);
        assert!(matches!(refused, Reply::Error(error) if error.starts_with("READONLY")));
        server.restart_empty();
        assert_eq!(server.client().text(&["GET", "a"]), None);
    }

    /// The clock of a server can be set while it runs, and keys expire by it.
    #[test]
    fn a_clock_that_is_set() {
        let server = RedisServer::start_with_clock(&[]);
        let mut client = server.client();
        client.command(&["SET", "a", "1", "PX", "50000"]);
        server.clock().set("+60s");
        assert_eq!(client.text(&["GET", "a"]), None);
        let time = |client: &mut RedisClient| match client.command(&["TIME"]) {
            Reply::Many(fields) => fields[0].clone(),
            other => panic!("{other:?}"),
        };
        let ahead = time(&mut client);
        server.restart();
        assert!(format!("{:?}", time(&mut server.client())) >= format!("{ahead:?}"));
        server.clock().set("-60s");
        assert!(format!("{:?}", time(&mut server.client())) < format!("{ahead:?}"));
    }

    /// A loading server reports it, and has its data afterwards.
    #[test]
    fn loading() {
        let server = RedisServer::start();
        server.client().command(&["SET", "a", "1"]);
        server.restart_loading();
        let refused = server.client().command(&["GET", "a"]);
        assert!(matches!(refused, Reply::Error(error) if error.starts_with("LOADING")));
        server.end_loading();
        assert_eq!(server.client().text(&["GET", "a"]).as_deref(), Some("1"));
    }
}

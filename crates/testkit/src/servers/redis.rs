//! A `redis-server` process, and a client that speaks to it in plain words.
//!
//! The client is our own few lines and not the driver, so that a test of the driver's traps does
//! not look through the driver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::Program;
use crate::wait::{DEADLINE, eventually_blocking};

/// A Redis server of a test's own, without persistence. Killed when dropped.
pub struct RedisServer {
    /// In a mutex to be shared: what it prints is read by one.
    program: Mutex<Program>,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts one, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, or it does not answer in time.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more arguments, as on its command line: `["--maxmemory", "2mb"]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let args: Vec<String> = args.iter().map(|arg| (*arg).into()).collect();
        // Another process may take the port between our looking and the server's binding.
        for _ in 0..10 {
            let port = free_port();
            let mut program = launch(&dir, port, &args);
            if is_up(&mut program, port) {
                return RedisServer { program: Mutex::new(program), port, args, dir };
            }
        }
        panic!("redis-server ended at once, ten times; its arguments: {args:?}");
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The directory that it runs in.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// A connection for raw commands.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.port).expect("the server accepts connections")
    }

    /// Stops it in its tracks (`SIGSTOP`): connections stay, nothing is answered.
    pub fn pause(&self) {
        self.program().stop();
    }

    /// Lets it go on (`SIGCONT`).
    pub fn go_on(&self) {
        self.program().go_on();
    }

    /// Ends it without giving it a say (`SIGKILL`).
    pub fn kill(&self) {
        self.program().kill();
    }

    /// Starts it again on the same port, with nothing of what it knew.
    ///
    /// # Panics
    ///
    /// If it does not answer in time.
    pub fn restart(&self) {
        let mut program = self.program();
        program.kill();
        eventually_blocking("the server to be up again", || {
            *program = launch(&self.dir, self.port, &self.args);
            is_up(&mut program, self.port)
        });
    }

    fn program(&self) -> MutexGuard<'_, Program> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

fn launch(dir: &TempDir, port: u16, args: &[String]) -> Program {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "no `redis-server` found: `cargo xtask test` installs it");
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
    command.arg("--dir").arg(dir.path()).args(args);
    Program::spawn(&mut command)
}

/// Whether it answers; `false` if it has ended.
fn is_up(program: &mut Program, port: u16) -> bool {
    let mut ended = false;
    eventually_blocking("redis-server to answer", || {
        ended = !program.is_running();
        ended || RedisClient::connect(port).is_ok_and(|mut client| client.is_answered())
    });
    !ended
}

/// A connection on which commands are sent one by one.
pub struct RedisClient {
    stream: BufReader<TcpStream>,
}

/// What a server replies (RESP2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Int(i64),
    /// A string, or a status.
    Text(String),
    /// Several.
    Many(Vec<Reply>),
    /// A refusal.
    Error(String),
}

impl RedisClient {
    fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(RedisClient { stream: BufReader::new(stream) })
    }

    fn is_answered(&mut self) -> bool {
        let soon = Some(Duration::from_secs(1));
        let _ = self.stream.get_ref().set_read_timeout(soon);
        // A server that wants a password answers too.
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
    /// If none comes.
    #[track_caller]
    pub fn command(&mut self, words: &[&str]) -> Reply {
        match self.ask(words) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply to {words:?}: {error}"),
        }
    }

    /// Sends `words` and gives the reply as text; `None` if it is nil.
    ///
    /// # Panics
    ///
    /// If the reply is an error or a list, or none comes.
    #[track_caller]
    pub fn text(&mut self, words: &[&str]) -> Option<String> {
        match self.command(words) {
            Reply::Nil => None,
            Reply::Int(number) => Some(number.to_string()),
            Reply::Text(text) => Some(text),
            other => panic!("{words:?}: {other:?}"),
        }
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

    /// A server is up when `start` returns, forgets all by a restart, and is gone when dropped.
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

    /// Arguments reach the server, and a stopped one goes on where it was.
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
}

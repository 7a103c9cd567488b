//! Shared by these tests: a server, clients of it, and claims below the engine.

use std::error::Error as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant};
use tenure_core::{Claim, ClaimOptions, Error, Key, Lease, Locker, Token};
use tenure_redis::Redis;
use tenure_testkit::servers::proxy::Proxy;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::DEADLINE;

/// Short, so that a test of a time-out does not take long.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

/// What a slow machine may add to an event that is on time. Less than a second, because a delay of a second
/// is an error.
pub(crate) const SLACK: Duration = Duration::from_millis(700);

/// The queue of the lock `k`, and its heartbeats.
pub(crate) const QUEUE: &str = "tenure:queue:k";
pub(crate) const BEATS: &str = "tenure:beat:k";

/// A client with short time-outs.
pub(crate) async fn redis(server: &RedisServer) -> Redis {
    redis_at(&server.url()).await
}

/// A locker with a client of its own, as in another process.
pub(crate) async fn locker(server: &RedisServer) -> Locker {
    Locker::new(redis(server).await)
}

/// A claim on `key` for `ttl`.
pub(crate) fn claim(key: &str, ttl: Duration) -> Arc<Claim> {
    let terms = ClaimOptions::new(ttl).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// Tries to acquire once, and panics unless the claim is granted.
pub(crate) async fn granted(store: &Redis, claim: &Arc<Claim>) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(holder) => panic!("held by {holder}"),
    }
}

/// A lease on `key`.
pub(crate) async fn lease(store: &Redis, key: &str, ttl: Duration) -> Arc<Lease> {
    let claim = claim(key, ttl);
    let grant = granted(store, &claim).await;
    Arc::new(Lease::new(claim, grant, store.clock()))
}

/// An error with all its causes, as a reader would see it.
pub(crate) fn whole(error: &Error) -> String {
    let mut text = format!("{error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The value of `key` on the server.
pub(crate) fn get(server: &RedisServer, key: &str) -> Option<String> {
    server.client().text(&["GET", key])
}

/// The entries of the queue of `k` in order, as `scripts/queue.lua` describes them.
pub(crate) fn entries(server: &RedisServer) -> Vec<String> {
    sorted(server, QUEUE)
}

/// The members of the sorted set `key`.
pub(crate) fn sorted(server: &RedisServer, key: &str) -> Vec<String> {
    let Reply::Many(entries) = server.client().command(&["ZRANGE", key, "0", "-1"]) else {
        return Vec::new();
    };
    let text = |entry| match entry {
        Reply::Text(entry) => entry,
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(text).collect()
}

/// The entry of a claim in the queue of `k`.
pub(crate) fn entry(server: &RedisServer, claim: &Claim) -> Option<String> {
    entries(server).into_iter().find(|entry| entry.starts_with(&claim.token().expose()))
}

/// How a waiter of `k` is notified: `push` or `poll`; empty if it is not in the queue.
pub(crate) fn kind(server: &RedisServer, claim: &Claim) -> String {
    let beat = server.client().text(&["HGET", BEATS, &claim.token().expose()]);
    match (entry(server, claim), beat) {
        (None, _) => String::new(),
        // It has just queued: a waiter that polls would have left a heartbeat that says so.
        (Some(_), None) => "push".into(),
        (Some(_), Some(beat)) => beat.split(' ').nth(1).unwrap_or_default().into(),
    }
}

/// How many keys the server has.
pub(crate) fn size(server: &RedisServer) -> i64 {
    match server.client().command(&["DBSIZE"]) {
        Reply::Int(size) => size,
        other => panic!("{other:?}"),
    }
}

/// The remaining ttl of `key`, in milliseconds.
pub(crate) fn pttl(server: &RedisServer, key: &str) -> i64 {
    match server.client().command(&["PTTL", key]) {
        Reply::Int(left) => left,
        other => panic!("{other:?}"),
    }
}

/// The connections to the server, by id and address, without those of the test itself, which use version 2 of
/// the protocol.
pub(crate) fn client_list(server: &RedisServer) -> Vec<(String, String)> {
    let list = server.client().text(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
    };
    let ours = list.lines().filter(|line| field(line, "resp").as_deref() == Some("3"));
    ours.filter_map(|line| Some((field(line, "id")?, field(line, "addr")?))).collect()
}

/// The number of connections in [`client_list`].
pub(crate) fn clients(server: &RedisServer) -> usize {
    client_list(server).len()
}

/// A server behind a proxy.
pub(crate) fn proxied() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    (server, proxy)
}

/// A locker with a client of its own that connects through the proxy, with short time-outs.
pub(crate) async fn locker_through(proxy: &Proxy) -> Locker {
    Locker::new(redis_at(&proxy.url()).await)
}

/// A client of the server at `url`, with short time-outs.
pub(crate) async fn redis_at(url: &str) -> Redis {
    let builder = Redis::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    builder.connect().await.expect("the server can be used")
}

/// How many scripts the server was asked to run.
pub(crate) fn requests(server: &RedisServer) -> u64 {
    let info = server.client().text(&["INFO", "commandstats"]).unwrap();
    let calls = |line: &str| -> Option<u64> {
        let line = line.strip_prefix("cmdstat_eval")?;
        line.split_once("calls=")?.1.split(',').next()?.parse().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// How often the server ran a command, also inside of scripts.
pub(crate) fn calls(server: &RedisServer, command: &str) -> usize {
    let stats = server.client().text(&["INFO", "commandstats"]).unwrap();
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

/// Receives every command that the server runs. Those of a script are sent by `lua`.
pub(crate) struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub(crate) fn of(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// The commands until now.
    pub(crate) fn commands(mut self, server: &RedisServer) -> Vec<String> {
        server.client().command(&["ECHO", "finis"]);
        let mut commands = Vec::new();
        loop {
            match self.line() {
                line if line.ends_with("\"finis\"") => return commands,
                line => commands.push(line),
            }
        }
    }
}

/// Waits until the lock of `key` is gone from the server.
pub(crate) async fn is_freed(server: &RedisServer, key: &str) {
    let lock = format!("tenure:lock:{key}");
    let gone = || async { get(server, &lock).is_none() };
    tenure_testkit::wait::eventually("the lock to be gone from the server", gone).await;
}

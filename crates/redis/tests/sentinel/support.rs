//! What these tests share: clients of a set, and what its servers keep.

use std::error::Error as _;
use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply, SentinelSet};
use tenure_testkit::wait::{DEADLINE, eventually_blocking};

/// Short, so that a silent server is found out soon.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
/// Neither the end nor the next renewal of such a lease, a third of it later, comes before a test gives up
/// waiting: what is seen has another cause.
pub(crate) const LONG: Duration = Duration::from_secs(120);
const _: () = assert!(LONG.as_secs() / 3 > DEADLINE.as_secs());

/// A client of whatever is at `url`, with short time-outs.
pub(crate) async fn redis_at(url: &str) -> Result<Redis, Error> {
    Redis::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT).connect().await
}

/// A process of its own.
pub(crate) async fn locker_at(url: &str) -> Locker {
    Locker::new(redis_at(url).await.expect("the master can be used"))
}

/// Asks until there is an answer: a Sentinel that changes what a server is cuts all its clients.
pub(crate) fn ask(server: &RedisServer, words: &[&str]) -> Reply {
    let mut reply = None;
    eventually_blocking("an answer of the server", || {
        reply = server.try_client().and_then(|mut client| client.try_command(words)).ok();
        reply.is_some()
    });
    reply.expect("waited for above")
}

fn text(server: &RedisServer, words: &[&str]) -> String {
    match ask(server, words) {
        Reply::Text(text) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// What the server keeps for the lock `key`.
pub(crate) fn lock(server: &RedisServer, key: &str) -> Option<String> {
    match ask(server, &["GET", &format!("tenure:lock:{key}")]) {
        Reply::Text(value) => Some(value),
        _ => None,
    }
}

/// How many wait for `key` on the server.
pub(crate) fn waiters(server: &RedisServer, key: &str) -> i64 {
    match ask(server, &["ZCARD", &format!("tenure:queue:{key}")]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

/// What the server says of itself in this section.
pub(crate) fn info(server: &RedisServer, section: &str) -> String {
    text(server, &["INFO", section])
}

/// Whether the server takes itself for one.
pub(crate) fn is_master(server: &RedisServer) -> bool {
    info(server, "replication").contains("role:master")
}

/// How often the server was sent a command, also by scripts.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let (info, start) =
        (text(server, &["INFO", "commandstats"]), format!("cmdstat_{command}:calls="));
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// How many connections of ours the server has: those of the tests and of the Sentinels speak the
/// protocol's second version.
pub(crate) fn clients(server: &RedisServer) -> usize {
    let list = text(server, &["CLIENT", "LIST"]);
    list.lines().filter(|line| line.contains(" resp=3")).count()
}

/// Cuts the replicas off, so that nothing which is written from now on reaches them. They can still be
/// promoted.
pub(crate) fn cut_off_replicas(set: &SentinelSet) {
    let master = set.master();
    for node in set.nodes().iter().filter(|node| node.port() != master.port()) {
        ask(node, &["CONFIG", "SET", "masterauth", "wrong"]);
    }
    eventually_blocking("the replicas to be cut off", || {
        ask(master, &["CLIENT", "KILL", "TYPE", "replica"]);
        text(master, &["INFO", "replication"]).contains("connected_slaves:0")
    });
}

/// Lets the replicas follow again.
pub(crate) fn let_replicas_in(set: &SentinelSet) {
    let master = set.master();
    for node in set.nodes().iter().filter(|node| node.port() != master.port()) {
        ask(node, &["CONFIG", "SET", "masterauth", ""]);
    }
    eventually_blocking("the replicas to be back", || {
        let info = text(master, &["INFO", "replication"]);
        info.matches("state=online").count() == set.nodes().len() - 1
    });
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

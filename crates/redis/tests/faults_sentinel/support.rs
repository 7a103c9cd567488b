//! Shared by these tests: clients of a set of servers, and queries about its servers.

use std::error::Error as _;
use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply, SentinelSet};
use tenure_testkit::wait::{DEADLINE, eventually_blocking};

/// Short, so that a silent server is detected soon.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
/// So long that neither the expiry nor the first renewal, after a third of it, comes before a test stops
/// waiting: an observed event has another cause.
pub(crate) const LONG: Duration = Duration::from_secs(120);
const _: () = assert!(LONG.as_secs() / 3 > DEADLINE.as_secs());

/// A client for `url`, with short time-outs.
pub(crate) async fn redis_at(url: &str) -> Result<Redis, Error> {
    Redis::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT).connect().await
}

/// A locker with a client of its own, as in another process.
pub(crate) async fn locker_at(url: &str) -> Locker {
    Locker::new(redis_at(url).await.expect("the master can be used"))
}

/// Repeats a command until there is a reply: a Sentinel that changes the role of a server disconnects its clients.
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

/// The value of the lock `key` on the server.
pub(crate) fn lock(server: &RedisServer, key: &str) -> Option<String> {
    match ask(server, &["GET", &format!("tenure:lock:{key}")]) {
        Reply::Text(value) => Some(value),
        _ => None,
    }
}

/// The number of waiters for `key` on the server.
pub(crate) fn waiters(server: &RedisServer, key: &str) -> i64 {
    match ask(server, &["ZCARD", &format!("tenure:queue:{key}")]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

/// A section of the server's `INFO`.
pub(crate) fn info(server: &RedisServer, section: &str) -> String {
    text(server, &["INFO", section])
}

/// Whether the server considers itself a master.
pub(crate) fn is_master(server: &RedisServer) -> bool {
    info(server, "replication").contains("role:master")
}

/// How often the server executed a command, also from scripts.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let (info, start) =
        (text(server, &["INFO", "commandstats"]), format!("cmdstat_{command}:calls="));
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// The number of our connections to the server. Those of the tests and of the Sentinels use version 2 of the protocol.
pub(crate) fn clients(server: &RedisServer) -> usize {
    let list = text(server, &["CLIENT", "LIST"]);
    list.lines().filter(|line| line.contains(" resp=3")).count()
}

/// Disconnects the replicas, so that no later write reaches them. They can still be promoted.
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

//! Shared by these tests: clients of a cluster, and queries about its nodes.

use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_redis::Cluster;
use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{DEADLINE, eventually_blocking};

/// Short, so that a silent node is detected soon.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
/// So long that neither the expiry nor the first renewal, after a third of it, comes before a test stops
/// waiting: an observed event has another cause.
pub(crate) const LONG: Duration = Duration::from_secs(120);
const _: () = assert!(LONG.as_secs() / 3 > DEADLINE.as_secs());

/// A client for `url`, with short time-outs.
pub(crate) async fn cluster_at(url: &str) -> Result<Cluster, Error> {
    Cluster::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT).cluster().await
}

/// A locker with a client of its own, as in another process.
pub(crate) async fn locker_at(url: &str) -> Locker {
    Locker::new(cluster_at(url).await.expect("the cluster can be used"))
}

/// Repeats a command until there is a reply: a node that changes its role may disconnect its clients.
pub(crate) fn ask(server: &RedisServer, words: &[&str]) -> Reply {
    let mut reply = None;
    eventually_blocking("an answer of the node", || {
        reply = server.try_client().and_then(|mut client| client.try_command(words)).ok();
        reply.is_some()
    });
    reply.expect("waited for above")
}

/// The key of the lock `key`.
pub(crate) fn lock_key(key: &str) -> String {
    format!("tenure:lock:{key}")
}

/// The slot of the lock `key`.
pub(crate) fn slot(cluster: &RedisCluster, key: &str) -> u16 {
    cluster.slot_of(&lock_key(key))
}

/// The node that has the lock `key`.
pub(crate) fn home<'a>(cluster: &'a RedisCluster, key: &str) -> &'a RedisServer {
    cluster.owner(slot(cluster, key))
}

/// A master other than that of the lock `key`.
pub(crate) fn other<'a>(cluster: &'a RedisCluster, key: &str) -> &'a RedisServer {
    let home = home(cluster, key).port();
    cluster.masters().into_iter().find(|node| node.port() != home).expect("three masters")
}

/// The value of the lock `key` on `node`.
pub(crate) fn lock(node: &RedisServer, key: &str) -> Option<String> {
    match ask(node, &["GET", &lock_key(key)]) {
        Reply::Text(value) => Some(value),
        _ => None,
    }
}

/// All keys of `node`.
pub(crate) fn keys(node: &RedisServer) -> Vec<String> {
    let Reply::Many(keys) = ask(node, &["KEYS", "*"]) else { return Vec::new() };
    let text = |key| match key {
        Reply::Text(key) => Some(key),
        _ => None,
    };
    keys.into_iter().filter_map(text).collect()
}

/// How the waiters for the lock `key` at `node` are notified: `push` or `poll`.
pub(crate) fn waiters(node: &RedisServer, key: &str) -> Vec<String> {
    let (start, end) = ("tenure:beat:{", format!("}}:{key}"));
    let ours = |name: &&String| name.starts_with(start) && name.ends_with(&end);
    let Some(beats) = keys(node).iter().find(ours).cloned() else { return Vec::new() };
    let Reply::Many(beats) = ask(node, &["HVALS", &beats]) else { return Vec::new() };
    let how = |beat: &Reply| match beat {
        Reply::Text(beat) => beat.split(' ').nth(1).map(Into::into),
        _ => None,
    };
    beats.iter().filter_map(how).collect()
}

/// Whether one claim waits at `node` for the lock `key`, in the mode of the server's version: before 7 there
/// are no sharded channels, and waiters poll.
pub(crate) fn one_waits(node: &RedisServer, key: &str) -> bool {
    let channels = ask(node, &["PUBSUB", "SHARDCHANNELS"]);
    let how = if matches!(channels, Reply::Error(_)) { "poll" } else { "push" };
    waiters(node, key) == [how]
}

/// How often the node executed a command, also from scripts.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let Reply::Text(info) = ask(server, &["INFO", "commandstats"]) else { return 0 };
    let start = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

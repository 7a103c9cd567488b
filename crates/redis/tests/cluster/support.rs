//! What these tests share: clients of a cluster, and what its nodes keep.

use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_redis::Cluster;
use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{DEADLINE, eventually_blocking};

/// Short, so that a silent node is found out soon.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);
/// Neither the end nor the next renewal of such a lease, a third of it later, comes before a test gives up
/// waiting: what is seen has another cause.
pub(crate) const LONG: Duration = Duration::from_secs(120);
const _: () = assert!(LONG.as_secs() / 3 > DEADLINE.as_secs());

/// A client of whatever is at `url`, with short time-outs.
pub(crate) async fn cluster_at(url: &str) -> Result<Cluster, Error> {
    Cluster::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT).cluster().await
}

/// A process of its own.
pub(crate) async fn locker_at(url: &str) -> Locker {
    Locker::new(cluster_at(url).await.expect("the cluster can be used"))
}

/// Asks until there is an answer: a node that changes its role may cut its clients.
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

/// Another master than that of the lock `key`.
pub(crate) fn other<'a>(cluster: &'a RedisCluster, key: &str) -> &'a RedisServer {
    let home = home(cluster, key).port();
    cluster.masters().into_iter().find(|node| node.port() != home).expect("three masters")
}

/// What `node` keeps for the lock `key`.
pub(crate) fn lock(node: &RedisServer, key: &str) -> Option<String> {
    match ask(node, &["GET", &lock_key(key)]) {
        Reply::Text(value) => Some(value),
        _ => None,
    }
}

/// All keys that `node` has.
pub(crate) fn keys(node: &RedisServer) -> Vec<String> {
    let Reply::Many(keys) = ask(node, &["KEYS", "*"]) else { return Vec::new() };
    let text = |key| match key {
        Reply::Text(key) => Some(key),
        _ => None,
    };
    keys.into_iter().filter_map(text).collect()
}

/// How those who wait at `node` for the lock `key` are told: `push` or `poll`.
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

/// Whether one waits at `node` for the lock `key`, told as its version can: before 7 there are no channels
/// with slots, and who waits asks.
pub(crate) fn one_waits(node: &RedisServer, key: &str) -> bool {
    let channels = ask(node, &["PUBSUB", "SHARDCHANNELS"]);
    let how = if matches!(channels, Reply::Error(_)) { "poll" } else { "push" };
    waiters(node, key) == [how]
}

/// How often the node was sent a command, also by scripts.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let Reply::Text(info) = ask(server, &["INFO", "commandstats"]) else { return 0 };
    let start = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

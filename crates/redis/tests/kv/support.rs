//! Shared by these tests: a server, clients of it, and raw commands.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_redis::Client;
use tenure_testkit::servers::{RedisServer, Reply};

/// Short, so that a test of a time-out does not take long.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);
/// What a slow machine may add to a bound.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A value that is not a scalar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) id: u64,
    pub(crate) name: String,
}

pub(crate) fn ann() -> User {
    User { id: 1, name: "Ann".into() }
}

/// A client with short time-outs.
pub(crate) async fn client(server: &RedisServer) -> Client {
    let builder = Client::builder(&server.url());
    let builder = builder.connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    builder.client().await.expect("the server can be used")
}

/// The value on the server under the full name `key`.
pub(crate) fn raw(server: &RedisServer, key: &str) -> Option<String> {
    server.client().text(&["GET", key])
}

/// The remaining ttl of `key`, in milliseconds; -1 if it has none.
pub(crate) fn pttl(server: &RedisServer, key: &str) -> i64 {
    match server.client().command(&["PTTL", key]) {
        Reply::Int(left) => left,
        other => panic!("{other:?}"),
    }
}

/// How often the server executed this command.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let info = server.client().text(&["INFO", "commandstats"]).unwrap();
    let start = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

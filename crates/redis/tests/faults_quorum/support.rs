//! Shared by these tests: five servers, clients of them, and claims below the engine.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Locker, Token};
use tenure_redis::Quorum;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::Proxy;

/// Short, so that a test of a time-out does not take long.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

/// What a slow machine may add to an event that is on time. Less than a second, because a delay of a second
/// is an error.
pub(crate) const SLACK: Duration = Duration::from_millis(700);

/// Independent servers that no other test uses; they are stopped when this is dropped.
pub(crate) struct Nodes(pub(crate) Vec<RedisServer>);

impl Nodes {
    /// Five servers.
    pub(crate) fn start() -> Self {
        Nodes((0..5).map(|_| RedisServer::start()).collect())
    }

    /// Five servers that keep their data through a restart.
    pub(crate) fn start_persistent() -> Self {
        Nodes((0..5).map(|_| RedisServer::start_persistent()).collect())
    }

    pub(crate) fn url(&self) -> String {
        url_of(self.0.iter().map(RedisServer::port))
    }

    /// A client that trusts the votes of these servers although they have just started.
    pub(crate) async fn connect(&self) -> Quorum {
        connect(&self.url()).await
    }

    /// A locker with a client of its own, as in another process.
    pub(crate) async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    /// The value of the lock of `key` on each node.
    pub(crate) fn locks(&self, key: &str) -> Vec<Option<String>> {
        let lock = format!("tenure:lock:{key}");
        self.0.iter().map(|node| node.client().text(&["GET", &lock])).collect()
    }

    /// The number of nodes on which `key` is locked, by any claim.
    pub(crate) fn locked(&self, key: &str) -> usize {
        self.locks(key).iter().flatten().count()
    }
}

/// How often each node has executed this command, from a client or in a script.
pub(crate) fn calls(nodes: &Nodes, command: &str) -> Vec<u64> {
    let start = format!("cmdstat_{command}:calls=");
    let calls = |node: &RedisServer| {
        let said = node.client().text(&["INFO", "commandstats"]).unwrap();
        let line = said.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    nodes.0.iter().map(calls).collect()
}

/// Five nodes, and a URL that reaches the last one through a proxy. Clients made by [`Nodes`] bypass the proxy.
pub(crate) fn with_a_proxy() -> (Nodes, Proxy, String) {
    let nodes = Nodes::start();
    let proxy = Proxy::to(nodes.0[4].port());
    let ports = nodes.0[..4].iter().map(RedisServer::port).chain([proxy.port()]);
    let url = url_of(ports);
    (nodes, proxy, url)
}

pub(crate) fn url_of(ports: impl Iterator<Item = u16>) -> String {
    let hosts: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+quorum://{}", hosts.join(","))
}

pub(crate) async fn connect(url: &str) -> Quorum {
    connect_within(url, TIMEOUT).await
}

/// The same with other time-outs.
pub(crate) async fn connect_within(url: &str, timeout: Duration) -> Quorum {
    let builder = Quorum::builder(url).connect_timeout(timeout).response_timeout(timeout);
    builder.trust_restarted().quorum().await.expect("the nodes can be used")
}

/// A claim on `key` for `ttl`.
pub(crate) fn claim(key: &str, ttl: Duration) -> Arc<Claim> {
    let terms = ClaimOptions::new(ttl).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// Tries to acquire once, and panics unless the claim is granted.
pub(crate) async fn granted(store: &Quorum, claim: &Arc<Claim>) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(holder) => panic!("held by {holder}"),
    }
}

/// A lease on `key`.
pub(crate) async fn lease(store: &Quorum, key: &str, ttl: Duration) -> Arc<Lease> {
    let claim = claim(key, ttl);
    let grant = granted(store, &claim).await;
    Arc::new(Lease::new(claim, grant, store.clock()))
}

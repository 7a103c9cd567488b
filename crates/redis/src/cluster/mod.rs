//! Locks on a Redis Cluster: the backend contract, served by the node that owns a lock's slot.
//!
//! In: claims and leases from the engine. Out: the reply of that node, in the terms of the contract. Each
//! node is used like a single server, with the objects of `single/`. All keys of a lock are in one slot
//! (`wire/keys.rs`), so one node can serve it.
//!
//! In reading order: this file, `acquire`, `redirect` (which node), `release`, `renew` and `inspect`;
//! below them `topology` (a client for each node), `slot_map` (the owner of each slot), `discovery` and
//! `cluster_nodes` (what nodes report). `doctor` reports what is unsafe. The URL is parsed in
//! `url/cluster.rs`.

mod discovery;
mod doctor;
mod redirect;
mod inspect;
mod slot_map;
mod topology;
mod release;
mod renew;
mod cluster_nodes;
mod acquire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, BoxFuture, Capabilities, ClaimEnd, Fault, Grant,
    Hints, LockInfo, Notices, Operator, Query, Release, Validity,
};
use tenure_core::doctor::Finding;
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Key, Lease, Token};
use tokio::runtime::Handle;

use crate::builder::Builder;
use crate::link::FAILOVER;
use crate::single::{PING_EVERY, ReleaseLog};
use crate::url::cluster::Hosts;
use crate::wire::keys::Keys;
use topology::{NodeConfig, Nodes};

/// Locks on a Redis or Valkey Cluster.
///
/// A lock is stored on the master that owns the slot of its key, with all guarantees of
/// [`Redis`](crate::Redis) there. Failovers and slot migrations are followed. A cluster loses writes that a
/// master had not replicated when it died: then two processes may hold a lock until the first learns that it
/// has lost it, and the fence of the second is higher.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_core::Locker;
/// use tenure_redis::Cluster;
///
/// let cluster = Cluster::connect("redis-cluster://r1,r2,r3").await?;
/// let guard = Locker::new(cluster).lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    nodes: Arc<Nodes>,
    keys: Keys,
    /// Releases that may have to be repeated after another node has taken over.
    releases: ReleaseLog,
}

impl Cluster {
    /// Connects to the cluster at `url`, and checks that it can store locks.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::cluster`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).cluster().await
    }

    /// Starts a builder from `url`, for settings that a URL cannot express; [`Builder::cluster`] finishes it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Builder {
    /// Connects to the cluster of a `redis-cluster://` URL, and checks that it can store locks. One of the
    /// named nodes has to reply; the other nodes are discovered.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting,
    /// [`is_unavailable`](Error::is_unavailable) if no node can be reached, [`is_refused`](Error::is_refused)
    /// if the nodes require other credentials, [`is_unsupported`](Error::is_unsupported) if they are too old
    /// or not part of a cluster.
    pub async fn cluster(self) -> Result<Cluster, Error> {
        Clock::system().must_run()?;
        let cluster = self.cluster_later()?;
        cluster.shared.check().await?;
        Ok(cluster)
    }

    /// Like [`Builder::cluster`], but connects on the first request, on the runtime of its caller.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting.
    pub fn cluster_later(self) -> Result<Cluster, Error> {
        let hosts = Hosts::parse(self.url())?;
        let node_config = self.node_config(&hosts)?;
        let (keys, clock) = (node_config.keys.clone(), Clock::system());
        let (nodes, releases) =
            (Nodes::new(node_config, hosts.seeds, clock), ReleaseLog::default());
        Ok(Cluster { shared: Arc::new(Shared { nodes, keys, releases }) })
    }

    fn node_config(&self, hosts: &Hosts) -> Result<NodeConfig, Error> {
        let (pool_size, endpoint) = (self.validate()?, &hosts.endpoint);
        if self.prefix_name().contains(['{', '}']) {
            let shown = self.prefix_name().escape_debug();
            return Err(Error::invalid(format!(
                "invalid prefix `{shown}`: in a cluster, braces would put all locks into one slot"
            )));
        }
        let (replicas, by_name) = (self.wanted_replicas(endpoint)?, endpoint.has_tls());
        let keys = Keys::in_cluster(self.prefix_name(), self.template(endpoint)?);
        let connector = self.connector_to(endpoint)?;
        Ok(NodeConfig {
            connector,
            pool_size,
            keys,
            writer: crate::builder::writer()?,
            replicas,
            by_name,
        })
    }
}

impl Shared {
    /// Checks that the cluster can be used, on the owner of slot 0 (any slot would do).
    async fn check(&self) -> Result<(), Error> {
        let owner = self.nodes.owner(0).await.map_err(Fault::from)?;
        owner.node.client().check().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.at_owner(claim.key(), |locks| async move { locks.acquirer.try_acquire(claim).await })
            .await
    }

    async fn adopt(&self, claim: &Claim) -> Result<Option<Validity>, Fault> {
        self.at_owner(claim.key(), |locks| async move { locks.acquirer.adopt(claim).await }).await
    }

    async fn relinquish(&self, key: &Key) -> Result<(), Fault> {
        self.at_owner(key, |locks| async move { locks.releaser.relinquish(key).await }).await
    }

    /// Pings the renewal connection of every node, all at once, to detect dead connections. A node with a
    /// command connection gets a renewal connection before its first renewal: without it, a restart of the
    /// node without its data would go unnoticed.
    async fn run_once(&self) {
        self.nodes.keep_watch();
        let here = Handle::current();
        let nodes = self.nodes.all();
        join_all(nodes.iter().map(|node| -> BoxFuture<'_, ()> {
            let (renewals, commands) = (node.locks().renewals(), node.locks().commands());
            renewals.pin_to_runtime(here.clone());
            Box::pin(async {
                match renewals.current().is_none() && commands.is_connected() {
                    // The link records an error itself.
                    true => drop(renewals.live().await),
                    false => renewals.ping().await,
                }
            })
        }))
        .await;
        self.replay_releases().await;
    }
}

#[async_trait]
impl Backend for Cluster {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis");
        // Clients of other libraries poll.
        can.polling_waiters = true;
        can.reachable_within = FAILOVER;
        can.call_time = self.shared.nodes.config.connector.call_time();
        can
    }

    fn clock(&self) -> Clock {
        self.shared.nodes.clock.clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.shared.try_acquire(claim).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.shared.acquire(claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        self.shared.renew(leases, answers).await
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.shared.release(lease, then).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.shared.abandon(claim).await
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        self.shared.adopt(claim).await
    }

    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        self.shared.relinquish(lease.claim().key()).await
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        let key = lease.claim().key();
        if let Some(owner) = self.shared.nodes.owner_now(self.shared.keys.slot(key)) {
            owner.locks().contention.watch(lease);
        }
    }

    async fn run(&self) {
        // On this runtime, so that a blocked application does not delay the detection of a failover.
        self.shared.nodes.start_watcher_on_current();
        let mut changes = self.shared.nodes.changes();
        loop {
            self.shared.run_once().await;
            tokio::select! {
                () = self.shared.nodes.clock.sleep(PING_EVERY) => {}
                _ = changes.changed() => {}
            }
        }
    }

    fn subscribe(&self, _: Duration) -> Notices {
        self.shared.nodes.notifier.notices()
    }

    async fn close(&self) {
        self.shared.nodes.end_watch();
        self.shared.nodes.all().iter().for_each(|node| node.close());
    }

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for Cluster {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.shared.inspect(query).await
    }

    async fn change_hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        self.shared.hints(query).await
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        self.shared.end_reasons(ended).await
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.shared.force(key, seen, by).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.findings(ttl).await
    }
}

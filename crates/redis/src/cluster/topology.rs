//! The nodes of a cluster, with a client for each, and the map of slot owners.
//!
//! In: slots; errors at nodes, and their reports about each other (`discovery.rs`). Out: the node that owns a
//! slot now, and a notification when the owner changes.
//!
//! A node has the same links, inbox and scripts as a single server; it is identified by its address. What a
//! cluster adds is here and in `redirect.rs`.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use tenure_core::backend::{BoxFuture, Notice, Notifier};
use tenure_core::time::Clock;
use tokio::sync::{Notify, watch};

use super::cluster_nodes::View;
use super::slot_map::Map;
use crate::client::{Client, ClientOptions};
use crate::error::{Cause, EngineError, Redirect};
use crate::inbox;
use crate::link::{
    BackgroundTask, Connector, Found, RedirectTarget, Route, Server, ServerMode, Target,
};
use crate::single::{Locks, Redis};
use crate::url::Address;
use crate::wire::keys::Keys;
use crate::wire::slot::SLOTS;
use crate::wire::value::ValueWriter;

/// How nodes are reached, and our identity at them. No `Debug`: it contains the password.
pub(super) struct NodeConfig {
    pub(super) connector: Connector,
    pub(super) pool_size: NonZeroUsize,
    pub(super) keys: Keys,
    pub(super) writer: ValueWriter,
    pub(super) replicas: Option<NonZeroUsize>,
    pub(super) by_name: bool,
}

/// All known nodes.
pub(crate) struct Nodes {
    me: Weak<Nodes>,
    pub(super) config: NodeConfig,
    pub(super) clock: Clock,
    /// The nodes that the URL names.
    pub(super) seeds: Vec<Address>,
    known: RwLock<Topology>,
    /// Counts changes of slot owners; tasks that wait for a change subscribe to it.
    news: watch::Sender<u64>,
    /// Notified when nodes should be queried for the slot owners.
    pub(super) doubt: Arc<Notify>,
    /// Held by the task that queries nodes on behalf of all; `asked` counts these queries.
    pub(super) asking: tokio::sync::Mutex<()>,
    pub(super) asked: AtomicU64,
    pub(super) notifier: Notifier,
    /// The task that queries nodes regularly.
    pub(super) watch: BackgroundTask,
}

struct Topology {
    map: Map<ClusterNode>,
    /// Nodes that were sent a request, or have slots.
    nodes: HashMap<Address, Arc<ClusterNode>>,
    /// All nodes of the latest report, replicas included.
    named: Vec<Address>,
}

pub(crate) struct ClusterNode {
    address: Address,
    redis: Redis,
    client: Client,
    /// Whether the latest report called it a healthy master.
    serves: AtomicBool,
}

/// The owner of a slot, at the time of the lookup.
#[derive(Clone)]
pub(super) struct SlotOwner {
    pub(super) node: Arc<ClusterNode>,
    slot: u16,
    changes: u64,
}

/// The route to a node, for its links: the cluster is notified of errors.
struct NodeRoute {
    address: Address,
    cluster: Weak<Nodes>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl SlotOwner {
    /// How often the owner of the slot had changed at the time of the lookup.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The locks of the node.
    pub(super) fn locks(&self) -> &Arc<Locks> {
        self.node.locks()
    }
}

impl ClusterNode {
    pub(super) fn locks(&self) -> &Arc<Locks> {
        &self.redis.locks
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Closes its connections, until the next request.
    pub(super) fn close(&self) {
        self.locks().renewals().close();
        self.client.close();
    }
}

impl Route for NodeRoute {
    fn shown(&self) -> String {
        self.address.to_string()
    }

    fn find(&self) -> BoxFuture<'_, Result<Found, EngineError>> {
        Box::pin(async { Ok(Found { address: self.address.clone(), moves: 0 }) })
    }

    fn mode(&self) -> ServerMode {
        ServerMode::Cluster
    }

    fn has_stand_ins(&self) -> bool {
        true
    }

    fn note(&self, error: &EngineError) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.note(&self.address, error);
        }
    }

    fn redirect_target(&self, redirect: &Redirect) -> Option<RedirectTarget> {
        let cluster = self.cluster.upgrade()?;
        let node = cluster.node(&self.address.beside(&redirect.host, redirect.port));
        let (keys, commands) = (node.client().keys().clone(), node.client().commands().clone());
        let renewals = node.locks().renewals().clone();
        Some(RedirectTarget { keys, commands, renewals })
    }
}

impl Nodes {
    pub(super) fn new(config: NodeConfig, seeds: Vec<Address>, clock: Clock) -> Arc<Self> {
        let (nodes, named) = (HashMap::new(), Vec::new());
        let known = RwLock::new(Topology { map: Map::new(), nodes, named });
        let (doubt, asking, asked, watch) = Default::default();
        Arc::new_cyclic(|me| Nodes {
            me: me.clone(),
            config,
            clock,
            seeds,
            known,
            news: watch::Sender::new(0),
            doubt,
            asking,
            asked,
            notifier: Notifier::default(),
            watch,
        })
    }

    pub(super) fn me(&self) -> Weak<Nodes> {
        self.me.clone()
    }

    /// Notifies of every change of a slot owner.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// The owner of `slot`, without querying nodes.
    pub(super) fn owner_now(&self, slot: u16) -> Option<SlotOwner> {
        let known = self.known();
        let (node, changes) = known.map.owner(slot)?;
        Some(SlotOwner { node: node.clone(), slot, changes })
    }

    /// Whether `owner` still has its slot, and had it since the lookup.
    pub(super) fn is_at(&self, owner: &SlotOwner) -> bool {
        self.is_owner_epoch(owner.slot, owner.changes)
    }

    pub(super) fn is_owner_epoch(&self, slot: u16, changes: u64) -> bool {
        self.known().map.is_at(slot, changes)
    }

    /// Waits until `owner` has lost its slot.
    pub(super) async fn left(&self, owner: &SlotOwner) {
        let mut changes = self.changes();
        while self.is_at(owner) && changes.changed().await.is_ok() {}
    }

    /// Every node that was sent a request, or has slots.
    pub(super) fn all(&self) -> Vec<Arc<ClusterNode>> {
        self.known().nodes.values().cloned().collect()
    }

    /// The nodes that have slots.
    pub(super) fn masters(&self) -> Vec<Arc<ClusterNode>> {
        let known = self.known();
        known.nodes.values().filter(|node| known.map.has_any(node)).cloned().collect()
    }

    /// Whether a known node is no healthy master, and no other node has taken over its slots yet.
    pub(super) fn miss_any(&self) -> bool {
        self.known().nodes.values().any(|node| !node.serves.load(Ordering::Acquire))
    }

    /// The number of slots that have a healthy master.
    pub(super) fn served(&self) -> usize {
        let known = self.known();
        let serves = |slot: &u16| {
            known.map.owner(*slot).is_some_and(|(node, _)| node.serves.load(Ordering::Acquire))
        };
        (0..).take(SLOTS).filter(serves).count()
    }

    /// The nodes to query about the others.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let mut all = self.known().named.clone();
        all.extend(
            self.seeds.iter().filter(|seed| !all.contains(seed)).cloned().collect::<Vec<_>>(),
        );
        all
    }

    fn node(&self, address: &Address) -> Arc<ClusterNode> {
        if let Some(node) = self.known().nodes.get(address) {
            return node.clone();
        }
        self.make(&mut self.known_mut(), address)
    }

    fn make(&self, known: &mut Topology, address: &Address) -> Arc<ClusterNode> {
        let new = || Arc::new(self.new_node(address));
        known.nodes.entry(address.clone()).or_insert_with(new).clone()
    }

    fn new_node(&self, address: &Address) -> ClusterNode {
        let NodeConfig { connector, pool_size, keys, writer, replicas, .. } = &self.config;
        let route = NodeRoute { address: address.clone(), cluster: self.me() };
        let target = Target::new(route, connector.clone());
        let server = Server::with_notifier(target, self.clock.clone(), self.notifier.clone());
        let (keys, writer) = (keys.clone(), writer.clone());
        let (pool_size, replicas) = (*pool_size, *replicas);
        let options =
            ClientOptions { pool_size, keys, writer, debug: false, replicas, sentinels: None };
        let client = Client::new(Arc::new(server), options);
        let (redis, serves) = (Redis::with(&client), AtomicBool::new(true));
        ClusterNode { address: address.clone(), redis, client, serves }
    }

    /// Applies the report of a node. Returns whether it is older than others.
    pub(super) fn apply(&self, view: &View) -> bool {
        let mut known = self.known_mut();
        // Before the map is changed: both borrow `known`.
        let nodes: HashMap<_, _> = (view.0.iter().filter(|seen| !seen.slots.is_empty()))
            .map(|seen| (seen.address.clone(), self.make(&mut known, &seen.address)))
            .collect();
        let find = |address: &Address| nodes[address].clone();
        let update = known.map.apply(view, self.clock.now(), find);
        if !update.stale {
            known.named = view.0.iter().map(|seen| seen.address.clone()).collect();
            self.dismiss(&mut known, view);
        }
        drop(known);
        if update.changed {
            self.news.send_modify(|count| *count += 1);
        }
        update.stale
    }

    /// Records which nodes are no longer healthy masters, and closes and removes those without slots. Their
    /// data may be lost, so `Reconnected` makes the engine renew every lease at the new owners. A dead node
    /// that still has slots stays: no other node can renew its leases yet.
    fn dismiss(&self, known: &mut Topology, view: &View) {
        let serving =
            |address: &Address| view.0.iter().any(|seen| seen.serves && seen.address == *address);
        let Topology { map, nodes, .. } = known;
        nodes.retain(|address, node| {
            let serves = serving(address);
            if node.serves.swap(serves, Ordering::AcqRel) && !serves {
                tracing::info!(%address, "a node of the cluster is no master any more");
            }
            let keep = serves || map.has_any(node);
            if !keep {
                node.close();
                self.notifier.send(Notice::Reconnected);
            }
            keep
        });
    }

    /// Handles an error of the node at `address`.
    fn note(&self, address: &Address, error: &EngineError) {
        if error.has_moved() {
            let redirect = error.redirect();
            redirect.inspect(|redirect| self.redirect(address, redirect));
            return self.doubt.notify_one();
        }
        let odd = match error.cause() {
            Cause::Unreachable | Cause::Demoted | Cause::TimedOut | Cause::Disconnected => true,
            _ => error.code() == "CLUSTERDOWN",
        };
        if odd {
            self.doubt.notify_one();
        }
    }

    /// Applies a redirect, unless by our map another node than `from` owns the slot.
    fn redirect(&self, from: &Address, redirect: &Redirect) {
        let to = from.beside(&redirect.host, redirect.port);
        let mut known = self.known_mut();
        let owner = known.map.owner(redirect.slot).map(|(node, _)| &node.address);
        if owner.is_some_and(|owner| owner != from) {
            return;
        }
        let to = self.make(&mut known, &to);
        let sent = known.map.redirect(redirect.slot, &to, self.clock.now());
        drop(known);
        if sent {
            self.news.send_modify(|count| *count += 1);
        }
    }

    /// Removes the claim from the waiters of all nodes, because no request about it follows. Returns its
    /// mailbox, if it had one. If it had several, it may have left data at each node, so it has to be
    /// released with the full script.
    pub(super) fn forget(&self, token: tenure_core::Token) -> Option<Arc<inbox::Mailbox>> {
        let known = self.known();
        let mut mailboxes =
            known.nodes.values().filter_map(|node| node.locks().inbox().waiters().remove(token));
        let mailbox = mailboxes.next()?;
        if mailboxes.count() > 0 {
            mailbox.mark_full_script();
        }
        Some(mailbox)
    }

    pub(super) fn end_watch(&self) {
        self.watch.end();
    }

    fn known(&self) -> RwLockReadGuard<'_, Topology> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Topology> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The nodes of a cluster: a client for each that is asked anything, and who has which slot.
//!
//! In: slots; what goes wrong at nodes, and what they say of each other (`ask.rs`). Out: the node that
//! has a slot now, and word when it has it no more.
//!
//! A node's links, its inbox and its scripts are those of a server that stands alone; it is known by
//! its address. What a cluster adds is here and in `hops.rs`.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use redis::{Cmd, Value};
use tenure_core::backend::Notice;
use tenure_core::time::Clock;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;

use super::map::Map;
use super::slot::SLOTS;
use super::view::View;
use crate::backend::{Redis, Shared};
use crate::client::Client;
use crate::inbox;
use crate::keys::Keys;
use crate::link::{Dial, Link, Route, Server, Target, Way};
use crate::trouble::{Cause, Redirect, Trouble};
use crate::url::Address;
use crate::value::Author;

/// How nodes are reached, and who we are on them. No `Debug`: it knows the password.
pub(super) struct Kit {
    pub(super) dial: Dial,
    pub(super) pool_size: NonZeroUsize,
    pub(super) keys: Keys,
    pub(super) author: Author,
    pub(super) replicas: Option<NonZeroUsize>,
    pub(super) by_name: bool,
}

/// All nodes, as far as they are known.
pub(crate) struct Nodes {
    me: Weak<Nodes>,
    pub(super) kit: Kit,
    pub(super) clock: Clock,
    /// Those that the URL names.
    pub(super) seeds: Vec<Address>,
    known: RwLock<Known>,
    /// Counts changes of owners, for those who wait for one.
    news: watch::Sender<u64>,
    /// Rings when nodes are to be asked who has what.
    pub(super) doubt: Arc<Notify>,
    /// Held by whoever asks on behalf of all; counts how often that was done.
    pub(super) asking: tokio::sync::Mutex<()>,
    pub(super) asked: AtomicU64,
    notices: broadcast::Sender<Notice>,
    /// The task that asks now and then.
    pub(super) watch: Mutex<Option<AbortHandle>>,
}

struct Known {
    map: Map<Node>,
    /// Those that were asked anything, or have slots.
    nodes: HashMap<Address, Arc<Node>>,
    /// All that anybody named, replicas too.
    named: Vec<Address>,
}

/// One node.
pub(crate) struct Node {
    address: Address,
    redis: Redis,
    client: Client,
    /// Whether it was a master in good health when others were last asked.
    serves: AtomicBool,
}

/// The node that had a slot when it was looked for.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) node: Arc<Node>,
    slot: u16,
    changes: u64,
}

/// Where a node is, for its links.
pub(crate) struct Spot {
    address: Address,
    cluster: Weak<Nodes>,
}

/// A node that we were sent to.
pub(crate) struct Elsewhere {
    keeper: Arc<Shared>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.end_watch();
    }
}

impl Owner {
    /// How often the slot had had another.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// What locks are kept by.
    pub(super) fn keeper(&self) -> &Arc<Shared> {
        self.node.keeper()
    }
}

impl Node {
    pub(super) fn keeper(&self) -> &Arc<Shared> {
        &self.redis.shared
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Lets go of its connections, until somebody asks for something again.
    pub(super) fn close(&self) {
        self.keeper().renewals.close();
        self.client.close();
    }
}

impl Spot {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn note(&self, trouble: &Trouble) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.note(&self.address, trouble);
        }
    }

    pub(crate) fn elsewhere(&self, redirect: &Redirect) -> Option<Elsewhere> {
        let cluster = self.cluster.upgrade()?;
        let node = cluster.node(&self.address.beside(&redirect.host, redirect.port));
        Some(Elsewhere { keeper: node.keeper().clone() })
    }
}

impl Elsewhere {
    /// What a command that changes nothing is answered there.
    pub(crate) async fn read(&self, command: &Cmd) -> Result<Value, Trouble> {
        let link = self.keeper.commands.any();
        link.call_by(&link.live().await?, command.clone(), Way::Asking).await
    }

    /// The link of everything that is about the lock whose key on the server is `raw`.
    pub(crate) fn of_lock(&self, raw: &[u8]) -> &Link {
        let locks = self.keeper.keys.locks().as_bytes();
        self.keeper.commands.of_name(raw.strip_prefix(locks).unwrap_or(raw))
    }

    /// The link of renewals, which lives on the engine's thread.
    pub(crate) fn renewals(&self) -> &Link {
        &self.keeper.renewals
    }
}

impl Nodes {
    pub(super) fn new(kit: Kit, seeds: Vec<Address>, clock: Clock) -> Arc<Self> {
        let (nodes, named) = (HashMap::new(), Vec::new());
        let known = RwLock::new(Known { map: Map::new(), nodes, named });
        let (doubt, asking, asked, watch) = Default::default();
        Arc::new_cyclic(|me| Nodes {
            me: me.clone(),
            kit,
            clock,
            seeds,
            known,
            news: watch::Sender::new(0),
            doubt,
            asking,
            asked,
            notices: Server::new_notices(),
            watch,
        })
    }

    pub(super) fn me(&self) -> Weak<Nodes> {
        self.me.clone()
    }

    pub(super) fn notices(&self) -> &broadcast::Sender<Notice> {
        &self.notices
    }

    /// Tells when a slot has another owner.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Who has `slot`, as far as is known without asking.
    pub(super) fn owner_now(&self, slot: u16) -> Option<Owner> {
        let known = self.known();
        let (node, changes) = known.map.owner(slot)?;
        Some(Owner { node: node.clone(), slot, changes })
    }

    /// Whether it still has the slot, and had it all the time.
    pub(super) fn is_at(&self, owner: &Owner) -> bool {
        self.is_at_turn(owner.slot, owner.changes)
    }

    pub(super) fn is_at_turn(&self, slot: u16, changes: u64) -> bool {
        self.known().map.is_at(slot, changes)
    }

    /// Waits until it has the slot no more.
    pub(super) async fn left(&self, owner: &Owner) {
        let mut changes = self.changes();
        while self.is_at(owner) && changes.changed().await.is_ok() {}
    }

    /// Every node that was asked anything, or has slots.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.known().nodes.values().cloned().collect()
    }

    /// Those that have slots.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        let known = self.known();
        known.nodes.values().filter(|node| known.map.has_any(node)).cloned().collect()
    }

    /// Whether a node is dead whose slots nobody has taken over yet.
    pub(super) fn miss_any(&self) -> bool {
        self.known().nodes.values().any(|node| !node.serves.load(Ordering::Acquire))
    }

    /// How many slots have a master in good health.
    pub(super) fn served(&self) -> usize {
        let known = self.known();
        let serves = |slot: &u16| {
            known.map.owner(*slot).is_some_and(|(node, _)| node.serves.load(Ordering::Acquire))
        };
        (0..).take(SLOTS).filter(serves).count()
    }

    /// Whom to ask about the others.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let mut all = self.known().named.clone();
        all.extend(
            self.seeds.iter().filter(|seed| !all.contains(seed)).cloned().collect::<Vec<_>>(),
        );
        all
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.known().nodes.get(address) {
            return node.clone();
        }
        self.make(&mut self.known_mut(), address)
    }

    fn make(&self, known: &mut Known, address: &Address) -> Arc<Node> {
        let new = || Arc::new(self.new_node(address));
        known.nodes.entry(address.clone()).or_insert_with(new).clone()
    }

    fn new_node(&self, address: &Address) -> Node {
        let Kit { dial, pool_size, keys, author, replicas, .. } = &self.kit;
        let spot = Spot { address: address.clone(), cluster: self.me() };
        let target = Target::new(Route::Node(spot), dial.clone());
        let server = Server::with_notices(target, self.clock.clone(), self.notices.clone());
        let (keys, author) = (keys.clone(), author.clone());
        let client = Client::on(Arc::new(server), *pool_size, keys, author, false, *replicas);
        let (redis, serves) = (Redis::with(&client), AtomicBool::new(true));
        Node { address: address.clone(), redis, client, serves }
    }

    /// Takes in what a node says. Whether it is behind others.
    pub(super) fn learn(&self, view: &View) -> bool {
        let mut known = self.known_mut();
        // Apart from the map, for both are changed.
        let nodes: HashMap<_, _> = (view.0.iter().filter(|seen| !seen.slots.is_empty()))
            .map(|seen| (seen.address.clone(), self.make(&mut known, &seen.address)))
            .collect();
        let find = |address: &Address| nodes[address].clone();
        let learnt = known.map.learn(view, self.clock.now(), find);
        if !learnt.behind {
            known.named = view.0.iter().map(|seen| seen.address.clone()).collect();
            self.dismiss(&mut known, view);
        }
        drop(known);
        if learnt.changed {
            self.news.send_modify(|count| *count += 1);
        }
        learnt.behind
    }

    /// Notices which nodes serve no more, and lets go of those whose slots others have: what they knew may
    /// be lost, so every lease is to be renewed there. Before that there is nobody to renew it.
    fn dismiss(&self, known: &mut Known, view: &View) {
        let serving =
            |address: &Address| view.0.iter().any(|seen| seen.serves && seen.address == *address);
        let Known { map, nodes, .. } = known;
        nodes.retain(|address, node| {
            let serves = serving(address);
            if node.serves.swap(serves, Ordering::AcqRel) && !serves {
                tracing::info!(%address, "a node of the cluster is no master any more");
            }
            let keep = serves || map.has_any(node);
            if !keep {
                node.close();
                // Nobody may be listening yet, or any more.
                let _ = self.notices.send(Notice::Reconnected);
            }
            keep
        });
    }

    /// Hears of something that went wrong at the node at `address`.
    fn note(&self, address: &Address, trouble: &Trouble) {
        if trouble.has_moved() {
            let redirect = trouble.redirect();
            redirect.inspect(|redirect| self.send(address, redirect));
            return self.doubt.notify_one();
        }
        let odd = match trouble.cause() {
            Cause::Down | Cause::Demoted | Cause::Silent | Cause::Cut => true,
            _ => trouble.word() == "CLUSTERDOWN",
        };
        if odd {
            self.doubt.notify_one();
        }
    }

    /// A node sends us to another; that counts if it is the one that had the slot.
    fn send(&self, from: &Address, redirect: &Redirect) {
        let to = from.beside(&redirect.host, redirect.port);
        let mut known = self.known_mut();
        let owner = known.map.owner(redirect.slot).map(|(node, _)| &node.address);
        if owner.is_some_and(|owner| owner != from) {
            return;
        }
        let to = self.make(&mut known, &to);
        let sent = known.map.send(redirect.slot, &to, self.clock.now());
        drop(known);
        if sent {
            self.news.send_modify(|count| *count += 1);
        }
    }

    /// Nobody asks for this claim again, whichever nodes it has waited at. Where it was told of its turn, if
    /// anywhere; after several it may have left something at each.
    pub(super) fn forget(&self, token: tenure_core::Token) -> Option<Arc<inbox::Slot>> {
        let known = self.known();
        let mut slots =
            known.nodes.values().filter_map(|node| node.keeper().inbox.desk().forget(token));
        let slot = slots.next()?;
        if slots.count() > 0 {
            slot.asks_in_full();
        }
        Some(slot)
    }

    pub(super) fn end_watch(&self) {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        watch.inspect(AbortHandle::abort);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

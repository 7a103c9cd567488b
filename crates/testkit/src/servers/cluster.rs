//! A Redis Cluster: masters and replicas, real processes on free ports.
//!
//! In: the number of replicas per master. Out: a cluster whose nodes agree on the owner of each slot. A
//! master can be killed, paused or failed over manually, and a slot can be moved step by step.

use std::sync::{Mutex, PoisonError};

use super::proxy::Proxy;
use super::reaper::Reaper;
use super::redis::{RedisClient, RedisServer, Reply};
use crate::wait::eventually_blocking;

/// The number of slots in every cluster.
pub const SLOTS: u16 = 16_384;
/// The number of masters here: the fewest that can agree that one of them has failed.
const MASTERS: usize = 3;
/// The time without a reply after which the other nodes consider a node failed, in milliseconds: short for
/// fast tests, and long enough for a busy machine.
const NODE_TIMEOUT: &str = "1000";
/// How long moving one key may take, in milliseconds.
const MOVE_TIMEOUT: &str = "5000";

/// A cluster of one test. Its nodes are killed when it is dropped.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// The ports of proxies that nodes announce instead of their own, each with the port of the node.
    announced: Mutex<Vec<(u16, u16)>>,
    /// For a cluster in a `static`.
    _reapers: Vec<Reaper>,
}

impl RedisCluster {
    /// Starts three masters with a replica each.
    ///
    /// # Panics
    ///
    /// If they do not agree in time.
    pub fn start() -> Self {
        Self::start_as(1, false)
    }

    /// Starts three masters without replicas: no failover, but a faster start. They end with this process,
    /// also if the cluster is in a `static`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_masters() -> Self {
        Self::start_as(0, false)
    }

    /// Starts three masters without replicas, each with a wall clock that can be set
    /// ([`RedisServer::clock`]).
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start), or if there is no `faketime`.
    pub fn start_masters_with_clocks() -> Self {
        Self::start_as(0, true)
    }

    fn start_as(replicas: usize, has_clocks: bool) -> Self {
        let nodes = (0..MASTERS * (1 + replicas)).map(|_| start_node(has_clocks));
        let nodes: Vec<_> = nodes.collect();
        let reaper = |node: &RedisServer| Reaper::of(node.pid(), node.dir());
        // A node that can be restarted gets a new process id, so it has no reaper.
        let reapers = nodes.iter().filter(|_| replicas == 0).map(reaper).collect();
        let cluster = RedisCluster { nodes, announced: Mutex::default(), _reapers: reapers };
        cluster.share_out();
        cluster.introduce();
        cluster.add_replicas();
        cluster.wait_until_whole();
        if replicas > 0 {
            cluster.wait_until_replicated();
        }
        cluster
    }

    /// Assigns each master its share of the slots.
    fn share_out(&self) {
        let per = SLOTS.div_ceil(MASTERS as u16);
        for (index, node) in (0..).zip(&self.nodes[..MASTERS]) {
            let (first, last) = (index * per, ((index + 1) * per).min(SLOTS) - 1);
            let mut client = node.client();
            ok(client.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]));
            let slots: Vec<_> = (first..=last).map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            ok(client.command(&words.collect::<Vec<_>>()));
        }
    }

    /// Makes the nodes known to each other.
    fn introduce(&self) {
        let mut first = self.nodes[0].client();
        for node in &self.nodes[1..] {
            ok(first.command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]));
        }
        let all = self.nodes.len();
        eventually_blocking("all nodes to know each other", || {
            self.nodes
                .iter()
                .all(|node| view(node).iter().filter(|one| one.is_met()).count() == all)
        });
    }

    fn add_replicas(&self) {
        for (index, node) in self.nodes[MASTERS..].iter().enumerate() {
            let master = id(&self.nodes[index % MASTERS]);
            eventually_blocking("a replica to follow its master", || {
                node.client().command(&["CLUSTER", "REPLICATE", &master])
                    == Reply::Text("OK".into())
            });
        }
    }

    /// Waits until all nodes are healthy, agree on the owner of each slot, and every replica follows its
    /// master.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_until_whole(&self) {
        eventually_blocking("the cluster to be whole", || self.is_whole());
    }

    fn is_whole(&self) -> bool {
        let owners = |node: &RedisServer| {
            let mut owners: Vec<_> = view(node).into_iter().map(Seen::ownership).collect();
            owners.sort();
            owners
        };
        let first = owners(&self.nodes[0]);
        self.nodes.iter().all(|node| is_well(node) && follows(node) && owners(node) == first)
            && view(&self.nodes[0]).iter().all(Seen::is_met)
    }

    /// Waits until the replica of each master acknowledges writes.
    fn wait_until_replicated(&self) {
        for master in &self.nodes[..MASTERS] {
            let names = (0..1_000).map(|number| format!("probe-{number}"));
            let is_its = |name: &String| asked(master, &["EXISTS", name]).is_ok();
            let name = { names }.find(is_its).expect("one of the names is in its slots");
            master.wait_for_replicas(&name);
        }
    }

    /// The URL for clients: `redis-cluster://host,host,host`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The node at `port`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn node(&self, port: u16) -> &RedisServer {
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let real = announced.iter().find(|(proxy, _)| *proxy == port).map_or(port, |pair| pair.1);
        self.nodes.iter().find(|node| node.port() == real).expect("a node of this cluster")
    }

    /// Puts a proxy in front of `node`: from now on all nodes redirect clients there.
    ///
    /// # Panics
    ///
    /// If they do not know the proxy in time.
    pub fn proxy_before(&self, node: &RedisServer) -> Proxy {
        let proxy = Proxy::to(node.port());
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        announced.push((proxy.port(), node.port()));
        drop(announced);
        let port = proxy.port().to_string();
        ok(node.client().command(&["CONFIG", "SET", "cluster-announce-port", &port]));
        eventually_blocking("all nodes to know the proxy", || {
            let knows = |node| view(node).iter().any(|one| one.port == proxy.port());
            self.nodes.iter().all(knows)
        });
        proxy
    }

    /// The masters, as known to the first node that replies.
    ///
    /// # Panics
    ///
    /// If no node replies.
    pub fn masters(&self) -> Vec<&RedisServer> {
        let masters = self.seen().into_iter().filter(|one| !one.slots.is_empty());
        masters.map(|one| self.node(one.port)).collect()
    }

    /// The slot of `key`, as computed by the server.
    ///
    /// # Panics
    ///
    /// If no node replies.
    pub fn slot_of(&self, key: &str) -> u16 {
        let mut slot = None;
        eventually_blocking("the slot of a key", || {
            let ask = |node: &RedisServer| try_ask(node, &["CLUSTER", "KEYSLOT", key]);
            slot = self.nodes.iter().find_map(ask);
            slot.is_some()
        });
        match slot {
            Some(Reply::Int(slot)) => u16::try_from(slot).expect("a slot"),
            other => panic!("{other:?}"),
        }
    }

    /// The master that owns `slot`, as known to the first node that replies.
    ///
    /// # Panics
    ///
    /// If no master owns it.
    pub fn owner(&self, slot: u16) -> &RedisServer {
        let mut owner = None;
        eventually_blocking("a slot to have an owner", || {
            owner = self.seen().into_iter().find(|one| one.has(slot));
            owner.is_some()
        });
        self.node(owner.expect("waited for above").port)
    }

    /// A replica of `master`.
    ///
    /// # Panics
    ///
    /// If it has none.
    pub fn replica_of(&self, master: &RedisServer) -> &RedisServer {
        let id = id(master);
        let replica = self.seen().into_iter().find(|one| one.master == id);
        self.node(replica.expect("a master with a replica").port)
    }

    /// Promotes a replica of the healthy `master`, and waits until all nodes know. Returns the new master.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn fail_over(&self, master: &RedisServer) -> &RedisServer {
        let replica = self.take_over(master);
        self.wait_until_whole();
        replica
    }

    /// Promotes a replica of `master` without waiting for the other nodes. Returns the replica.
    fn take_over(&self, master: &RedisServer) -> &RedisServer {
        let replica = self.replica_of(master);
        eventually_blocking("a failover by hand", || {
            is_master(replica) || {
                try_ask(replica, &["CLUSTER", "FAILOVER"]);
                false
            }
        });
        replica
    }

    /// Waits until all nodes that reply know another owner of `slot` than `before`. Returns the new owner.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_for_another(&self, slot: u16, before: &RedisServer) -> &RedisServer {
        eventually_blocking("another owner", || {
            let others = self.nodes.iter().filter(|node| node.port() != before.port());
            let mut views = others.filter_map(try_view);
            views.all(|view| view.iter().any(|one| one.has(slot) && one.port != before.port()))
        });
        let others = self.nodes.iter().filter(|node| node.port() != before.port());
        let owner = others.filter_map(try_view).flatten().find(|one| one.has(slot));
        self.node(owner.expect("waited for above").port)
    }

    /// Begins to move `slot` to `to`: from now on its keys may be on either node.
    ///
    /// # Panics
    ///
    /// If a node refuses.
    pub fn begin_move(&self, slot: u16, to: &RedisServer) {
        self.try_begin(slot, to).expect("a move that begins");
    }

    /// Moves all keys of `slot` from its owner to `to`. Returns their number.
    ///
    /// # Panics
    ///
    /// If a node refuses.
    pub fn move_keys(&self, slot: u16, to: &RedisServer) -> usize {
        self.try_keys(slot, to).expect("keys that move")
    }

    /// Assigns `slot` to `to`, after its keys have been moved.
    ///
    /// # Panics
    ///
    /// If a node refuses.
    pub fn end_move(&self, slot: u16, to: &RedisServer) {
        self.try_end(slot, to).expect("a move that ends");
    }

    /// Moves `slot` with all its keys to `to`, or to its successor after a failover. Continues a move that
    /// has begun.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn move_slot(&self, slot: u16, to: &RedisServer) {
        let mut to = to;
        eventually_blocking("a slot to move", || {
            let moved = self.try_move(slot, to).is_ok();
            if !moved {
                // One of the two nodes has failed over. The new master does not know of the move, and a node
                // that still knows of it does not accept what the others announce about the slot.
                self.nodes.iter().for_each(|node| forget_move(node, slot));
                self.wait_until_whole();
                to = self.head_of(to);
            }
            moved
        });
    }

    fn try_move(&self, slot: u16, to: &RedisServer) -> Result<(), Reply> {
        if self.owner(slot).port() != to.port() {
            self.try_begin(slot, to)?;
            // New keys may come while others are moved.
            while self.try_keys(slot, to)? > 0 {}
        }
        self.try_end(slot, to)
    }

    fn try_begin(&self, slot: u16, to: &RedisServer) -> Result<(), Reply> {
        let from = self.owner(slot);
        set_slot(to, slot, "IMPORTING", from)?;
        set_slot(from, slot, "MIGRATING", to)
    }

    fn try_keys(&self, slot: u16, to: &RedisServer) -> Result<usize, Reply> {
        let (from, port) = (self.owner(slot), to.port().to_string());
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"];
        let keys = match asked(from, &words)? {
            Reply::Many(keys) => keys,
            other => return Err(other),
        };
        for key in &keys {
            let Reply::Text(key) = key else { panic!("{key:?}") };
            asked(from, &["MIGRATE", "127.0.0.1", &port, key, "0", MOVE_TIMEOUT])?;
        }
        Ok(keys.len())
    }

    fn try_end(&self, slot: u16, to: &RedisServer) -> Result<(), Reply> {
        let from = self.owner(slot);
        set_slot(to, slot, "NODE", to)?;
        set_slot(from, slot, "NODE", to)
    }

    /// The master of `node`; `node` itself if it is a master.
    fn head_of(&self, node: &RedisServer) -> &RedisServer {
        let (id, seen) = (id(node), self.seen());
        let line = seen.iter().find(|one| one.id == id).expect("a node that others know");
        let head = seen.iter().find(|one| one.id == line.master).unwrap_or(line);
        self.node(head.port)
    }

    fn seen(&self) -> Vec<Seen> {
        let mut seen = None;
        eventually_blocking("a node to answer", || {
            seen = self.nodes.iter().find_map(try_view);
            seen.is_some()
        });
        seen.unwrap_or_default()
    }
}

fn start_node(has_clock: bool) -> RedisServer {
    let args = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        NODE_TIMEOUT,
        // A replica that was disconnected for a long time may still be promoted.
        "--cluster-replica-validity-factor",
        "0",
        // The other masters serve their slots when one has failed; a test that needs the opposite sets it.
        "--cluster-require-full-coverage",
        "no",
        "--cluster-allow-replica-migration",
        "no",
        // By default a replica waits five seconds for other replicas to connect.
        "--repl-diskless-sync-delay",
        "0",
    ];
    RedisServer::start_node(&args, has_clock)
}

/// The id of a node in the cluster.
fn id(node: &RedisServer) -> String {
    let mut id = None;
    eventually_blocking("a node to say its name", || {
        id = try_ask(node, &["CLUSTER", "MYID"]);
        id.is_some()
    });
    match id {
        Some(Reply::Text(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// One line of a node's `CLUSTER NODES`.
struct Seen {
    id: String,
    port: u16,
    flags: String,
    master: String,
    connected: bool,
    slots: Vec<(u16, u16)>,
}

impl Seen {
    /// Parses `id ip:port@bus[,host] flags master ping pong epoch link slot slot…`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, address) = (words.next()?.into(), words.next()?);
        let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        let (flags, master) = (words.next()?.into(), words.next()?.into());
        let connected = words.nth(3)? == "connected";
        let range = |word: &str| match word.split_once('-') {
            Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
            None => word.parse().ok().map(|slot| (slot, slot)),
        };
        let slots = words.filter(|word| !word.starts_with('[')).filter_map(range).collect();
        Some(Seen { id, port, flags, master, connected, slots })
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }

    /// Whether the node is connected, and healthy as far as is known.
    fn is_met(&self) -> bool {
        self.connected
            && !["fail", "handshake", "noaddr"].iter().any(|flag| self.flags.contains(flag))
    }

    /// The facts on which all nodes have to agree.
    fn ownership(self) -> (String, String, Vec<(u16, u16)>) {
        (self.id, self.master, self.slots)
    }
}

fn view(node: &RedisServer) -> Vec<Seen> {
    try_view(node).unwrap_or_default()
}

fn try_view(node: &RedisServer) -> Option<Vec<Seen>> {
    match try_ask(node, &["CLUSTER", "NODES"])? {
        Reply::Text(text) => Some(text.lines().filter_map(Seen::parse).collect()),
        _ => None,
    }
}

/// Sends a command to a node that may be down or paused; `None` if there is no reply.
fn try_ask(node: &RedisServer, words: &[&str]) -> Option<Reply> {
    node.try_client().and_then(RedisClient::soon).ok()?.try_command(words).ok()
}

/// Sends a command that must succeed: an error reply, or a missing reply, is an `Err`.
fn asked(node: &RedisServer, words: &[&str]) -> Result<Reply, Reply> {
    let reply = node.try_client().and_then(|mut client| client.try_command(words));
    match reply.unwrap_or_else(|error| Reply::Error(error.to_string())) {
        refused @ Reply::Error(_) => Err(refused),
        done => Ok(done),
    }
}

/// Sets the state of `slot` on `node` with respect to `other`.
fn set_slot(node: &RedisServer, slot: u16, how: &str, other: &RedisServer) -> Result<(), Reply> {
    asked(node, &["CLUSTER", "SETSLOT", &slot.to_string(), how, &id(other)]).map(drop)
}

/// Ends a move on `node`. A replica has no such state, and refuses.
fn forget_move(node: &RedisServer, slot: u16) {
    let _ = asked(node, &["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
}

fn info(node: &RedisServer, words: &[&str]) -> String {
    match try_ask(node, words) {
        Some(Reply::Text(text)) => text,
        _ => String::new(),
    }
}

fn is_master(node: &RedisServer) -> bool {
    info(node, &["INFO", "replication"]).contains("role:master")
}

fn is_well(node: &RedisServer) -> bool {
    info(node, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

fn follows(node: &RedisServer) -> bool {
    let info = info(node, &["INFO", "replication"]);
    info.contains("role:master") || info.contains("master_link_status:up")
}

#[track_caller]
fn ok(reply: Reply) {
    assert_eq!(reply, Reply::Text("OK".into()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster is complete after its start, and its keys survive a failover and the move of their slot.
    #[test]
    fn a_failover_and_a_move() {
        let cluster = RedisCluster::start();
        let slot = cluster.slot_of("a");
        let before = cluster.owner(slot);
        before.client().command(&["SET", "a", "1"]);
        let after = cluster.fail_over(before);
        assert_ne!(after.port(), before.port());
        assert_eq!(cluster.owner(slot).port(), after.port());
        assert_eq!(after.client().text(&["GET", "a"]).as_deref(), Some("1"));
        let other = cluster.masters().into_iter().find(|node| node.port() != after.port());
        let other = other.expect("three masters");
        cluster.move_slot(slot, other);
        assert_eq!(other.client().text(&["GET", "a"]).as_deref(), Some("1"));
        let moved = after.client().command(&["GET", "a"]);
        assert!(matches!(moved, Reply::Error(error) if error.starts_with("MOVED")));
    }

    /// A move continues after both nodes have failed over in the middle of it.
    #[test]
    fn a_move_goes_on_after_failovers() {
        let cluster = RedisCluster::start();
        let (slot, beside) = (cluster.slot_of("{a}"), ["{a}:1", "{a}:2", "{a}:3"]);
        let from = cluster.owner(slot);
        for key in beside {
            ok(from.client().command(&["SET", key, "1"]));
        }
        let to = cluster.masters().into_iter().find(|node| node.port() != from.port());
        let to = to.expect("three masters");
        cluster.begin_move(slot, to);
        asked(from, &["MIGRATE", "127.0.0.1", &to.port().to_string(), "{a}:1", "0", MOVE_TIMEOUT])
            .expect("one key moves");
        let (_, heir) = (cluster.take_over(from), cluster.take_over(to));
        cluster.move_slot(slot, to);
        assert_eq!(cluster.owner(slot).port(), heir.port());
        for key in beside {
            assert_eq!(heir.client().text(&["GET", key]).as_deref(), Some("1"), "{key}");
        }
    }
}

//! A Redis Cluster: failovers, and slots that move while their locks have holders and waiters.

use super::observer::{LOCK, Observer, text};
use super::queue_leftovers::Places;
use super::target::{Fault, Injection, Target};
use crate::judge::Snapshot;
use crate::servers::{RedisCluster, RedisServer, Reply};
use crate::wait::pass;

/// A cluster that the campaign starts for itself.
pub struct ClusterTarget {
    cluster: RedisCluster,
    observer: Observer,
    places: Places,
}

impl ClusterTarget {
    /// Faults that keep the data: a manual failover waits for the replica, and a slot moves with its keys.
    pub const KEEP: [Fault<Self>; 6] = [
        Fault::new("failover by hand", by_hand),
        Fault::new("slot moved", move_slot),
        Fault::new("slot half moved for a while, then moved", linger),
        Fault::new("CLIENT KILL", client_kill),
        Fault::new("SCRIPT FLUSH", script_flush),
        Fault::new("master stopped for less than others wait", stop_shortly),
    ];

    /// Failovers that can lose data which the replica has not received yet, and a lock with it.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("master killed, back empty", kill),
        Fault::new("master stopped until another took over", stop),
        Fault::new("failover by hand", by_hand),
        Fault::new("slot moved", move_slot),
    ];

    /// Starts three masters with a replica each.
    pub fn start() -> Self {
        let (observer, places) = Default::default();
        ClusterTarget { cluster: RedisCluster::start(), observer, places }
    }

    fn ask(&self, node: &RedisServer, words: &[&str]) -> Option<Reply> {
        self.observer.ask(node, words)
    }

    /// Whether `node` stores `key` but does not own its slot. Clients are redirected to the owner of the
    /// slot, so they cannot delete the key. This happens when a master dies after a slot has moved.
    fn is_out_of_reach(&self, node: &RedisServer, key: &str) -> bool {
        let sent_on = |reply| matches!(reply, Reply::Error(error) if error.starts_with("MOVED"));
        self.places.master_died() && self.ask(node, &["TYPE", key]).is_some_and(sent_on)
    }

    fn some_master(&self, injection: &mut Injection<'_>) -> &RedisServer {
        let masters = self.cluster.masters();
        let some: &&RedisServer = injection.rng.pick(&masters);
        some
    }

    /// Makes another node the master of a key's slot by `deed`, then restores the former master by `back`.
    fn switch(
        &self,
        injection: &mut Injection<'_>,
        deed: fn(&RedisServer),
        back: fn(&RedisServer),
    ) {
        let slot = self.cluster.slot_of(&format!("{LOCK}{}", injection.key()));
        let before = self.cluster.owner(slot);
        self.places.master_dies();
        deed(before);
        self.cluster.wait_for_another(slot, before);
        back(before);
        self.cluster.wait_until_whole();
    }

    /// The slot of a random key, and a master that does not own it.
    fn some_move(&self, injection: &mut Injection<'_>) -> (u16, &RedisServer) {
        let slot = self.cluster.slot_of(&format!("{LOCK}{}", injection.key()));
        let from = self.cluster.owner(slot).port();
        let masters = self.cluster.masters();
        let others: Vec<_> = masters.into_iter().filter(|node| node.port() != from).collect();
        (slot, *injection.rng.pick(&others))
    }
}

impl Target for ClusterTarget {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn heal(&self) {
        self.cluster.wait_until_whole();
    }

    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>> {
        let look = |key: &String| {
            let mut nodes = self.cluster.nodes().iter();
            nodes.find_map(|node| self.observer.look_without_queue(node, key))
        };
        keys.iter().map(look).collect()
    }

    fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for node in self.cluster.masters() {
            let Some(Reply::Many(keys)) = self.ask(node, &["KEYS", "*"]) else { continue };
            let names = keys.iter().filter_map(text).filter(|key| !key.contains("tenure:fence"));
            for key in names.filter(|key| !self.is_out_of_reach(node, key)) {
                self.places.clear(&self.url(), key, |words| self.ask(node, words));
                left.push(format!("{key} at {}", node.port()));
            }
        }
        left
    }
}

fn by_hand(target: &ClusterTarget, injection: &mut Injection<'_>) {
    target.cluster.fail_over(target.some_master(injection));
}

fn move_slot(target: &ClusterTarget, injection: &mut Injection<'_>) {
    let (slot, to) = target.some_move(injection);
    target.cluster.move_slot(slot, to);
    target.cluster.wait_until_whole();
}

fn linger(target: &ClusterTarget, injection: &mut Injection<'_>) {
    let (slot, to) = target.some_move(injection);
    target.cluster.begin_move(slot, to);
    pass(injection.millis(1, 500));
    target.cluster.move_slot(slot, to);
    target.cluster.wait_until_whole();
}

fn client_kill(target: &ClusterTarget, injection: &mut Injection<'_>) {
    let what = *injection.rng.pick(&["normal", "pubsub"]);
    target.some_master(injection).client().command(&["CLIENT", "KILL", "TYPE", what]);
}

fn script_flush(target: &ClusterTarget, injection: &mut Injection<'_>) {
    target.some_master(injection).client().command(&["SCRIPT", "FLUSH"]);
}

/// Shorter than half the time after which the other nodes consider the master failed.
fn stop_shortly(target: &ClusterTarget, injection: &mut Injection<'_>) {
    let node = target.some_master(injection);
    node.pause();
    pass(injection.millis(10, 400));
    node.go_on();
}

fn kill(target: &ClusterTarget, injection: &mut Injection<'_>) {
    target.switch(injection, RedisServer::kill, RedisServer::restart);
}

fn stop(target: &ClusterTarget, injection: &mut Injection<'_>) {
    target.switch(injection, RedisServer::pause, RedisServer::go_on);
}

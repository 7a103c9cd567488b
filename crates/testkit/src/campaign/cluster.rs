//! A Redis Cluster: failovers, and slots that move while locks in them are held and waited for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::arena::{Arena, Fault, Strike};
use super::places::Places;
use super::redis::{LOCK, label, text};
use crate::servers::{RedisClient, RedisCluster, RedisServer, Reply};
use crate::wait::pass;

/// A cluster of the campaign's own.
pub struct ClusterArena {
    cluster: RedisCluster,
    /// The connections that look, made again when they break.
    eyes: Mutex<HashMap<u16, RedisClient>>,
    places: Places,
}

impl ClusterArena {
    /// Faults that keep the data: a failover by hand waits for the replica, and a slot moves with its
    /// keys.
    pub const KEEP: [Fault<Self>; 6] = [
        Fault::new("failover by hand", by_hand),
        Fault::new("slot moved", move_slot),
        Fault::new("slot half moved for a while, then moved", linger),
        Fault::new("CLIENT KILL", client_kill),
        Fault::new("SCRIPT FLUSH", script_flush),
        Fault::new("master stopped for less than others wait", stop_shortly),
    ];

    /// Failovers that can lose what the replica did not have yet, and with it a lock.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("master killed, back empty", kill),
        Fault::new("master stopped until another took over", stop),
        Fault::new("failover by hand", by_hand),
        Fault::new("slot moved", move_slot),
    ];

    /// Three masters with a replica each.
    pub fn start() -> Self {
        let (eyes, places) = Default::default();
        ClusterArena { cluster: RedisCluster::start(), eyes, places }
    }

    /// Asks `node` on a connection that is kept.
    fn ask(&self, node: &RedisServer, words: &[&str]) -> Option<Reply> {
        let mut eyes = self.eyes.lock().unwrap_or_else(PoisonError::into_inner);
        let port = node.port();
        let mut eye = match eyes.remove(&port) {
            Some(eye) => eye,
            None => node.try_client().and_then(RedisClient::soon).ok()?,
        };
        let reply = eye.try_command(words).ok()?;
        eyes.insert(port, eye);
        Some(reply)
    }

    /// What the node has that answers for the lock `key`; `None` if none does.
    fn holder(&self, key: &str) -> Option<Option<String>> {
        let lock = format!("{LOCK}{key}");
        let mut replies =
            self.cluster.nodes().iter().filter_map(|node| self.ask(node, &["GET", &lock]));
        // The others send us on.
        let value = replies.find(|reply| !matches!(reply, Reply::Error(_)))?;
        Some(label(&value))
    }

    /// Whether `key` is where its slot is not, which nobody can mend who is sent on to where it is: that is
    /// what the death of a master leaves of a slot that has moved.
    fn is_out_of_reach(&self, node: &RedisServer, key: &str) -> bool {
        let sent_on = |reply| matches!(reply, Reply::Error(error) if error.starts_with("MOVED"));
        self.places.master_died() && self.ask(node, &["TYPE", key]).is_some_and(sent_on)
    }

    fn some_master(&self, strike: &mut Strike<'_>) -> &RedisServer {
        let masters = self.cluster.masters();
        let some: &&RedisServer = strike.dice.pick(&masters);
        some
    }

    /// Leaves the master of a key for another by `deed`, and has `back` bring the former one back.
    fn switch(&self, strike: &mut Strike<'_>, deed: fn(&RedisServer), back: fn(&RedisServer)) {
        let slot = self.cluster.slot_of(&format!("{LOCK}{}", strike.key()));
        let before = self.cluster.owner(slot);
        self.places.master_dies();
        deed(before);
        self.cluster.wait_for_another(slot, before);
        back(before);
        self.cluster.wait_until_whole();
    }

    /// The slot of a key, and another master than the one that has it.
    fn some_move(&self, strike: &mut Strike<'_>) -> (u16, &RedisServer) {
        let slot = self.cluster.slot_of(&format!("{LOCK}{}", strike.key()));
        let from = self.cluster.owner(slot).port();
        let masters = self.cluster.masters();
        let others: Vec<_> = masters.into_iter().filter(|node| node.port() != from).collect();
        (slot, *strike.dice.pick(&others))
    }
}

impl Arena for ClusterArena {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn heal(&self) {
        self.cluster.wait_until_whole();
    }

    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>> {
        keys.iter().map(|key| self.holder(key)).collect()
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

fn by_hand(arena: &ClusterArena, strike: &mut Strike<'_>) {
    arena.cluster.fail_over(arena.some_master(strike));
}

fn move_slot(arena: &ClusterArena, strike: &mut Strike<'_>) {
    let (slot, to) = arena.some_move(strike);
    arena.cluster.move_slot(slot, to);
    arena.cluster.wait_until_whole();
}

fn linger(arena: &ClusterArena, strike: &mut Strike<'_>) {
    let (slot, to) = arena.some_move(strike);
    arena.cluster.begin_move(slot, to);
    pass(strike.millis(1, 500));
    arena.cluster.move_slot(slot, to);
    arena.cluster.wait_until_whole();
}

fn client_kill(arena: &ClusterArena, strike: &mut Strike<'_>) {
    let what = *strike.dice.pick(&["normal", "pubsub"]);
    arena.some_master(strike).client().command(&["CLIENT", "KILL", "TYPE", what]);
}

fn script_flush(arena: &ClusterArena, strike: &mut Strike<'_>) {
    arena.some_master(strike).client().command(&["SCRIPT", "FLUSH"]);
}

/// Less than half of what makes the others take it for dead.
fn stop_shortly(arena: &ClusterArena, strike: &mut Strike<'_>) {
    let node = arena.some_master(strike);
    node.pause();
    pass(strike.millis(10, 400));
    node.go_on();
}

fn kill(arena: &ClusterArena, strike: &mut Strike<'_>) {
    arena.switch(strike, RedisServer::kill, RedisServer::restart);
}

fn stop(arena: &ClusterArena, strike: &mut Strike<'_>) {
    arena.switch(strike, RedisServer::pause, RedisServer::go_on);
}

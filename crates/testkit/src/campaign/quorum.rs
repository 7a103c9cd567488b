//! Five independent Redis servers, each behind a proxy, and what can go wrong with them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::arena::{Arena, Fault, Strike};
use super::redis::{LOCK, label};
use crate::servers::proxy::{Cut, Deed, Proxy, Rule, Way};
use crate::servers::{RedisClient, RedisServer, Reply};
use crate::wait::pass;

/// How many there are, and how many of them are a majority.
const NODES: usize = 5;
const MAJORITY: usize = NODES / 2 + 1;

/// Servers of the campaign's own.
pub struct QuorumArena {
    nodes: Vec<Node>,
    query: &'static str,
}

struct Node {
    server: RedisServer,
    proxy: Proxy,
    /// The connection that looks, made again when it breaks.
    eye: Mutex<Option<RedisClient>>,
}

impl QuorumArena {
    /// Faults that a quorum must bear without a second holder: all but those that make a node forget
    /// while it runs.
    pub const KEEP: [Fault<Self>; 9] = [
        Fault::new("connections cut", cut),
        Fault::new("replies and requests delayed", delay),
        Fault::new("black hole", black_hole),
        Fault::new("reply swallowed", swallow),
        Fault::new("SCRIPT FLUSH", script_flush),
        Fault::new("nodes stopped", stop),
        Fault::new("nodes restarted with their data", restart),
        Fault::new("nodes killed, back with their data", kill),
        Fault::new("nodes restarted empty", restart_empty),
    ];

    /// Faults that make votes forgotten.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("FLUSHALL", flush),
        Fault::new("votes deleted", delete),
        Fault::new("nodes restarted empty and trusted", forget),
        Fault::new("nodes stopped", stop),
    ];

    /// Those that write everything down before they answer. None of them is trusted after a start.
    pub fn persistent() -> Self {
        Self::of(RedisServer::start_persistent, "")
    }

    /// Those that remember nothing, and are trusted all the same.
    pub fn trusted() -> Self {
        Self::of(RedisServer::start, "?restarted=trusted")
    }

    fn of(start: fn() -> RedisServer, query: &'static str) -> Self {
        QuorumArena { nodes: (0..NODES).map(|_| Node::of(start())).collect(), query }
    }

    /// Some of them, at least one; all at times.
    fn some<'a>(&'a self, strike: &mut Strike<'_>) -> Vec<&'a Node> {
        let one = strike.dice.pick(&self.nodes);
        let others = self.nodes.iter().filter(|node| !std::ptr::eq(*node, one));
        let mut some = vec![one];
        some.extend(others.filter(|_| strike.dice.one_in(3)));
        some
    }
}

impl Node {
    fn of(server: RedisServer) -> Self {
        let proxy = Proxy::to(server.port());
        Node { server, proxy, eye: Mutex::default() }
    }

    fn tell(&self, words: &[&str]) {
        self.server.client().command(words);
    }

    fn ask(&self, words: &[&str]) -> Option<Reply> {
        let mut eye = self.eye.lock().unwrap_or_else(PoisonError::into_inner);
        if eye.is_none() {
            *eye = self.server.try_client().ok();
        }
        let reply = eye.as_mut()?.try_command(words).ok();
        if reply.is_none() {
            *eye = None;
        }
        reply
    }
}

impl Arena for QuorumArena {
    fn url(&self) -> String {
        let host = |node: &Node| format!("127.0.0.1:{}", node.proxy.port());
        let hosts: Vec<_> = self.nodes.iter().map(host).collect();
        format!("redis+quorum://{}{}", hosts.join(","), self.query)
    }

    fn heal(&self) {
        for node in &self.nodes {
            node.proxy.heal();
            node.server.go_on();
        }
    }

    /// Whoever has a majority; nobody, if a node does not answer.
    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>> {
        let locks: Vec<String> = keys.iter().map(|key| format!("{LOCK}{key}")).collect();
        let words: Vec<&str> =
            std::iter::once("MGET").chain(locks.iter().map(String::as_str)).collect();
        let mut votes: Vec<BTreeMap<String, usize>> = vec![BTreeMap::new(); keys.len()];
        for node in &self.nodes {
            let Reply::Many(values) = node.ask(&words)? else { return None };
            for (votes, label) in votes.iter_mut().zip(values.iter().map(label)) {
                label.into_iter().for_each(|label| *votes.entry(label).or_default() += 1);
            }
        }
        let winner = |votes: BTreeMap<String, usize>| {
            votes.into_iter().find(|(_, count)| *count >= MAJORITY).map(|(label, _)| label)
        };
        Some(votes.into_iter().map(winner).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let fence = Reply::Text("tenure:fence".into());
        let kept = |node: &Node| match node.ask(&["KEYS", "*"]) {
            Some(Reply::Many(keys)) => keys,
            _ => Vec::new(),
        };
        let keys = self.nodes.iter().flat_map(kept).filter(|key| *key != fence);
        keys.map(|key| format!("{key:?}")).collect()
    }
}

fn cut(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let how = *strike.dice.pick(&[Cut::Close, Cut::Reset]);
    for node in arena.some(strike) {
        node.proxy.cut(how);
    }
}

fn delay(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let (deed, some) = (Deed::Delay(strike.millis(1, 300)), arena.some(strike));
    for node in &some {
        for way in [Way::Requests, Way::Replies] {
            node.proxy.rule(Rule::on(way, deed.clone()));
        }
    }
    pass(strike.millis(50, 1_000));
    some.iter().for_each(|node| node.proxy.heal());
}

fn black_hole(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let both = [Way::Requests, Way::Replies];
    let ways = *strike.dice.pick(&[&both[..], &both[..1], &both[1..]]);
    let some = arena.some(strike);
    some.iter().for_each(|node| node.proxy.black_hole(ways));
    pass(strike.millis(20, 1_500));
    some.iter().for_each(|node| node.proxy.heal());
}

fn swallow(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let what = *strike.dice.pick(&["granted", "freed", "renewed", "raised", "-t1:"]);
    let some = arena.some(strike);
    for node in &some {
        node.proxy.rule(Rule::on(Way::Replies, Deed::Swallow).containing(what).once());
    }
    pass(strike.millis(20, 200));
    some.iter().for_each(|node| node.proxy.heal());
}

fn script_flush(arena: &QuorumArena, strike: &mut Strike<'_>) {
    arena.some(strike).iter().for_each(|node| node.tell(&["SCRIPT", "FLUSH"]));
}

fn stop(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let some = arena.some(strike);
    some.iter().for_each(|node| node.server.pause());
    pass(strike.millis(10, 1_200));
    some.iter().for_each(|node| node.server.go_on());
}

fn restart(arena: &QuorumArena, strike: &mut Strike<'_>) {
    arena.some(strike).iter().for_each(|node| node.server.restart());
}

fn kill(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let some = arena.some(strike);
    some.iter().for_each(|node| node.server.kill());
    pass(strike.millis(10, 2_000));
    some.iter().for_each(|node| node.server.restart());
}

/// What they forgot, they are not asked about before it has ended.
fn restart_empty(arena: &QuorumArena, strike: &mut Strike<'_>) {
    arena.some(strike).iter().for_each(|node| node.server.restart_empty());
}

fn forget(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let some = arena.some(strike);
    strike.take_all_away(|| some.iter().for_each(|node| node.server.restart()));
}

fn flush(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let some = arena.some(strike);
    strike.take_all_away(|| some.iter().for_each(|node| node.tell(&["FLUSHALL"])));
}

fn delete(arena: &QuorumArena, strike: &mut Strike<'_>) {
    let (key, some) = (strike.key(), arena.some(strike));
    let lock = format!("{LOCK}{key}");
    strike.take_away(key, || some.iter().for_each(|node| node.tell(&["DEL", &lock])));
}

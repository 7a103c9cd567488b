//! Five independent Redis servers, each behind a proxy, and their faults.

use std::collections::BTreeMap;

use super::observer::{LOCK, Observer};
use super::target::{Fault, Injection, Target};
use crate::judge::{Claimed, Snapshot};
use crate::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use crate::servers::{RedisServer, Reply};
use crate::wait::pass;

/// The number of nodes, and the size of a majority.
const NODES: usize = 5;
const MAJORITY: usize = NODES / 2 + 1;

/// Servers that the campaign starts for itself.
pub struct QuorumTarget {
    nodes: Vec<Node>,
    observer: Observer,
    query: &'static str,
}

struct Node {
    server: RedisServer,
    proxy: Proxy,
}

impl QuorumTarget {
    /// Faults that a quorum must survive without a second holder: all except those that delete a node's data
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

    /// Faults that delete votes.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("FLUSHALL", flush),
        Fault::new("votes deleted", delete),
        Fault::new("nodes restarted empty and trusted", forget),
        Fault::new("nodes stopped", stop),
    ];

    /// Nodes that persist every write before they reply. A restarted node is not trusted for a while.
    pub fn persistent() -> Self {
        Self::of(RedisServer::start_persistent, "")
    }

    /// Nodes without persistence, which are trusted after a restart nevertheless.
    pub fn trusted() -> Self {
        Self::of(RedisServer::start, "?restarted=trusted")
    }

    fn of(start: fn() -> RedisServer, query: &'static str) -> Self {
        let nodes = (0..NODES).map(|_| Node::of(start())).collect();
        QuorumTarget { nodes, observer: Observer::default(), query }
    }

    /// A random choice of at least one node.
    fn some<'a>(&'a self, injection: &mut Injection<'_>) -> Vec<&'a Node> {
        let one = injection.rng.pick(&self.nodes);
        let others = self.nodes.iter().filter(|node| !std::ptr::eq(*node, one));
        let mut some = vec![one];
        some.extend(others.filter(|_| injection.rng.one_in(3)));
        some
    }
}

impl Node {
    fn of(server: RedisServer) -> Self {
        let proxy = Proxy::to(server.port());
        Node { server, proxy }
    }

    fn tell(&self, words: &[&str]) {
        self.server.client().command(words);
    }
}

impl Target for QuorumTarget {
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

    /// The claims with a majority; `None` if any node does not reply.
    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>> {
        let mut votes: Vec<BTreeMap<String, usize>> = vec![BTreeMap::new(); keys.len()];
        for node in &self.nodes {
            let seen = self.observer.look(&node.server, keys)?;
            for (votes, seen) in votes.iter_mut().zip(seen) {
                for claim in seen.holders {
                    *votes.entry(claim.label).or_default() += 1;
                }
            }
        }
        Some(votes.into_iter().map(winners).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let fence = Reply::Text("tenure:fence".into());
        let kept = |node: &Node| match self.observer.ask(&node.server, &["KEYS", "*"]) {
            Some(Reply::Many(keys)) => keys,
            _ => Vec::new(),
        };
        let keys = self.nodes.iter().flat_map(kept).filter(|key| *key != fence);
        keys.map(|key| format!("{key:?}")).collect()
    }
}

/// One writer, or any number of readers.
fn winners(votes: BTreeMap<String, usize>) -> Snapshot {
    let won = votes.into_iter().filter(|(_, count)| *count >= MAJORITY);
    let holders = won.map(|(label, _)| Claimed { token: label.clone(), label }).collect();
    Snapshot { holders, ..Snapshot::default() }
}

fn cut(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let how = *injection.rng.pick(&[Cut::Close, Cut::Reset]);
    for node in target.some(injection) {
        node.proxy.cut(how);
    }
}

fn delay(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let (deed, some) = (Action::Delay(injection.millis(1, 300)), target.some(injection));
    for node in &some {
        for way in [Way::Requests, Way::Replies] {
            node.proxy.rule(Rule::on(way, deed.clone()));
        }
    }
    pass(injection.millis(50, 1_000));
    some.iter().for_each(|node| node.proxy.heal());
}

fn black_hole(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let both = [Way::Requests, Way::Replies];
    let ways = *injection.rng.pick(&[&both[..], &both[..1], &both[1..]]);
    let some = target.some(injection);
    some.iter().for_each(|node| node.proxy.black_hole(ways));
    pass(injection.millis(20, 1_500));
    some.iter().for_each(|node| node.proxy.heal());
}

fn swallow(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let what = *injection.rng.pick(&["granted", "freed", "renewed", "raised", "-t1:"]);
    let some = target.some(injection);
    for node in &some {
        node.proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing(what).once());
    }
    pass(injection.millis(20, 200));
    some.iter().for_each(|node| node.proxy.heal());
}

fn script_flush(target: &QuorumTarget, injection: &mut Injection<'_>) {
    target.some(injection).iter().for_each(|node| node.tell(&["SCRIPT", "FLUSH"]));
}

fn stop(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let some = target.some(injection);
    some.iter().for_each(|node| node.server.pause());
    pass(injection.millis(10, 1_200));
    some.iter().for_each(|node| node.server.go_on());
}

fn restart(target: &QuorumTarget, injection: &mut Injection<'_>) {
    target.some(injection).iter().for_each(|node| node.server.restart());
}

fn kill(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let some = target.some(injection);
    some.iter().for_each(|node| node.server.kill());
    pass(injection.millis(10, 2_000));
    some.iter().for_each(|node| node.server.restart());
}

/// A restarted node is not asked for votes until every vote that it lost has expired.
fn restart_empty(target: &QuorumTarget, injection: &mut Injection<'_>) {
    target.some(injection).iter().for_each(|node| node.server.restart_empty());
}

fn forget(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let some = target.some(injection);
    injection.take_all_away(|| some.iter().for_each(|node| node.server.restart()));
}

fn flush(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let some = target.some(injection);
    injection.take_all_away(|| some.iter().for_each(|node| node.tell(&["FLUSHALL"])));
}

fn delete(target: &QuorumTarget, injection: &mut Injection<'_>) {
    let (key, some) = (injection.key(), target.some(injection));
    let lock = format!("{LOCK}{key}");
    injection.take_away(key, || some.iter().for_each(|node| node.tell(&["DEL", &lock])));
}

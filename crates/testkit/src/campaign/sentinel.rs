//! A master with replicas that Sentinels watch, and failovers.

use super::arena::{Arena, Fault, Strike};
use super::redis::{LOCK, label};
use crate::servers::{RedisServer, Reply, SentinelSet};
use crate::wait::pass;

/// A set of the campaign's own. The first Sentinel is left alone: the campaign asks it.
pub struct SentinelArena(SentinelSet);

impl SentinelArena {
    /// Failovers. They can lose what no replica had yet, and with it a lock.
    pub const FAULTS: [Fault<Self>; 4] = [
        Fault::new("failover by hand", by_hand),
        Fault::new("master killed, back empty", kill),
        Fault::new("master stopped until another took over", stop),
        Fault::new("Sentinel killed, back", kill_sentinel),
    ];

    /// Three Sentinels, a master, two replicas.
    pub fn start() -> Self {
        SentinelArena(SentinelSet::start())
    }

    fn ask(&self, words: &[&str]) -> Option<Reply> {
        self.0.master().try_client().ok()?.try_command(words).ok()
    }

    /// Leaves the master for another by `deed`, and has `back` bring the former one back.
    fn switch(&self, deed: fn(&RedisServer), back: fn(&RedisServer)) {
        let before = self.0.master();
        deed(before);
        self.0.wait_for_another(before.port());
        back(before);
        self.0.wait_until_whole();
    }
}

impl Arena for SentinelArena {
    fn url(&self) -> String {
        self.0.url()
    }

    fn heal(&self) {
        self.0.wait_until_whole();
    }

    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>> {
        let locks: Vec<String> = keys.iter().map(|key| format!("{LOCK}{key}")).collect();
        let words: Vec<&str> =
            std::iter::once("MGET").chain(locks.iter().map(String::as_str)).collect();
        let Reply::Many(values) = self.ask(&words)? else { return None };
        Some(values.iter().map(label).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let Some(Reply::Many(keys)) = self.ask(&["KEYS", "*"]) else { return Vec::new() };
        let fence = Reply::Text("tenure:fence".into());
        keys.iter().filter(|key| **key != fence).map(|key| format!("{key:?}")).collect()
    }
}

fn by_hand(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.0.fail_over();
    arena.0.wait_until_whole();
}

fn kill(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.switch(RedisServer::kill, RedisServer::restart);
}

fn stop(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.switch(RedisServer::pause, RedisServer::go_on);
}

fn kill_sentinel(arena: &SentinelArena, strike: &mut Strike<'_>) {
    let sentinel = strike.dice.pick(&arena.0.sentinels()[1..]);
    sentinel.kill();
    pass(strike.millis(100, 2_000));
    sentinel.restart();
    arena.0.wait_until_whole();
}

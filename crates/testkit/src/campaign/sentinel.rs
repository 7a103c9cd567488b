//! A master with replicas that Sentinels watch, and failovers.

use super::arena::{Arena, Fault, Strike};
use super::places::Places;
use super::redis::{LOCK, label, text};
use crate::servers::{RedisServer, Reply, SentinelSet};
use crate::wait::pass;

/// A set of the campaign's own. The first Sentinel is left alone: the campaign asks it.
pub struct SentinelArena {
    set: SentinelSet,
    places: Places,
}

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
        SentinelArena { set: SentinelSet::start(), places: Places::default() }
    }

    fn ask(&self, words: &[&str]) -> Option<Reply> {
        self.set.master().try_client().ok()?.try_command(words).ok()
    }

    /// Leaves the master for another by `deed`, and has `back` bring the former one back.
    fn switch(&self, deed: fn(&RedisServer), back: fn(&RedisServer)) {
        let before = self.set.master();
        self.places.master_dies();
        deed(before);
        self.set.wait_for_another(before.port());
        back(before);
        self.set.wait_until_whole();
    }
}

impl Arena for SentinelArena {
    fn url(&self) -> String {
        self.set.url()
    }

    fn heal(&self) {
        self.set.wait_until_whole();
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
        let names = keys.iter().filter_map(text).filter(|key| *key != "tenure:fence");
        let left: Vec<String> = names.map(Into::into).collect();
        for key in &left {
            self.places.clear(&self.url(), key, |words| self.ask(words));
        }
        left
    }
}

fn by_hand(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.set.fail_over();
    arena.set.wait_until_whole();
}

fn kill(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.switch(RedisServer::kill, RedisServer::restart);
}

fn stop(arena: &SentinelArena, _: &mut Strike<'_>) {
    arena.switch(RedisServer::pause, RedisServer::go_on);
}

fn kill_sentinel(arena: &SentinelArena, strike: &mut Strike<'_>) {
    let sentinel = strike.dice.pick(&arena.set.sentinels()[1..]);
    sentinel.kill();
    pass(strike.millis(100, 2_000));
    sentinel.restart();
    arena.set.wait_until_whole();
}

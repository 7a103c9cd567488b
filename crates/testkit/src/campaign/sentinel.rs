//! A master with replicas and Sentinels, and failovers.

use super::observer::{Observer, text};
use super::queue_leftovers::Places;
use super::target::{Fault, Injection, Target};
use crate::judge::Snapshot;
use crate::servers::{RedisServer, Reply, SentinelSet};
use crate::wait::pass;

/// Servers that the campaign starts for itself. The first Sentinel gets no faults, because the campaign asks
/// it for the master.
pub struct SentinelTarget {
    set: SentinelSet,
    observer: Observer,
    places: Places,
}

impl SentinelTarget {
    /// Failovers. They can lose data that no replica has received yet, and a lock with it.
    pub const FAULTS: [Fault<Self>; 4] = [
        Fault::new("failover by hand", by_hand),
        Fault::new("master killed, back empty", kill),
        Fault::new("master stopped until another took over", stop),
        Fault::new("Sentinel killed, back", kill_sentinel),
    ];

    /// Starts three Sentinels, a master and two replicas.
    pub fn start() -> Self {
        let (observer, places) = Default::default();
        SentinelTarget { set: SentinelSet::start(), observer, places }
    }

    fn ask(&self, words: &[&str]) -> Option<Reply> {
        self.observer.ask(self.set.master(), words)
    }

    /// Makes another node the master by `deed`, then restores the former master by `back`.
    fn switch(&self, deed: fn(&RedisServer), back: fn(&RedisServer)) {
        let before = self.set.master();
        self.places.master_dies();
        deed(before);
        self.set.wait_for_another(before.port());
        back(before);
        self.set.wait_until_whole();
    }
}

impl Target for SentinelTarget {
    fn url(&self) -> String {
        self.set.url()
    }

    fn heal(&self) {
        self.set.wait_until_whole();
    }

    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>> {
        self.observer.look(self.set.master(), keys)
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

fn by_hand(target: &SentinelTarget, _: &mut Injection<'_>) {
    target.set.fail_over();
    target.set.wait_until_whole();
}

fn kill(target: &SentinelTarget, _: &mut Injection<'_>) {
    target.switch(RedisServer::kill, RedisServer::restart);
}

fn stop(target: &SentinelTarget, _: &mut Injection<'_>) {
    target.switch(RedisServer::pause, RedisServer::go_on);
}

fn kill_sentinel(target: &SentinelTarget, injection: &mut Injection<'_>) {
    let sentinel = injection.rng.pick(&target.set.sentinels()[1..]);
    sentinel.kill();
    pass(injection.millis(100, 2_000));
    sentinel.restart();
    target.set.wait_until_whole();
}

//! What an engine must provide for a campaign: its servers, and their faults.

use std::fmt;
use std::time::Duration;

use crate::history::{Event, Recorder};
use crate::judge::Snapshot;
use crate::rng::Rng;

/// A server and the way to it.
pub trait Target: Send + Sync {
    /// The URL for contenders.
    fn url(&self) -> String;

    /// Ends every fault and repairs the servers.
    fn heal(&self);

    /// Each key as stored on the server; `None` if the server does not reply.
    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>>;

    /// The data of locks on the server. Called when no process holds a lock.
    fn leftovers(&self) -> Vec<String>;
}

/// A server that the campaign did not start. It gets no faults; only contenders do.
#[derive(Clone, Debug)]
pub struct Elsewhere(String);

impl Elsewhere {
    /// The server at `url`, of any engine.
    pub fn at(url: impl Into<String>) -> Self {
        Elsewhere(url.into())
    }
}

impl Target for Elsewhere {
    fn url(&self) -> String {
        self.0.clone()
    }

    fn heal(&self) {}

    fn look(&self, _: &[String]) -> Option<Vec<Snapshot>> {
        None
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A fault: a function that causes it and returns when it is over.
pub struct Fault<A> {
    name: &'static str,
    injection: fn(&A, &mut Injection<'_>),
}

impl<A> Fault<A> {
    /// A fault with its name in the figures.
    pub const fn new(name: &'static str, injection: fn(&A, &mut Injection<'_>)) -> Self {
        Fault { name, injection }
    }

    /// The name in the figures.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn inject(&self, target: &A, with: &mut Injection<'_>) {
        (self.injection)(target, with);
    }
}

impl<A> fmt::Debug for Fault<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fault").field(&self.name).finish()
    }
}

/// What a fault function works with.
#[derive(Debug)]
pub struct Injection<'a> {
    /// The random numbers for its choices.
    pub rng: &'a mut Rng,
    keys: &'a [String],
    recorder: &'a Recorder,
}

impl<'a> Injection<'a> {
    pub(super) fn new(rng: &'a mut Rng, keys: &'a [String], recorder: &'a Recorder) -> Self {
        Injection { rng, keys, recorder }
    }

    /// A random duration between two bounds in milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.rng.between(Duration::from_millis(least), Duration::from_millis(most))
    }

    /// A random key.
    pub fn key(&mut self) -> &'a str {
        self.rng.pick(self.keys).as_str()
    }

    /// Runs `deed`, which deletes the lock `key` on the server. Recorded before and after, because a lock
    /// that is granted in between may be deleted too.
    pub fn take_away(&self, key: &str, deed: impl FnOnce()) {
        self.note(key);
        deed();
        self.note(key);
    }

    /// Runs `deed`, which deletes every lock on the server.
    pub fn take_all_away(&self, deed: impl FnOnce()) {
        self.keys.iter().for_each(|key| self.note(key));
        deed();
        self.keys.iter().for_each(|key| self.note(key));
    }

    fn note(&self, key: &str) {
        self.recorder.note("fault", 0, key, Event::TakenAway);
    }
}

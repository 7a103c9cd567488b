//! What a backend brings to a campaign: a place, and what can go wrong with it.

use std::fmt;
use std::time::Duration;

use super::trace::Evidence;
use crate::dice::Dice;
use crate::history::{Event, Recorder};

/// A server and the way to it.
pub trait Arena: Send + Sync {
    /// How contenders reach it.
    fn url(&self) -> String;

    /// Makes everything whole again: what a fault left behind ends here.
    fn heal(&self);

    /// The label of the claim that holds each key, as the server has it; `None` if it does not answer.
    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>>;

    /// What the server keeps of locks, to be asked when nobody holds one any more.
    fn leftovers(&self) -> Vec<String>;

    /// What the servers know of the end of leases, to be asked when all is over: what overlaps are traced by.
    fn evidence(&self) -> Evidence {
        Evidence::default()
    }
}

/// A server that somebody else started, and that is left alone: only contenders can be struck.
#[derive(Clone, Debug)]
pub struct Elsewhere(String);

impl Elsewhere {
    /// The server at `url`, of any engine.
    pub fn at(url: impl Into<String>) -> Self {
        Elsewhere(url.into())
    }
}

impl Arena for Elsewhere {
    fn url(&self) -> String {
        self.0.clone()
    }

    fn heal(&self) {}

    fn holders(&self, _: &[String]) -> Option<Vec<Option<String>>> {
        None
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Something that goes wrong, and is made so by a function that returns when it is over.
pub struct Fault<A> {
    name: &'static str,
    strike: fn(&A, &mut Strike<'_>),
}

impl<A> Fault<A> {
    /// A fault with its name in the figures.
    pub const fn new(name: &'static str, strike: fn(&A, &mut Strike<'_>)) -> Self {
        Fault { name, strike }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn strike(&self, arena: &A, with: &mut Strike<'_>) {
        (self.strike)(arena, with);
    }
}

impl<A> fmt::Debug for Fault<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fault").field(&self.name).finish()
    }
}

/// What a fault has to work with.
#[derive(Debug)]
pub struct Strike<'a> {
    /// The chance that its choices follow from.
    pub dice: &'a mut Dice,
    keys: &'a [String],
    recorder: &'a Recorder,
}

impl<'a> Strike<'a> {
    pub(super) fn new(dice: &'a mut Dice, keys: &'a [String], recorder: &'a Recorder) -> Self {
        Strike { dice, keys, recorder }
    }

    /// A time between two others, in milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        self.dice.between(Duration::from_millis(least), Duration::from_millis(most))
    }

    /// One of the keys.
    pub fn key(&mut self) -> &'a str {
        self.dice.pick(self.keys).as_str()
    }

    /// Does what makes the server forget `key`. Noted before and after: what is granted in between
    /// may be gone too.
    pub fn take_away(&self, key: &str, deed: impl FnOnce()) {
        self.note(key);
        deed();
        self.note(key);
    }

    /// Does what makes the server forget every key.
    pub fn take_all_away(&self, deed: impl FnOnce()) {
        self.keys.iter().for_each(|key| self.note(key));
        deed();
        self.keys.iter().for_each(|key| self.note(key));
    }

    fn note(&self, key: &str) {
        self.recorder.note("fault", 0, key, Event::TakenAway);
    }
}

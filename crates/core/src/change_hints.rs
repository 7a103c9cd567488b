//! Hints that locks have changed, from an engine that can report changes.
//!
//! In: change messages of an engine, at any rate and on any thread. Out: for each key, when the first and the
//! last hint arrived since the last poll. A key that changes a thousand times between two polls is one entry,
//! so a slow watch needs little memory and never slows down the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use crate::key::Key;
use crate::time::{Clock, Time};

/// How many keys are remembered one by one. Above that, polling all locks is not more expensive.
const KEYS_MAX: usize = 10_000;

/// A message of an engine to a watch: it is worth a poll. It contains no state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// This lock was granted, renewed, released, handed over, or has ended.
    Changed(Key),
    /// Hints may have been missed: poll all locks.
    All,
    /// Hints may have been missed, and the engine may have lost locks that were not released.
    Forgot,
}

/// Makes the two ends of a stream of hints; `clock` gives their times.
pub fn hints(clock: &Clock) -> (HintSender, Hints) {
    let shared =
        Arc::new(Shared { clock: clock.clone(), pending: Mutex::default(), news: Notify::new() });
    let heard = Arc::downgrade(&shared);
    let ended = Arc::new(Ended(heard.clone()));
    (HintSender { shared: heard, _ended: ended }, Hints { shared, _keeper: None })
}

/// The sender, used by the engine. Clones send to the same stream; it ends when all are dropped.
#[derive(Clone, Debug)]
pub struct HintSender {
    shared: Weak<Shared>,
    _ended: Arc<Ended>,
}

impl HintSender {
    /// Sends a hint to the watch, if it still exists. Does not block.
    pub fn send(&self, hint: Hint) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = shared.clock.now();
        shared.pending().add(hint, now);
        shared.news.notify_one();
    }

    /// Whether the watch still exists.
    pub fn is_heard(&self) -> bool {
        self.shared.strong_count() > 0
    }
}

/// The receiver, used by the watch.
#[derive(Debug)]
pub struct Hints {
    shared: Arc<Shared>,
    _keeper: Option<AbortOnDrop>,
}

impl Hints {
    /// Aborts `task`, which produces the hints, when this value is dropped.
    pub fn kept_by(mut self, task: tokio::task::AbortHandle) -> Self {
        self._keeper = Some(AbortOnDrop(task));
        self
    }

    /// Waits until there are new hints.
    pub(crate) async fn news(&self) {
        self.shared.news.notified().await;
    }

    /// Returns the hints since the last call.
    pub(crate) fn take(&self) -> PendingHints {
        let mut pending = self.shared.pending();
        let over = pending.over;
        std::mem::replace(&mut *pending, PendingHints { over, ..PendingHints::default() })
    }
}

/// Aborts a task when dropped.
#[derive(Debug)]
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    pending: Mutex<PendingHints>,
    news: Notify,
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, PendingHints> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the stream as ended when dropped.
#[derive(Debug)]
struct Ended(Weak<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.pending().over = true;
        shared.news.notify_one();
    }
}

/// The hints that have arrived, merged for the next poll.
#[derive(Debug, Default)]
pub(crate) struct PendingHints {
    pub(crate) changed: HashMap<Key, HintTimes>,
    pub(crate) all: bool,
    pub(crate) forgot: bool,
    /// All senders are dropped.
    pub(crate) over: bool,
}

/// When the first and the last hint for a key arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HintTimes {
    pub(crate) first: Time,
    pub(crate) last: Time,
}

impl PendingHints {
    fn add(&mut self, hint: Hint, now: Time) {
        match hint {
            Hint::Changed(key) => {
                let heard = self.changed.entry(key).or_insert(HintTimes { first: now, last: now });
                heard.last = now;
            }
            Hint::All => self.all = true,
            Hint::Forgot => (self.all, self.forgot) = (true, true),
        }
        if self.changed.len() > KEYS_MAX {
            self.all = true;
        }
        if self.all {
            self.changed.clear();
        }
    }

    /// Adds hints that arrived later.
    pub(crate) fn add_all(&mut self, later: PendingHints) {
        (self.all, self.forgot) = (self.all || later.all, self.forgot || later.forgot);
        self.over |= later.over;
        for (key, heard) in later.changed {
            self.changed.entry(key).and_modify(|known| known.last = heard.last).or_insert(heard);
        }
        if self.all {
            self.changed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    /// A key has one entry, with the times of its first and its last hint.
    #[tokio::test]
    async fn hints_are_gathered() {
        let clock = Clock::manual();
        let (hinter, hints) = hints(&clock);
        let first = clock.now();
        hinter.send(Hint::Changed(key("a")));
        clock.advance(Duration::from_secs(1));
        hinter.send(Hint::Changed(key("a")));
        hints.news().await;
        let pending = hints.take();
        assert_eq!(pending.changed[&key("a")], HintTimes { first, last: clock.now() });
        assert!(hints.take().changed.is_empty(), "taken is taken");
    }

    /// Too many keys, or missed hints, mean a poll of all locks; memory stays bounded.
    #[test]
    fn too_much_is_everything() {
        let (hinter, hints) = hints(&Clock::manual());
        (0..=KEYS_MAX).for_each(|n| hinter.send(Hint::Changed(key(&n.to_string()))));
        hinter.send(Hint::Changed(key("more")));
        let pending = hints.take();
        assert!(pending.all && !pending.forgot && pending.changed.is_empty());
        hinter.send(Hint::Forgot);
        let pending = hints.take();
        assert!(pending.all && pending.forgot);
    }

    /// The end of the stream is reported, by every later call too.
    #[tokio::test]
    async fn the_end_is_reported() {
        let (hinter, hints) = hints(&Clock::manual());
        let clone = hinter.clone();
        drop(hinter);
        assert!(!hints.take().over);
        drop(clone);
        hints.news().await;
        assert!(hints.take().over && hints.take().over);
    }
}

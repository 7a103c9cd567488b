//! Hints that locks have changed, from an engine that can tell.
//!
//! In: what an engine hears, at any rate and on any thread. Out: for each key, when it was first and
//! last heard of since the last look. A key that changes a thousand times between two looks is one
//! entry, so a watch that is slow costs neither memory nor the engine's patience.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Key;
use crate::time::{Clock, Time};

/// How many keys are remembered one by one. Above that, looking at all of them is no dearer.
const KEYS_MAX: usize = 10_000;

/// What an engine tells a watch. A hint says that it is worth a look, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// This lock was granted, renewed, released, handed over, or has ended.
    Changed(Key),
    /// Hints may have been missed: look at all of them.
    All,
    /// The same, and the engine may have forgotten locks that nobody released.
    Forgot,
}

/// Makes the two ends of a stream of hints, which are dated by `clock`.
pub fn hints(clock: &Clock) -> (Hinter, Hints) {
    let shared =
        Arc::new(Shared { clock: clock.clone(), told: Mutex::default(), news: Notify::new() });
    let ended = Arc::new(Ended(shared.clone()));
    (Hinter { shared: shared.clone(), _ended: ended }, Hints { shared, _keeper: None })
}

/// The engine's end. Clones are the same end; when all are dropped, nothing more is told.
#[derive(Clone, Debug)]
pub struct Hinter {
    shared: Arc<Shared>,
    _ended: Arc<Ended>,
}

impl Hinter {
    /// Tells the watch, if there still is one. Does not block.
    pub fn tell(&self, hint: Hint) {
        let now = self.shared.clock.now();
        self.shared.told().add(hint, now);
        self.shared.news.notify_one();
    }
}

/// The watch's end.
#[derive(Debug)]
pub struct Hints {
    shared: Arc<Shared>,
    _keeper: Option<Keeper>,
}

impl Hints {
    /// Ends `task` when the watch is over: whatever keeps the hints coming.
    pub fn kept_by(mut self, task: tokio::task::AbortHandle) -> Self {
        self._keeper = Some(Keeper(task));
        self
    }

    /// Waits until there is something to take.
    pub(crate) async fn news(&self) {
        self.shared.news.notified().await;
    }

    /// What has been told since it was last asked.
    pub(crate) fn take(&self) -> Told {
        let mut told = self.shared.told();
        let over = told.over;
        std::mem::replace(&mut *told, Told { over, ..Told::default() })
    }
}

/// Ends a task when dropped.
#[derive(Debug)]
struct Keeper(tokio::task::AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    told: Mutex<Told>,
    news: Notify,
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that nobody tells any more, when dropped.
#[derive(Debug)]
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.told().over = true;
        self.0.news.notify_one();
    }
}

/// What was told, as far as it matters for a look.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) changed: HashMap<Key, Heard>,
    pub(crate) all: bool,
    pub(crate) forgot: bool,
    /// Nobody tells any more.
    pub(crate) over: bool,
}

/// When a key was first and last told to have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) first: Time,
    pub(crate) last: Time,
}

impl Told {
    fn add(&mut self, hint: Hint, now: Time) {
        match hint {
            Hint::Changed(key) => {
                let heard = self.changed.entry(key).or_insert(Heard { first: now, last: now });
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

    /// Adds what was told later.
    pub(crate) fn add_all(&mut self, later: Told) {
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

    /// A key is remembered once, with the first and the last time it was heard of.
    #[tokio::test]
    async fn hints_are_gathered() {
        let clock = Clock::manual();
        let (hinter, hints) = hints(&clock);
        let first = clock.now();
        hinter.tell(Hint::Changed(key("a")));
        clock.advance(Duration::from_secs(1));
        hinter.tell(Hint::Changed(key("a")));
        hints.news().await;
        let told = hints.take();
        assert_eq!(told.changed[&key("a")], Heard { first, last: clock.now() });
        assert!(hints.take().changed.is_empty(), "taken is taken");
    }

    /// Too many keys, or missed hints, are a look at everything; and memory stays bounded.
    #[test]
    fn too_much_is_everything() {
        let (hinter, hints) = hints(&Clock::manual());
        (0..=KEYS_MAX).for_each(|n| hinter.tell(Hint::Changed(key(&n.to_string()))));
        hinter.tell(Hint::Changed(key("more")));
        let told = hints.take();
        assert!(told.all && !told.forgot && told.changed.is_empty());
        hinter.tell(Hint::Forgot);
        let told = hints.take();
        assert!(told.all && told.forgot);
    }

    /// The end of the engine's side is told, and stays told.
    #[tokio::test]
    async fn the_end_is_told() {
        let (hinter, hints) = hints(&Clock::manual());
        let clone = hinter.clone();
        drop(hinter);
        assert!(!hints.take().over);
        drop(clone);
        hints.news().await;
        assert!(hints.take().over && hints.take().over);
    }
}

//! Watches on the claims before ours, kept open for a moment after their event.
//!
//! In: a watch that has reported its event. Out: the same watch, for the next wait behind the same key. Where
//! processes take turns, the predecessor is mostly the same, under the same name.
//!
//! A new watch costs the server a stream and us a round trip. If something is written while the watch begins,
//! the server sends that event only in its next round, up to a tenth of a second later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::time::{Clock, Time};

use crate::link::Watch;

/// How long an unused watch is kept. If turns are further apart, the cost of a new watch does not matter.
const KEPT: Duration = Duration::from_secs(1);
/// How many watches are kept for one lock. The predecessor sometimes alternates between two. Each kept watch
/// gets an event for every turn of its claim, which costs the server and us.
const KEPT_OF_A_LOCK: usize = 2;
/// How many watches are kept at most: each is a stream on the connection for requests.
const KEPT_MAX: usize = 64;

/// Open watches, by the key that each one watches. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchCache(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    kept: HashMap<Bytes, (Watch, Time)>,
    /// A task is running that closes unused watches.
    swept: bool,
}

impl WatchCache {
    /// A watch on `key`, which is a key under `queue`. It has received every event since it was cached.
    pub(crate) fn take(&self, queue: &[u8], key: &Bytes) -> Option<Watch> {
        let mut state = self.state();
        let (watch, until) = state.kept.remove(key)?;
        // Same predecessor as in the last wait: drop the older cached watches of this lock.
        if state.of_lock(queue).all(|(_, (_, other))| *other <= until) {
            state.kept.retain(|other, _| !other.starts_with(queue));
        }
        watch.is_open().then_some(watch)
    }

    /// Keeps a watch on `key`, which is a key under `queue`, for a while.
    pub(crate) fn keep(&self, queue: &[u8], key: Bytes, watch: Watch, clock: &Clock) {
        let mut state = self.state();
        state.make_room(queue);
        if state.kept.len() < KEPT_MAX {
            state.kept.insert(key, (watch, clock.now().after(KEPT)));
        }
        if !std::mem::replace(&mut state.swept, true) {
            tokio::spawn(self.clone().sweep(clock.clone()));
        }
    }

    /// Closes all watches. A watch that is cached later is closed by the sweep.
    pub(crate) fn close(&self) {
        self.state().kept.clear();
    }

    /// Closes watches that were unused for a while, until none is left.
    async fn sweep(self, clock: Clock) {
        let _ended = Sweeping(self.clone());
        loop {
            clock.sleep(KEPT).await;
            let (mut state, now) = (self.state(), clock.now());
            state.kept.retain(|_, (_, until)| now < *until);
            if state.kept.is_empty() {
                state.swept = false;
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of_lock(&self, queue: &[u8]) -> impl Iterator<Item = (&Bytes, &(Watch, Time))> {
        self.kept.iter().filter(move |(key, _)| key.starts_with(queue))
    }

    /// Closes the watch under `queue` that was unused for longest, if the limit for one lock is reached.
    fn make_room(&mut self, queue: &[u8]) {
        let known = self.of_lock(queue).map(|(key, (_, until))| (*until, key.clone()));
        let known: Vec<_> = known.collect();
        if known.len() >= KEPT_OF_A_LOCK
            && let Some((_, oldest)) = known.into_iter().min()
        {
            self.kept.remove(&oldest);
        }
    }
}

/// Marks the sweep as ended on drop, also if its runtime ends, so that another can begin. Two at once do no
/// harm.
struct Sweeping(WatchCache);

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.0.state().swept = false;
    }
}

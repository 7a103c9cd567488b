//! Watches on the claims before ours, kept open for a moment after their news.
//!
//! In: a watch that has told what it was for. Out: the same watch, for whoever waits behind the same key
//! next. Where processes take turns it is mostly the same one that comes before us, under the same name.
//!
//! A watch that is begun anew costs the server a stream and us a round trip; and where something is written
//! while it begins, the server tells of it only at its next round, up to a tenth of a second later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::time::{Clock, Time};

use crate::link::Watching;

/// For how long a watch is kept that nobody uses: turns that come less often can bear its cost.
const KEPT: Duration = Duration::from_secs(1);
/// How many are kept of one lock. Who comes before us changes between two at times; more would all be told of
/// every turn of theirs, which costs the server and us.
const KEPT_OF_A_LOCK: usize = 2;
/// How many are kept at most: each is a stream on the connection that carries requests.
const KEPT_MAX: usize = 64;

/// Watches that are open, by the key that each is about. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ears(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    kept: HashMap<Bytes, (Watching, Time)>,
    /// Somebody sees to it that what is kept ends in time.
    swept: bool,
}

impl Ears {
    /// A watch on `key`, one of those under `queue`, that has been told of everything since it was kept.
    pub(crate) fn take(&self, queue: &[u8], key: &Bytes) -> Option<Watching> {
        let mut state = self.state();
        let (watching, until) = state.kept.remove(key)?;
        // Behind the same one as the last time: those before it are of an order that has passed.
        if state.of_lock(queue).all(|(_, (_, other))| *other <= until) {
            state.kept.retain(|other, _| !other.starts_with(queue));
        }
        watching.goes_on().then_some(watching)
    }

    /// Keeps a watch on `key`, one of those under `queue`, for a while.
    pub(crate) fn keep(&self, queue: &[u8], key: Bytes, watching: Watching, clock: &Clock) {
        let mut state = self.state();
        state.make_room(queue);
        if state.kept.len() < KEPT_MAX {
            state.kept.insert(key, (watching, clock.now().after(KEPT)));
        }
        if !std::mem::replace(&mut state.swept, true) {
            tokio::spawn(self.clone().sweep(clock.clone()));
        }
    }

    /// Lets go of all, and of what is kept later as soon as it may be.
    pub(crate) fn close(&self) {
        self.state().kept.clear();
    }

    /// Lets go of what nobody has used for a while, until nothing is left.
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
    fn of_lock(&self, queue: &[u8]) -> impl Iterator<Item = (&Bytes, &(Watching, Time))> {
        self.kept.iter().filter(move |(key, _)| key.starts_with(queue))
    }

    /// Lets go of the one under `queue` that was not used for longest, if there are as many as may be.
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

/// Lets another begin when this one ends, also with its runtime. Two at once do no harm.
struct Sweeping(Ears);

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.0.state().swept = false;
    }
}

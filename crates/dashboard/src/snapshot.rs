//! All locks as the last look saw them.
//!
//! In: the answer of `Locker::list`. Out: a [`Snapshot`], sorted for the page, with what it takes to judge each holder.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::UnixMillis;
use tenure_core::{Holding, Key, LockInfo, Waiting};
use tokio::time::Instant;

use crate::lease_signs::LeaseSigns;
use crate::secrets;

/// More locks are not kept: the page says how many it leaves out.
pub(crate) const LOCKS_MAX: usize = 100_000;

/// One look at all locks.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The most waiters first.
    pub(crate) locks: Vec<Arc<Seen>>,
    by_key: HashMap<Key, usize>,
    /// How many locks were left out.
    pub(crate) left_out: usize,
    /// When the answer came; `None` before the first look.
    pub(crate) at: Option<Instant>,
    /// When the last look ended, also if it failed.
    pub(crate) tried: Option<Instant>,
    /// Why the last look failed, in one line.
    pub(crate) failure: Option<String>,
    /// Counts the looks.
    pub(crate) number: u64,
}

/// One lock at the last look.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) info: LockInfo,
    /// One for each holder, in the same order.
    pub(crate) signs: Vec<LeaseSigns>,
}

impl Snapshot {
    /// Before the first look.
    pub(crate) fn none() -> Self {
        let (locks, by_key) = Default::default();
        Snapshot { locks, by_key, left_out: 0, at: None, tried: None, failure: None, number: 0 }
    }

    /// The look whose answer came at `now`.
    pub(crate) fn after(&self, mut found: Vec<LockInfo>, now: Instant) -> Self {
        found.sort_by_cached_key(order);
        let left_out = found.len().saturating_sub(LOCKS_MAX);
        found.truncate(LOCKS_MAX);
        let seen = |info| Arc::new(Seen::new(info, self, now));
        let locks: Vec<_> = found.into_iter().map(seen).collect();
        let index = |(index, seen): (usize, &Arc<Seen>)| (seen.info.key.clone(), index);
        let by_key = locks.iter().enumerate().map(index).collect();
        let (at, number) = (Some(now), self.number + 1);
        Snapshot { locks, by_key, left_out, at, tried: at, failure: None, number }
    }

    /// The look failed: the locks of the last one stay.
    pub(crate) fn failed(&self, why: String) -> Self {
        let (locks, by_key) = (self.locks.clone(), self.by_key.clone());
        let (tried, failure) = (Some(Instant::now()), Some(why));
        Snapshot { locks, by_key, tried, failure, number: self.number + 1, ..*self }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Seen>> {
        self.by_key.get(key).map(|index| &self.locks[*index])
    }

    /// How long ago the answer came.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.at.map(|at| at.elapsed())
    }

    /// Counted over all locks.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for seen in &self.locks {
            totals.held += usize::from(seen.is_held());
            let waiters = seen.info.waiters.as_ref();
            totals.waiting += waiters.map_or(0, Vec::len);
            totals.waiters_known |= waiters.is_some();
            totals.longest_wait = totals.longest_wait.max(seen.longest_wait());
        }
        totals
    }
}

/// The numbers of the cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    /// Whether the engine told the waiters of at least one lock.
    pub(crate) waiters_known: bool,
    pub(crate) longest_wait: Option<Duration>,
}

impl Seen {
    fn new(info: LockInfo, before: &Snapshot, now: Instant) -> Self {
        let info = secrets::of_lock(info);
        let before = before.get(&info.key);
        let sign = |holding: &Holding| {
            let known = before.and_then(|before| before.signs_of(holding));
            LeaseSigns::seen(holding, known, now)
        };
        let signs = info.holders.iter().map(sign).collect();
        Seen { info, signs }
    }

    /// What was seen of the same claim.
    fn signs_of(&self, holding: &Holding) -> Option<&LeaseSigns> {
        let is_same = |one: &Holding| {
            let holder = |of: &Holding| (of.holder.process.clone(), of.holder.since);
            one.token == holding.token && holder(one) == holder(holding)
        };
        let at = self.info.holders.iter().position(is_same)?;
        self.signs.get(at)
    }

    /// Whether the lock has a holder, and is not only kept closed.
    pub(crate) fn is_held(&self) -> bool {
        self.info.holders.iter().any(|holding| !holding.holder.cooling_down)
    }

    pub(crate) fn waiters(&self) -> &[Waiting] {
        self.info.waiters.as_deref().unwrap_or_default()
    }

    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        oldest(self.waiters()).map(UnixMillis::elapsed)
    }
}

fn oldest(waiters: &[Waiting]) -> Option<UnixMillis> {
    waiters.iter().filter_map(|waiting| waiting.since).min()
}

/// The most waiters first, then the longest wait, then the longest hold, then the key.
fn order(info: &LockInfo) -> (Reverse<usize>, u64, u64, Key) {
    let waiters = info.waiters.as_deref().unwrap_or_default();
    let since = info.holders.iter().filter_map(|holding| holding.holder.since).min();
    let at = |moment: Option<UnixMillis>| moment.map_or(u64::MAX, |moment| moment.0);
    (Reverse(waiters.len()), at(oldest(waiters)), at(since), info.key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Holder;

    fn lock(name: &str, held_for: u64, waiters: &[u64]) -> LockInfo {
        let ago = |secs: &u64| Some(UnixMillis::now().before(Duration::from_secs(*secs)));
        let mut holder = Holder::unknown();
        holder.since = ago(&held_for);
        let queue = waiters.iter().map(|secs| Waiting::new(Holder::unknown(), ago(secs))).collect();
        LockInfo::new(Key::new(name).unwrap(), vec![Holding::new(holder, None, None)], Some(queue))
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.locks.iter().map(|seen| seen.info.key.as_str()).collect()
    }

    /// F2: the lock that most claims wait for is the first, then the one that is waited for the longest.
    #[tokio::test]
    async fn f2_the_worst_is_first() {
        let found =
            vec![lock("a", 9, &[]), lock("b", 1, &[5]), lock("c", 1, &[3, 4]), lock("d", 1, &[7])];
        let snapshot = Snapshot::none().after(found, Instant::now());
        assert_eq!(names(&snapshot), ["c", "d", "b", "a"]);
        let totals = snapshot.totals();
        assert_eq!((totals.held, totals.waiting, totals.waiters_known), (4, 4, true));
        assert_eq!(totals.longest_wait.map(|wait| wait.as_secs()), Some(7));
    }

    /// A look that failed keeps the locks of the one before, and says why.
    #[tokio::test]
    async fn a_failure_keeps_the_locks() {
        let snapshot = Snapshot::none().after(vec![lock("a", 9, &[])], Instant::now());
        let failed = snapshot.failed("refused".into());
        assert_eq!((names(&failed), failed.failure.as_deref()), (vec!["a"], Some("refused")));
        assert!(failed.get(&Key::new("a").unwrap()).is_some() && failed.number == 2);
    }
}

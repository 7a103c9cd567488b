//! Releases that may have to be repeated.
//!
//! In: released claims, and the epoch of the server in which they were released. Out: the claims to release
//! again on another server.
//!
//! A former master answers until it learns of the failover, and all writes to it in that time are lost. A
//! lock that was released there may still be held on the new master, for the rest of its ttl. So after a move
//! the recent releases are repeated there. That is harmless: each release is for one token, which is not used
//! any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::Claim;
use tenure_core::time::Time;

/// How long a release is kept: a former master was seen to answer for eleven seconds.
const KEPT: Duration = Duration::from_secs(15);
/// How many releases are kept. Locks of older ones end with their ttl.
const KEPT_MOST: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct ReleaseLog(Mutex<VecDeque<LoggedRelease>>);

/// A release that was answered.
#[derive(Clone, Debug)]
pub(crate) struct LoggedRelease {
    claim: Arc<Claim>,
    at: Time,
    epoch: u64,
}

impl LoggedRelease {
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl ReleaseLog {
    /// Records that `claim` was released in `epoch`, which was read before the release.
    pub(crate) fn add(&self, claim: &Arc<Claim>, at: Time, epoch: u64) {
        let mut list = self.list();
        let old = |done: &LoggedRelease| done.epoch == epoch && at >= done.at.after(KEPT);
        while list.len() >= KEPT_MOST || list.front().is_some_and(old) {
            list.pop_front();
        }
        list.push_back(LoggedRelease { claim: claim.clone(), at, epoch });
    }

    /// Removes and returns the releases of an earlier epoch whose locks may still exist.
    pub(super) fn take(&self, now: Time, epoch: u64) -> Vec<LoggedRelease> {
        // Releases of earlier epochs come first.
        if self.list().front().is_none_or(|done| done.epoch == epoch) {
            return Vec::new();
        }
        self.drain_if(now, |done| done.epoch != epoch)
    }

    /// Removes the releases that are `earlier`, and returns those whose locks may still exist.
    pub(crate) fn drain_if(
        &self,
        now: Time,
        earlier: impl Fn(&LoggedRelease) -> bool,
    ) -> Vec<LoggedRelease> {
        let mut list = self.list();
        let (earlier, rest) = list.drain(..).partition(earlier);
        *list = rest;
        let stands = |done: &LoggedRelease| now < done.at.after(done.claim.ttl());
        VecDeque::into_iter(earlier).filter(stands).collect()
    }

    pub(crate) fn put_back(&self, some: &[LoggedRelease]) {
        some.iter().rev().for_each(|done| self.list().push_front(done.clone()));
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<LoggedRelease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{ClaimOptions, Key, Token};

    fn claim(ttl: Duration) -> Arc<Claim> {
        Arc::new(Claim::new(
            Key::new("k").unwrap(),
            Token::random().unwrap(),
            ClaimOptions::new(ttl),
        ))
    }

    /// Releases of an earlier epoch are repeated, unless their locks have ended; releases of this epoch are
    /// kept for a while.
    #[test]
    fn what_is_repeated() {
        let (releases, start) = (ReleaseLog::default(), Time::from_nanos(0));
        let (long, short) = (claim(Duration::from_secs(60)), claim(Duration::from_secs(1)));
        releases.add(&long, start, 1);
        releases.add(&short, start, 1);
        let later = start.after(Duration::from_secs(2));
        assert!(releases.take(later, 1).is_empty(), "the server is the same");
        releases.add(&long, later, 2);
        let taken = releases.take(later, 2);
        assert_eq!(taken.iter().map(|done| done.claim.token()).collect::<Vec<_>>(), [long.token()]);
        releases.put_back(&taken);
        assert_eq!(releases.take(later, 2).len(), 1);
        releases.add(&long, later.after(KEPT), 2);
        assert_eq!(releases.list().len(), 1, "the one before is too old");
    }
}

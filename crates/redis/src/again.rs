//! Releases that may have to be repeated.
//!
//! In: what was released, and in which turn of the server. Out: what to release again at another.
//!
//! A former master goes on answering until it is told, and what it is told meanwhile is lost. A lock that
//! was released there may still stand at the new master, for the rest of its ttl. So after a move the
//! releases of a while are repeated there. That is harmless: each is of one token, which nobody uses any
//! more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::Claim;
use tenure_core::time::Time;

use crate::backend::Shared;
use crate::scripts::{self, Freed, Run};
use crate::trouble::Trouble;

/// For how long a release is kept: a former master was seen to answer for eleven seconds.
const KEPT: Duration = Duration::from_secs(15);
/// How many are kept. Those before are left to their ttl.
const KEPT_MOST: usize = 10_000;
/// How many are repeated in one go.
const AT_ONCE: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Releases(Mutex<VecDeque<Done>>);

/// A release that was answered.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    claim: Arc<Claim>,
    at: Time,
    turn: u64,
}

impl Done {
    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }
}

impl Releases {
    /// Notes that `claim` was released in `turn`, which was read before.
    pub(crate) fn add(&self, claim: &Arc<Claim>, at: Time, turn: u64) {
        let mut list = self.list();
        let old = |done: &Done| done.turn == turn && at >= done.at.after(KEPT);
        while list.len() >= KEPT_MOST || list.front().is_some_and(old) {
            list.pop_front();
        }
        list.push_back(Done { claim: claim.clone(), at, turn });
    }

    /// Takes those of an earlier turn whose locks may still stand.
    fn take(&self, now: Time, turn: u64) -> Vec<Done> {
        // Those of earlier turns stand first.
        if self.list().front().is_none_or(|done| done.turn == turn) {
            return Vec::new();
        }
        self.take_those(now, |done| done.turn != turn)
    }

    /// Takes those that are `earlier` and whose locks may still stand.
    pub(crate) fn take_those(&self, now: Time, earlier: impl Fn(&Done) -> bool) -> Vec<Done> {
        let mut list = self.list();
        let (earlier, rest) = list.drain(..).partition(earlier);
        *list = rest;
        let stands = |done: &Done| now < done.at.after(done.claim.ttl());
        VecDeque::into_iter(earlier).filter(stands).collect()
    }

    pub(crate) fn put_back(&self, some: &[Done]) {
        some.iter().rev().for_each(|done| self.list().push_front(done.clone()));
    }

    fn list(&self) -> MutexGuard<'_, VecDeque<Done>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Repeats what was released in an earlier turn; what cannot be now, the next time.
    pub(crate) async fn release_earlier(&self) {
        let Some(releases) = &self.releases else { return };
        let earlier = releases.take(self.clock.now(), self.server.turn());
        for (index, share) in earlier.chunks(AT_ONCE).enumerate() {
            if let Err(trouble) = self.release_share(share).await {
                tracing::debug!(%trouble, "releases are repeated later");
                return releases.put_back(&earlier[index * AT_ONCE..]);
            }
        }
    }

    /// Repeats all of these, or says why not.
    pub(crate) async fn release_all(&self, all: &[Done]) -> Result<(), Trouble> {
        for share in all.chunks(AT_ONCE) {
            self.release_share(share).await?;
        }
        Ok(())
    }

    /// On the connection for renewals: whoever asks for such a lock anew does so with another token.
    async fn release_share(&self, share: &[Done]) -> Result<(), Trouble> {
        let run = |done: &Done| Run::release(&self.keys, &self.author, &done.claim, None);
        let runs: Vec<Run> = share.iter().map(run).collect();
        let within = self.renewals.response_timeout();
        let answers = scripts::run_all::<Freed>(&self.renewals, &runs, within).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Key, Terms, Token};

    fn claim(ttl: Duration) -> Arc<Claim> {
        Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), Terms::new(ttl)))
    }

    /// Those of an earlier turn are repeated, unless their locks have ended; those of this turn are kept
    /// for a while.
    #[test]
    fn what_is_repeated() {
        let (releases, start) = (Releases::default(), Time::from_nanos(0));
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

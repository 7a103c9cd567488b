//! Asking a quorum for a lock, once or until it is had.
//!
//! In: a claim. Out: a grant, or who or what is in the way.
//!
//! Whoever waits stands in a queue on every node that denied it, only to be told when to ask: whoever
//! frees the lock has the first in each node's queue told. It asks when a majority of the nodes have
//! told it, or a moment after the first did. A heartbeat finds out what nobody told.
//!
//! Those who shared the votes of a round among them pause before the next, each for another time, which
//! grows: so two never deny each other for ever.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fault, FaultKind};
use tenure_core::time::Time;
use tenure_core::{Claim, Holder, Mode, Sight};

use super::Shared;
use super::crowd::Crowd;
use super::round::Won;
use super::tally::{Patience, Verdict, majority};
use crate::jitter::{jittered, up_to};
use crate::keys::NO_SLOT;
use crate::wait::{AFTER_END, HEARTBEAT, RETRIES_WHILE_DOWN};

/// How often one attempt is made anew when nobody had a majority.
const SPLITS_MAX: u32 = 4;
/// The longest pause after the first round that was split; it doubles with each.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
/// How long after the first node the others have to tell that the lock is free.
const GRACE: Duration = Duration::from_millis(4);
/// Those who wait for the end of a lease do not ask all at once.
const APART: Duration = Duration::from_millis(20);

/// What came of one attempt.
pub(super) enum Tried {
    Won(Won),
    Held(Box<Holder>),
}

impl Shared {
    /// One attempt; "held by another" is an answer. So it is where several shared the votes, time and
    /// again.
    pub(super) async fn ask_once(&self, claim: &Arc<Claim>) -> Result<Tried, Fault> {
        self.refuse_unsupported(claim)?;
        let mut splits = 0;
        loop {
            let miss = match self.round(claim, false).await {
                Ok(won) => return Ok(Tried::Won(won)),
                Err(miss) => miss,
            };
            match miss.verdict() {
                Verdict::Held(holder, _) => return Ok(Tried::Held(holder)),
                Verdict::Trouble(fault, _) => return Err(fault),
                Verdict::Split if splits == SPLITS_MAX => {
                    return Ok(Tried::Held(Box::new(Holder::unknown())));
                }
                Verdict::Split => {
                    splits += 1;
                    self.clock().sleep(after_split(splits, claim.retry_interval())).await;
                }
            }
        }
    }

    /// Waits until the lock is granted, or it is plain that waiting is of no use.
    pub(super) async fn wait(&self, claim: &Arc<Claim>) -> Result<Won, Fault> {
        self.refuse_unsupported(claim)?;
        let (mut splits, mut absent_since) = (0, None);
        loop {
            // Each time: the runtime that it lives on may have ended. A holder is told there what
            // becomes of its lock.
            self.nodes.iter().for_each(|node| node.server().inbox.listen_early());
            let from = self.clock().now();
            let miss = match self.round(claim, true).await {
                Ok(won) => return Ok(won),
                Err(miss) => miss,
            };
            let verdict = miss.verdict();
            splits = if matches!(verdict, Verdict::Split) { splits + 1 } else { 0 };
            let pause = match verdict {
                Verdict::Split => after_split(splits, claim.retry_interval()),
                Verdict::Held(holder, left) => {
                    absent_since = None;
                    claim.saw(Sight::of(*holder, None));
                    jittered(self.heartbeat(claim)).min(left + AFTER_END + up_to(APART))
                }
                Verdict::Trouble(fault, patience) => {
                    absent_since =
                        absent_since.or(Some(from)).filter(|_| patience != Patience::Yes);
                    self.bear(claim, fault, patience, absent_since)?
                }
            };
            // A split is nobody's to tell of.
            match splits {
                0 => self.told_or(claim, pause).await,
                _ => self.clock().sleep(pause).await,
            }
        }
    }

    /// How often one that waits asks without being told.
    fn heartbeat(&self, claim: &Claim) -> Duration {
        let hears = self.nodes.iter().filter(|node| node.server().inbox.hears(NO_SLOT)).count();
        match hears >= majority(self.nodes.len()) {
            true => HEARTBEAT.min(claim.ttl() / 3),
            false => claim.retry_interval(),
        }
    }

    /// Notes what keeps us from asking; the pause until it may have passed, if it may at all.
    fn bear(
        &self,
        claim: &Claim,
        fault: Fault,
        patience: Patience,
        absent_since: Option<Time>,
    ) -> Result<Duration, Fault> {
        let longest = self.patience_while_down() + claim.retry_interval() * RETRIES_WHILE_DOWN;
        let too_long = |since: Time| self.clock().now() >= since.after(longest);
        if patience == Patience::No || absent_since.is_some_and(too_long) {
            return Err(fault);
        }
        claim.saw(Sight::trouble(fault));
        Ok(jittered(claim.retry_interval().min(HEARTBEAT)))
    }

    /// Waits until a majority of the nodes have told that the lock is free, or for a moment after the
    /// first has, or for `pause`.
    async fn told_or(&self, claim: &Arc<Claim>, pause: Duration) {
        let mut until = self.clock().now().after(pause);
        let mut tellers = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            tellers.ask(number, node.clone().told(claim.clone()));
        }
        let mut told = 0;
        while told < majority(self.nodes.len()) && tellers.next(self.at_most(until)).await.is_some()
        {
            told += 1;
            until = until.min(self.clock().now().after(jittered(GRACE)));
        }
    }

    /// Refuses what this engine cannot do before anything is sent.
    fn refuse_unsupported(&self, claim: &Claim) -> Result<(), Fault> {
        self.refuse_forked()?;
        let what = match (claim.mode(), claim.shared_owner()) {
            (Mode::Permits { .. }, _) => {
                "a quorum grants exclusive claims only: majorities of permits do not intersect"
            }
            (Mode::Exclusive, Some(_)) => "a quorum does not count the claims of a shared owner",
            (Mode::Exclusive, None) => return Ok(()),
        };
        Err(Fault::new(FaultKind::Unsupported, what))
    }
}

/// Any time up to a longest one that doubles with each split in a row.
fn after_split(splits: u32, longest: Duration) -> Duration {
    up_to((SPLIT_PAUSE * 2_u32.saturating_pow(splits.min(16))).min(longest.max(SPLIT_PAUSE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause after a split differs, grows, and has a bound.
    #[test]
    fn pauses_differ() {
        let longest = Duration::from_millis(100);
        let pauses: Vec<_> = (0..100).map(|_| after_split(20, longest)).collect();
        assert!(pauses.iter().all(|pause| *pause <= longest));
        assert!(pauses.iter().max() > pauses.iter().min());
        assert!((0..100).all(|_| after_split(1, longest) <= SPLIT_PAUSE * 2));
    }
}

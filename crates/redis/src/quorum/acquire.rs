//! Asks a quorum for a lock, once or until it is granted.
//!
//! In: a claim. Out: a grant, or who or what prevents it.
//!
//! A waiter is queued on every node that denied it, only to be notified when to ask again: a release notifies
//! the first waiter in the queue of each node, or all readers that are first. The waiter asks when a majority of
//! the nodes have notified it, or a moment after the first has. A heartbeat covers lost notifications.
//!
//! Claims that shared the votes of a round pause before the next one. The pauses are random and grow, so two
//! claims do not deny each other for ever.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fault, FaultKind};
use tenure_core::{Claim, Holder, Mode, WaitStatus};
use tenure_net::{jittered, up_to};

use super::Shared;
use super::fanout::Fanout;
use super::round::RoundWon;
use super::tally::{Patience, RoundVerdict, majority};
use crate::wire::keys::NO_SLOT;
use crate::wire::timing::{AFTER_END, HEARTBEAT};

/// How many rounds of one attempt are repeated because no claim had a majority.
const SPLITS_MAX: u32 = 4;
/// The longest pause after the first split round; it doubles with each further one.
const SPLIT_PAUSE: Duration = Duration::from_millis(4);
/// How long to wait for the other nodes after the first has notified that the lock is free.
const GRACE: Duration = Duration::from_millis(4);
/// Spreads the requests of waiters after a lease has ended.
const APART: Duration = Duration::from_millis(20);

/// The result of one attempt.
pub(super) enum Tried {
    Won(RoundWon),
    Held(Box<Holder>),
}

impl Shared {
    /// One attempt. The result is `Held` if another claim has the lock, or if the votes are split several
    /// times in a row.
    pub(super) async fn ask_once(&self, claim: &Arc<Claim>) -> Result<Tried, Fault> {
        self.refuse_unsupported(claim)?;
        let mut splits = 0;
        loop {
            let miss = match self.round(claim, false).await {
                Ok(won) => return Ok(Tried::Won(won)),
                Err(miss) => miss,
            };
            match miss.verdict() {
                RoundVerdict::Held(holder, _) => return Ok(Tried::Held(holder)),
                RoundVerdict::Error(fault, _) => return Err(fault),
                RoundVerdict::Split if splits == SPLITS_MAX => {
                    return Ok(Tried::Held(Box::new(Holder::unknown())));
                }
                RoundVerdict::Split => {
                    splits += 1;
                    self.clock().sleep(after_split(splits, claim.retry_interval())).await;
                }
            }
        }
    }

    /// Waits until the lock is granted, or waiting cannot succeed.
    pub(super) async fn wait(&self, claim: &Arc<Claim>) -> Result<RoundWon, Fault> {
        self.refuse_unsupported(claim)?;
        let mut splits = 0;
        loop {
            // In every iteration: the runtime of the subscription may have ended. A holder is notified there
            // as well.
            self.nodes.iter().for_each(|node| node.server().inbox().listen_early());
            let from = self.clock().now();
            let miss = match self.round(claim, true).await {
                Ok(won) => return Ok(won),
                Err(miss) => miss,
            };
            let verdict = miss.verdict();
            splits = if matches!(verdict, RoundVerdict::Split) { splits + 1 } else { 0 };
            let pause = match verdict {
                RoundVerdict::Split => after_split(splits, claim.retry_interval()),
                RoundVerdict::Held(holder, left) => {
                    claim.report_wait(WaitStatus::of(*holder, None));
                    jittered(self.heartbeat(claim)).min(left + AFTER_END + up_to(APART))
                }
                RoundVerdict::Error(fault, Patience::No) => return Err(fault),
                RoundVerdict::Error(fault, patience) => {
                    claim.report_wait(match patience {
                        Patience::Absent => WaitStatus::unreachable(fault, from),
                        _ => WaitStatus::unanswered(fault, from),
                    });
                    jittered(claim.retry_interval().min(HEARTBEAT))
                }
            };
            // No node sends a notification after a split.
            match splits {
                0 => self.notified_or(claim, pause).await,
                _ => self.clock().sleep(pause).await,
            }
        }
    }

    /// How often a waiter asks without a notification.
    fn heartbeat(&self, claim: &Claim) -> Duration {
        let hears =
            self.nodes.iter().filter(|node| node.server().inbox().is_subscribed(NO_SLOT)).count();
        match hears >= majority(self.nodes.len()) {
            true => HEARTBEAT.min(claim.ttl() / 3),
            false => claim.retry_interval(),
        }
    }

    /// Waits until a majority of the nodes have notified that the lock is free, or a moment after the first
    /// has, or for `pause`.
    async fn notified_or(&self, claim: &Arc<Claim>, pause: Duration) {
        let mut until = self.clock().now().after(pause);
        let mut tellers = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            tellers.ask(number, node.clone().notified(claim.clone()));
        }
        let mut notified = 0;
        while notified < majority(self.nodes.len())
            && tellers.next(self.at_most(until)).await.is_some()
        {
            notified += 1;
            until = until.min(self.clock().now().after(jittered(GRACE)));
        }
    }

    /// Rejects what this engine does not support before anything is sent.
    fn refuse_unsupported(&self, claim: &Claim) -> Result<(), Fault> {
        self.refuse_forked()?;
        self.first().server().keys().refuse_reserved(claim.key())?;
        let what = match claim.mode() {
            Mode::Exclusive | Mode::Read => return Ok(()),
            Mode::SharedOwner(_) => "a quorum does not count the claims of a shared owner",
            Mode::Permits { .. } => {
                "a quorum has no permits: majorities of permits do not intersect"
            }
        };
        Err(Fault::new(FaultKind::Unsupported, what))
    }
}

/// A random pause, up to a limit that doubles with each split in a row.
fn after_split(splits: u32, longest: Duration) -> Duration {
    up_to((SPLIT_PAUSE * 2_u32.saturating_pow(splits.min(16))).min(longest.max(SPLIT_PAUSE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause after a split is random, grows, and has a limit.
    #[test]
    fn pauses_differ() {
        let longest = Duration::from_millis(100);
        let pauses: Vec<_> = (0..100).map(|_| after_split(20, longest)).collect();
        assert!(pauses.iter().all(|pause| *pause <= longest));
        assert!(pauses.iter().max() > pauses.iter().min());
        assert!((0..100).all(|_| after_split(1, longest) <= SPLIT_PAUSE * 2));
    }
}

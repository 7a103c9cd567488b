//! The judge: did a run keep the promises? (docs/testing/faults.md, "How a run is judged")
//!
//! In: a [`History`], the [`Tally`] of its registers, and how long each key took to become available again.
//! Out: a [`Verdict`].
//!
//! | check | offence |
//! |---|---|
//! | 1 overlap | two owners hold a key at the same time, and cannot hold it together |
//! | 2 fence order | a grant requested after another was reported has no higher fence; two owners have the same |
//! | 3 register | a value guarded by the fence lost an update, or changed while a reader held the key |
//! | 4 liveness | a key could not be acquired in time after the end of the faults |
//! | 5 loss latency | none: the time from the deletion of a lock to the holder's signal is only measured |
//! | 6 turns | a claim was granted the key while an earlier one waited that could be notified |
//! | 7 leaders | an observer saw a lower term, a value that its leader had not proclaimed, or an ended leadership |
//! | 8 several keys | a request reported some of its keys, or keys that it did not hold at one moment |
//!
//! A hold counts in `[reported, min(release called, loss signalled, valid_until, killed))`. Readers hold a key
//! together; so do permits, up to the largest capacity among them, and not two of one slot. What can be held together
//! has no order of fences. Readers may have the same fence.

mod checks;
mod grants;
mod leaders;
mod several;
mod turns;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::history::History;
use crate::register::Tally;

pub use grants::Hold;
pub(crate) use grants::holds;
pub use leaders::{Misled, Sighting};
pub use turns::{Claimed, Passed, Queued, Snapshot, Turns};
pub use verdict::{Latencies, Offence, Verdict};

/// Whether and when a key could be acquired at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The key.
    pub key: String,
    /// The time from the end of the faults until the key was acquired; `None` if it was not.
    pub after: Option<Duration>,
    /// The limit of that time.
    pub within: Duration,
}

/// Collects the facts of a run, and judges it.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    history: History,
    tally: Tally,
    reached: Vec<Reached>,
    turns: Turns,
    observed_within: Option<Duration>,
}

impl Judge {
    /// A judge of this history.
    pub fn new(history: History) -> Self {
        Judge { history, ..Judge::default() }
    }

    /// Adds the counts of the registers.
    #[must_use]
    pub fn register(mut self, tally: Tally) -> Self {
        self.tally = self.tally.plus(tally);
        self
    }

    /// Adds the results for keys at the end of the run.
    #[must_use]
    pub fn reached(mut self, reached: impl IntoIterator<Item = Reached>) -> Self {
        self.reached.extend(reached);
        self
    }

    /// Adds what the server showed of the order of service.
    #[must_use]
    pub fn turns(mut self, turns: Turns) -> Self {
        self.turns = turns;
        self
    }

    /// Sets the time within which observers must see that a leadership has ended.
    #[must_use]
    pub fn observed_within(mut self, within: Option<Duration>) -> Self {
        self.observed_within = within;
        self
    }

    /// The verdict.
    pub fn verdict(self) -> Verdict {
        let holds = grants::holds(&self.history);
        let taken = grants::taken_away(&self.history);
        let mut verdict = Verdict::of(&self.history, &holds);
        verdict.tally = self.tally;
        verdict.latencies = checks::loss_latency(&holds, &taken);
        verdict.offences.extend(checks::overlaps(&holds));
        verdict.offences.extend(checks::slots_too_high(&holds));
        let order = checks::fence_order(&holds, &taken, &grants::given_up(&self.history));
        verdict.exempt = order.exempt;
        verdict.offences.extend(order.offences);
        verdict.offences.extend(checks::repeated_fences(&holds));
        verdict.offences.extend(checks::register(&self.tally));
        verdict.keys_tried = self.reached.len();
        verdict.offences.extend(checks::unreached(self.reached));
        verdict.turns = self.turns.seen;
        verdict.offences.extend(self.turns.passed.into_iter().map(Offence::PassedOver));
        verdict.offences.extend(leaders::misled(&self.history, &holds, self.observed_within));
        verdict.several = several::requests(&self.history, &holds).len();
        verdict.offences.extend(several::not_all(&self.history, &holds));
        verdict
    }
}

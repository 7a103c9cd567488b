//! The judge: did a run keep the promises? (`torture.md`, "How a run is judged")
//!
//! In: a [`History`], the [`Tally`] of its registers, and what the run found out about liveness.
//! Out: a [`Verdict`].
//!
//! | check | offence |
//! |---|---|
//! | 1 overlap | two owners' `[reported, min(release called, loss signalled, valid_until, killed))` on a key meet |
//! | 2 fence order | a grant asked for after another was reported has no higher fence; two owners have the same |
//! | 3 register | a value guarded by the fence lost an update |
//! | 4 liveness | a key could not be had in time after the faults had ended |
//! | 5 loss latency | none: from a fault that takes a lock away to the holder's signal, measured |

mod checks;
mod grants;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::history::History;
use crate::register::Tally;

pub use grants::Hold;
pub(crate) use grants::holds;
pub use verdict::{Latencies, Offence, Verdict};

/// What the end of a run found out about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The key.
    pub key: String,
    /// How long after the faults had ended it could be had; `None` if it could not.
    pub after: Option<Duration>,
    /// How long that may take.
    pub within: Duration,
}

/// Collects what is known of a run, and judges it.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    history: History,
    tally: Tally,
    reached: Vec<Reached>,
}

impl Judge {
    /// A judge of this history.
    pub fn new(history: History) -> Self {
        Judge { history, ..Judge::default() }
    }

    /// With what became of the registers' updates.
    #[must_use]
    pub fn register(mut self, tally: Tally) -> Self {
        self.tally = self.tally.plus(tally);
        self
    }

    /// With what was found out about keys at the end.
    #[must_use]
    pub fn reached(mut self, reached: impl IntoIterator<Item = Reached>) -> Self {
        self.reached.extend(reached);
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
        let order = checks::fence_order(&holds, &taken, &grants::given_up(&self.history));
        verdict.exempt = order.exempt;
        verdict.offences.extend(order.offences);
        verdict.offences.extend(checks::repeated_fences(&holds));
        verdict.offences.extend(checks::lost_updates(&self.tally));
        verdict.keys_tried = self.reached.len();
        verdict.offences.extend(checks::unreached(self.reached));
        verdict
    }
}

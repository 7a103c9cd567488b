//! The result of a campaign, in figures that can be published.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::orphans::Orphans;
use super::pauses::Pauses;
use super::{Counts, Pace};
use crate::judge::Verdict;

/// The promise that must hold after the faults of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything: the faults keep the server's data.
    Everything,
    /// The order of fences, the fenced register, and that keys can be acquired again. The faults destroy the
    /// server's data, or the server has a known bug: two owners may hold one key until the first is notified of
    /// the loss.
    Order,
}

/// The figures of a campaign.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The seed that repeats the choices.
    pub seed: u64,
    /// How long faults were injected.
    pub time: Duration,
    /// The promise that had to hold.
    pub promise: Promise,
    /// The times that suit the engine.
    pub pace: Pace,
    /// How often each fault was injected.
    pub faults: Counts,
    /// For each kind of server or network fault: how long the probe could not acquire its key, for which no
    /// other process competes.
    pub pauses: BTreeMap<&'static str, Pauses>,
    /// The verdict of the judge.
    pub verdict: Verdict,
    /// How often a key went from one process to another.
    pub hand_overs: u64,
    /// The time from the last fault until every key was acquired again.
    pub recovered: Option<Duration>,
    /// Locks that no owner relied on.
    pub orphans: Orphans,
    /// The data on the server after the end of the campaign.
    pub leftovers: Vec<String>,
}

impl Outcome {
    /// Whether the promise was kept.
    pub fn is_kept(&self) -> bool {
        let judged = match self.promise {
            Promise::Everything => self.verdict.is_clean(),
            Promise::Order => self.verdict.is_ordered(),
        };
        judged && self.leftovers.is_empty() && !self.is_kept_too_long()
    }

    fn is_kept_too_long(&self) -> bool {
        let Orphans { longest, longest_of_living, .. } = self.orphans;
        let counted = if self.pace.lingers { longest_of_living } else { longest };
        counted > self.pace.patience()
    }

    /// Fails the test unless the promise was kept.
    ///
    /// # Panics
    ///
    /// If the promise was broken; the message contains all figures and the first offence.
    #[track_caller]
    pub fn assert_kept(&self) {
        assert!(self.is_kept(), "{self}\n{}", self.complaint());
    }

    /// The first offence that breaks the promise, as text.
    pub fn complaint(&self) -> String {
        let forgiven = self.promise != Promise::Everything;
        let first = || self.verdict.first_offence(forgiven).map(ToString::to_string);
        if let Some(first) = first() {
            return first;
        }
        match self.is_kept_too_long() {
            true => format!("an orphan: {:?}", self.orphans),
            false => format!("left at the server: {:?}", self.leftovers),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, time, faults, verdict, orphans, .. } = self;
        let kind = match self.promise {
            Promise::Everything => "keep",
            Promise::Order => "destroy",
        };
        writeln!(f, "seed {seed}, {time:.0?} of faults that {kind} data")?;
        write!(f, "faults {}:", faults.values().sum::<u64>())?;
        let mut listed = faults.iter().map(|(name, count)| format!(" {name} {count}"));
        write!(f, "{}", listed.next().unwrap_or_default())?;
        listed.try_for_each(|one| write!(f, ",{one}"))?;
        self.pauses.iter().try_for_each(|(name, pauses)| {
            let (median, longest) = (pauses.median(), pauses.longest());
            write!(
                f,
                "\na free key could not be acquired for {median:.1?}, at most {longest:.1?}: {name}"
            )
        })?;
        write!(f, "\n{} hand-overs between processes", self.hand_overs)?;
        write!(f, "\n{verdict}")?;
        if let Some(recovered) = self.recovered {
            write!(f, ", the last {recovered:.1?} after the faults")?;
        }
        write!(f, "\nlongest orphan {:.1?} of {} claims seen", orphans.longest, orphans.seen)?;
        if self.pace.lingers {
            write!(f, " ({:.1?} of a living process)", orphans.longest_of_living)?;
        }
        let (longest, left) = (self.pace.longest(), self.leftovers.len());
        write!(f, " at the server, ttl up to {longest:?}; left over {left}")
    }
}

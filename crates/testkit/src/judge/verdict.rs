//! What the judge found, in figures and in words.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use super::Reached;
use super::grants::Hold;
use crate::history::{Event, History};
use crate::register::Tally;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offence {
    /// Two owners held one key at one time.
    Overlap {
        /// Who came first.
        first: Box<Hold>,
        /// Who came while the first held it.
        second: Box<Hold>,
    },
    /// A later grant has no higher fence.
    FenceOrder {
        /// The grant that was reported.
        first: Box<Hold>,
        /// The grant that was asked for afterwards.
        second: Box<Hold>,
    },
    /// Two owners got the same fence.
    FenceRepeated {
        /// One.
        first: Box<Hold>,
        /// The other.
        second: Box<Hold>,
    },
    /// A value guarded by the fence lost an update.
    UpdateLost {
        /// The figures.
        tally: Tally,
    },
    /// A key could not be had after the faults had ended.
    NotHad(Reached),
    /// Nothing was ever granted: such a run proves nothing.
    NothingGranted,
}

impl Offence {
    pub(super) fn overlap(first: &Hold, second: &Hold) -> Self {
        Offence::Overlap { first: Box::new(first.clone()), second: Box::new(second.clone()) }
    }

    pub(super) fn fence_order(first: &Hold, second: &Hold) -> Self {
        Offence::FenceOrder { first: Box::new(first.clone()), second: Box::new(second.clone()) }
    }

    pub(super) fn fence_repeated(first: &Hold, second: &Hold) -> Self {
        Offence::FenceRepeated { first: Box::new(first.clone()), second: Box::new(second.clone()) }
    }
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offence::Overlap { first, second } => {
                write!(f, "two holders at once:\n  {first}\n  {second}")
            }
            Offence::FenceOrder { first, second } => {
                write!(f, "a fence that does not rise:\n  {first}\n  {second}")
            }
            Offence::FenceRepeated { first, second } => {
                write!(f, "one fence twice:\n  {first}\n  {second}")
            }
            Offence::UpdateLost { tally } => {
                let Tally { fenced_writes, fenced_value, .. } = tally;
                write!(
                    f,
                    "a fenced value lost updates: {fenced_writes} writes, but it stands at {fenced_value}"
                )
            }
            Offence::NotHad(Reached { key, after: None, within }) => {
                write!(f, "`{key}` could not be had within {within:?} of the last fault")
            }
            Offence::NotHad(Reached { key, after: Some(after), within }) => {
                write!(
                    f,
                    "`{key}` could be had only {after:?} after the last fault, not {within:?}"
                )
            }
            Offence::NothingGranted => f.write_str("nothing was ever granted"),
        }
    }
}

/// How long it took until holders knew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn new(mut all: Vec<Duration>) -> Self {
        all.sort();
        Latencies(all)
    }

    /// How many losses there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time within which `percent` per cent of the holders knew.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }
}

/// What the judge found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// Claims that were sent.
    pub claims: usize,
    /// Grants that were reported.
    pub grants: usize,
    /// Keys that were granted.
    pub keys: usize,
    /// Owners that had a grant.
    pub owners: usize,
    /// Losses that were signalled.
    pub losses: usize,
    /// Processes that were killed.
    pub killed: usize,
    /// Grants out of order because the server had silently ended their lease: a fenced resource
    /// refuses them.
    pub exempt: usize,
    /// What became of the registers' updates.
    pub tally: Tally,
    /// How long it took until holders knew of a loss.
    pub latencies: Latencies,
    /// Keys that were tried at the end.
    pub keys_tried: usize,
    /// Broken promises, the most telling first.
    pub offences: Vec<Offence>,
}

impl Verdict {
    pub(super) fn of(history: &History, holds: &[Hold]) -> Self {
        let count = |is: fn(&Event) -> bool| {
            history.records().iter().filter(|record| is(&record.event)).count()
        };
        Verdict {
            claims: count(|event| matches!(event, Event::Asked)),
            grants: holds.len(),
            keys: holds.iter().map(|hold| &hold.key).collect::<HashSet<_>>().len(),
            owners: holds.iter().map(|hold| &hold.owner).collect::<HashSet<_>>().len(),
            losses: count(|event| matches!(event, Event::Lost { .. })),
            killed: count(|event| matches!(event, Event::Killed)),
            ..Verdict::default()
        }
    }

    /// How many times two owners held one key.
    pub fn overlaps(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::Overlap { .. }))
    }

    /// How many fences did not rise.
    pub fn regressions(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::FenceOrder { .. }))
    }

    /// How many fences were given twice.
    pub fn repeated(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::FenceRepeated { .. }))
    }

    /// How many keys could not be had at the end.
    pub fn not_had(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::NotHad(_)))
    }

    /// Whether every promise was kept, by a run in which anything happened.
    pub fn is_clean(&self) -> bool {
        self.offences.is_empty() && self.grants > 0
    }

    /// Whether what must survive even the loss of the server's data did: the order of fences, and
    /// the fenced register.
    pub fn is_ordered(&self) -> bool {
        let forgiven = |offence: &Offence| matches!(offence, Offence::Overlap { .. });
        self.offences.iter().all(forgiven) && self.grants > 0
    }

    /// Fails the test unless every promise was kept.
    ///
    /// # Panics
    ///
    /// With the figures, and the two events of the first offence.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}\n{}", self.shown_offence(false));
    }

    /// As [`assert_clean`](Self::assert_clean), for runs that destroy the server's data: overlaps
    /// are counted and forgiven.
    ///
    /// # Panics
    ///
    /// With the figures, and the two events of the first offence.
    #[track_caller]
    pub fn assert_ordered(&self) {
        assert!(self.is_ordered(), "{self}\n{}", self.shown_offence(true));
    }

    /// The first offence, or the first that is no overlap where these are forgiven.
    pub fn first_offence(&self, overlaps_forgiven: bool) -> Option<&Offence> {
        let counts =
            |offence: &&Offence| !overlaps_forgiven || !matches!(offence, Offence::Overlap { .. });
        let nothing = (self.grants == 0).then_some(&Offence::NothingGranted);
        self.offences.iter().find(counts).or(nothing)
    }

    fn shown_offence(&self, overlaps_forgiven: bool) -> String {
        let found = self.first_offence(overlaps_forgiven);
        found.map(ToString::to_string).unwrap_or_default()
    }

    fn count(&self, is: impl Fn(&Offence) -> bool) -> usize {
        self.offences.iter().filter(|offence| is(offence)).count()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { claims, grants, keys, owners, losses, killed, exempt, tally, .. } = self;
        write!(f, "{grants} grants of {claims} claims on {keys} keys to {owners} owners; ")?;
        writeln!(f, "{losses} losses signalled, {killed} killed")?;
        let (overlaps, regressions, repeated) =
            (self.overlaps(), self.regressions(), self.repeated());
        write!(f, "overlaps {overlaps}, fence regressions {regressions} ")?;
        writeln!(f, "(and {exempt} exempt), repeated fences {repeated}")?;
        let (lost, twin) = (tally.fenced_lost(), tally.plain_lost());
        write!(f, "fenced register: {lost} of {} updates lost, ", tally.fenced_writes)?;
        write!(
            f,
            "{} refused; unfenced twin: {twin} of {} lost",
            tally.refused, tally.plain_writes
        )?;
        if let (Some(p50), Some(p99)) =
            (self.latencies.percentile(50), self.latencies.percentile(99))
        {
            let count = self.latencies.count();
            write!(f, "\nloss latency of {count}: p50 {p50:.1?}, p99 {p99:.1?}")?;
        }
        if self.keys_tried > 0 {
            let had = self.keys_tried - self.not_had();
            write!(f, "\nkeys had at the end: {had} of {}", self.keys_tried)?;
        }
        Ok(())
    }
}

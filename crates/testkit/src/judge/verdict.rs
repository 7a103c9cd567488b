//! The findings of the judge, as figures and as text.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::Reached;
use super::grants::Hold;
use super::leaders::{Misled, Sighting};
use super::turns::Passed;
use crate::history::{Event, History};
use crate::register::Tally;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offence {
    /// Two owners held one key at the same time.
    Overlap {
        /// The hold that began first.
        first: Box<Hold>,
        /// The hold that began while the first one lasted.
        second: Box<Hold>,
    },
    /// More permits of a key were held at the same time than the largest capacity among them.
    OverCapacity {
        /// The permits; the first one is the last that was granted.
        holds: Vec<Hold>,
    },
    /// A slot that is not below the capacity.
    SlotTooHigh(Box<Hold>),
    /// A later grant does not have a higher fence.
    FenceOrder {
        /// The grant that was reported.
        first: Box<Hold>,
        /// The grant that was requested afterwards.
        second: Box<Hold>,
    },
    /// Two owners got the same fence.
    FenceRepeated {
        /// One hold.
        first: Box<Hold>,
        /// The other hold.
        second: Box<Hold>,
    },
    /// A value guarded by the fence lost an update.
    UpdateLost {
        /// The counts of the register.
        tally: Tally,
    },
    /// A value guarded by the fence changed while a reader held the key.
    ReadTorn {
        /// The counts of the register.
        tally: Tally,
    },
    /// A key could not be acquired in time after the end of the faults.
    NotHad(Reached),
    /// A claim was granted the key while an earlier one waited.
    PassedOver(Passed),
    /// An observer was shown a leader that it must not see.
    Misled(Misled, Box<Sighting>),
    /// A request for several keys did not hold all of them at one moment.
    NotAll {
        /// The keys that it reported.
        holds: Vec<Hold>,
    },
    /// There was no grant at all: such a run proves nothing.
    NothingGranted,
}

impl Offence {
    pub(super) fn overlap(first: &Hold, second: &Hold) -> Self {
        Offence::Overlap { first: Box::new(first.clone()), second: Box::new(second.clone()) }
    }

    /// Whether the offence is one that a server makes possible by losing its data.
    fn is_overlap(&self) -> bool {
        matches!(self, Offence::Overlap { .. } | Offence::OverCapacity { .. })
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
            Offence::OverCapacity { holds } => {
                f.write_str("more permits than the largest capacity:")?;
                list(f, holds)
            }
            Offence::NotAll { holds } => {
                f.write_str("several keys were reported, and not all of them were held:")?;
                list(f, holds)
            }
            Offence::Misled(reason, sighting) => {
                let reason = match reason {
                    Misled::OlderTerm => "an older term after a newer one",
                    Misled::NotProclaimed => "a leader that was not proclaimed",
                    Misled::Ended => "a leader that had ended",
                };
                write!(f, "{reason}: {sighting}")
            }
            Offence::SlotTooHigh(hold) => write!(f, "a slot that is too high:\n  {hold}"),
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
            Offence::ReadTorn { tally } => {
                let Tally { fenced_torn, reads, .. } = tally;
                write!(
                    f,
                    "a fenced value changed under its readers: {fenced_torn} of {reads} reads"
                )
            }
            Offence::PassedOver(Passed { key, granted, waiter }) => {
                let (granted, waiter) = (&granted.label, &waiter.label);
                write!(f, "claim `{granted}` got `{key}` before `{waiter}`, which came earlier")
            }
            Offence::NotHad(Reached { key, after: None, within }) => {
                write!(f, "`{key}` could not be acquired within {within:?} of the last fault")
            }
            Offence::NotHad(Reached { key, after: Some(after), within }) => {
                write!(
                    f,
                    "`{key}` could be acquired only {after:?} after the last fault, not {within:?}"
                )
            }
            Offence::NothingGranted => f.write_str("nothing was ever granted"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, holds: &[Hold]) -> fmt::Result {
    holds.iter().try_for_each(|hold| write!(f, "\n  {hold}"))
}

/// The times from a fault until the holder was notified of the loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn new(mut all: Vec<Duration>) -> Self {
        all.sort();
        Latencies(all)
    }

    /// The number of losses.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time within which `percent` per cent of the holders were notified.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }
}

/// The findings of the judge.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// The number of claims sent.
    pub claims: usize,
    /// The number of grants reported.
    pub grants: usize,
    /// The number of grants reported in each mode.
    pub modes: BTreeMap<&'static str, usize>,
    /// The number of keys with a grant.
    pub keys: usize,
    /// The number of owners with a grant.
    pub owners: usize,
    /// The number of losses signalled.
    pub losses: usize,
    /// The number of processes killed.
    pub killed: usize,
    /// Grants out of order because the server had ended their lease without a signal: a fenced resource
    /// rejects them.
    pub exempt: usize,
    /// The counts of the registers.
    pub tally: Tally,
    /// The times until holders were notified of a loss.
    pub latencies: Latencies,
    /// The number of keys tried at the end.
    pub keys_tried: usize,
    /// The number of grants that were seen on the server while claims waited.
    pub turns: usize,
    /// The number of changes that observers of elections were shown.
    pub observed: usize,
    /// The number of requests for several keys that were granted.
    pub several: usize,
    /// The broken promises, in the order of the checks.
    pub offences: Vec<Offence>,
}

impl Verdict {
    pub(super) fn of(history: &History, holds: &[Hold]) -> Self {
        let count = |is: fn(&Event) -> bool| {
            history.records().iter().filter(|record| is(&record.event)).count()
        };
        let mut modes = BTreeMap::new();
        holds.iter().for_each(|hold| *modes.entry(hold.mode.as_str()).or_default() += 1);
        Verdict {
            claims: count(|event| matches!(event, Event::Asked { .. })),
            grants: holds.len(),
            modes,
            keys: holds.iter().map(|hold| &hold.key).collect::<HashSet<_>>().len(),
            owners: holds.iter().map(|hold| &hold.owner).collect::<HashSet<_>>().len(),
            losses: count(|event| matches!(event, Event::Lost { .. })),
            killed: count(|event| matches!(event, Event::Killed)),
            observed: count(|event| matches!(event, Event::Observed { .. })),
            ..Verdict::default()
        }
    }

    /// How often owners held a key at the same time that cannot hold it together.
    pub fn overlaps(&self) -> usize {
        self.count(Offence::is_overlap)
    }

    /// How many fences did not rise.
    pub fn regressions(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::FenceOrder { .. }))
    }

    /// How many fences were granted twice.
    pub fn repeated(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::FenceRepeated { .. }))
    }

    /// How many waiters were passed by a later claim.
    pub fn passed_over(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::PassedOver(_)))
    }

    /// How many leaders were seen that must not be.
    pub fn misled(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::Misled(..)))
    }

    /// How many requests for several keys did not hold all of them.
    pub fn not_all(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::NotAll { .. }))
    }

    /// How many keys could not be acquired at the end.
    pub fn not_had(&self) -> usize {
        self.count(|offence| matches!(offence, Offence::NotHad(_)))
    }

    /// Whether every promise was kept and there was at least one grant.
    pub fn is_clean(&self) -> bool {
        self.offences.is_empty() && self.grants > 0
    }

    /// Whether the promises were kept that must hold even if the server loses its data: all but mutual
    /// exclusion.
    pub fn is_ordered(&self) -> bool {
        self.offences.iter().all(Offence::is_overlap) && self.grants > 0
    }

    /// Fails the test unless every promise was kept.
    ///
    /// # Panics
    ///
    /// If a promise was broken; the message contains the figures and the first offence.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}\n{}", self.shown_offence(false));
    }

    /// As [`assert_clean`](Self::assert_clean), for runs that destroy the server's data: overlaps are counted
    /// and tolerated.
    ///
    /// # Panics
    ///
    /// If a promise was broken; the message contains the figures and the first offence.
    #[track_caller]
    pub fn assert_ordered(&self) {
        assert!(self.is_ordered(), "{self}\n{}", self.shown_offence(true));
    }

    /// The first offence; with `overlaps_forgiven` the first that is not an overlap.
    pub fn first_offence(&self, overlaps_forgiven: bool) -> Option<&Offence> {
        let counts = |offence: &&Offence| !overlaps_forgiven || !offence.is_overlap();
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
        if self.modes.len() > 1 {
            self.modes.iter().try_for_each(|(mode, grants)| write!(f, "{mode} {grants}; "))?;
        }
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
        if tally.reads > 0 {
            let (torn, twin) = (tally.fenced_torn, tally.plain_torn);
            write!(f, "\nreaders: {torn} of {} saw the fenced value change", tally.reads)?;
            write!(f, "; unfenced twin: {twin}")?;
        }
        if self.turns > 0 {
            let (passed, turns) = (self.passed_over(), self.turns);
            write!(f, "\nwaiters passed by a later claim: {passed}, in {turns} grants seen")?;
        }
        if self.observed > 0 {
            let (misled, observed) = (self.misled(), self.observed);
            write!(f, "\nleaders that must not be seen: {misled}, in {observed} changes seen")?;
        }
        if self.several > 0 {
            let (not_all, several) = (self.not_all(), self.several);
            write!(f, "\nseveral keys, and not all of them: {not_all} of {several}")?;
        }
        if let (Some(p50), Some(p99)) =
            (self.latencies.percentile(50), self.latencies.percentile(99))
        {
            let count = self.latencies.count();
            write!(f, "\nloss latency of {count}: p50 {p50:.1?}, p99 {p99:.1?}")?;
        }
        if self.keys_tried > 0 {
            let had = self.keys_tried - self.not_had();
            write!(f, "\nkeys acquired at the end: {had} of {}", self.keys_tried)?;
        }
        Ok(())
    }
}

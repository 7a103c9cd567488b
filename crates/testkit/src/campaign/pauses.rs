//! How long faults kept everybody from getting anything.
//!
//! In: when each fault struck, and the history of one that locks a key of its own all the time. Out: for
//! each kind of fault, how long it could not, after it struck and before the next one did: the time that
//! recovery took. What the whole campaign slept through, as on a machine that is stopped, does not count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::time::Clock;

use super::field::PROBE;
use crate::history::{Event, History};
use crate::wait::pass;

/// How long before a fault the last grant may be, in nanoseconds, if nothing was amiss by then.
const JUST_BEFORE: u64 = 50_000_000;

/// How often it is looked whether we are awake, and from when on we were not.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const ASLEEP: Duration = Duration::from_millis(500);

/// A fault, and when it began, in nanoseconds of the host's boot-time clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blow {
    pub(super) name: &'static str,
    pub(super) at: u64,
}

/// The pauses that one kind of fault made, the longest of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses(Vec<Duration>);

impl Pauses {
    /// The one in the middle.
    pub fn median(&self) -> Duration {
        self.0.get(self.0.len() / 2).copied().unwrap_or_default()
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}

/// When the campaign itself stood still, from and to, until it is over.
pub(super) fn sleeps(over: &AtomicBool) -> Vec<(u64, u64)> {
    let (clock, mut sleeps) = (Clock::system(), Vec::new());
    let mut last = clock.now();
    while !over.load(Ordering::Relaxed) {
        pass(LOOK_EVERY);
        let now = clock.now();
        if now.since(last) > ASLEEP {
            sleeps.push((last.as_nanos(), now.as_nanos()));
        }
        last = now;
    }
    sleeps
}

/// What each kind of fault did.
pub(super) fn pauses(
    blows: &[Blow],
    sleeps: &[(u64, u64)],
    history: &History,
) -> BTreeMap<&'static str, Pauses> {
    let records = history.records().iter();
    let granted = records.filter(|record| record.key == PROBE);
    let granted = granted.filter(|record| matches!(record.event, Event::Granted { .. }));
    let grants: Vec<u64> = granted.map(|record| record.at).collect();
    let mut all = BTreeMap::<_, Pauses>::new();
    for (number, blow) in blows.iter().enumerate() {
        let next = blows.get(number + 1).map_or(u64::MAX, |next| next.at);
        all.entry(blow.name).or_default().0.push(longest(&grants, sleeps, blow.at, next));
    }
    all.values_mut().for_each(|pauses| pauses.0.sort());
    all
}

/// The longest time without a grant that began after `from`, or just before, and before `next`. One that
/// was under way for longer is an earlier fault's.
fn longest(grants: &[u64], sleeps: &[(u64, u64)], from: u64, next: u64) -> Duration {
    let first = grants.partition_point(|at| *at < from);
    let before = first.checked_sub(1).map_or(0, |at| grants[at]);
    let mut last = (from - before <= JUST_BEFORE).then_some(from);
    let slept = |from: u64, to: u64| sleeps.iter().any(|sleep| sleep.0 < to && from < sleep.1);
    let mut pause = 0;
    for at in &grants[first..] {
        let since = last.filter(|last| !slept(*last, *at)).unwrap_or(*at);
        pause = pause.max(at - since);
        last = Some(*at);
        if *at >= next {
            break;
        }
    }
    Duration::from_nanos(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause counts from the fault on, and for the fault after which it began.
    #[test]
    fn pauses_belong_to_faults() {
        let grants = [10, 20, 90, 100, 130].map(|at| at * 10_000_000);
        let pause = |from: u64, next: u64| {
            let (from, next) = (from * 10_000_000, next.saturating_mul(10_000_000));
            longest(&grants, &[(1_050_000_000, 1_100_000_000)], from, next).as_millis()
        };
        assert_eq!(pause(15, 95), 700);
        assert_eq!(pause(22, 95), 680);
        assert_eq!(pause(50, 95), 100, "the pause was there before it");
        assert_eq!(pause(95, u64::MAX), 50, "nobody was awake");
        assert_eq!(pause(200, u64::MAX), 0);
    }
}

//! How long faults prevented the acquisition of a lock.
//!
//! In: the time of each fault, and the history of the probe, which locks its own key all the time. Out: for
//! each kind of fault, the longest time without a grant that began after the fault and before the next one:
//! the time that recovery took. Periods in which the whole campaign did not run, as on a machine that is
//! suspended, do not count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::time::Clock;

use super::contenders::PROBE;
use crate::history::{Event, History};
use crate::wait::pass;

/// If the last grant was not earlier than this before a fault, in nanoseconds, then the probe worked until
/// the fault.
const JUST_BEFORE: u64 = 50_000_000;

/// How often the watchdog wakes up, and the gap from which on the campaign counts as asleep.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const ASLEEP: Duration = Duration::from_millis(500);

/// A fault, and its start in nanoseconds of the host's boot-time clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    pub(super) name: &'static str,
    pub(super) at: u64,
}

/// The longest pause after each fault of one kind, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses(Vec<Duration>);

impl Pauses {
    /// The median of the pauses.
    pub fn median(&self) -> Duration {
        self.0.get(self.0.len() / 2).copied().unwrap_or_default()
    }

    /// The longest pause.
    pub fn longest(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}

/// Records the periods in which the campaign itself did not run, as start and end, until `over` is set.
pub(super) fn sleeps(over: &AtomicBool) -> Vec<(u64, u64)> {
    let (clock, mut sleeps) = (Clock::system(), Vec::new());
    let mut last = clock.now();
    while !over.load(Ordering::Relaxed) {
        pass(POLL_INTERVAL);
        let now = clock.now();
        if now.since(last) > ASLEEP {
            sleeps.push((last.as_nanos(), now.as_nanos()));
        }
        last = now;
    }
    sleeps
}

/// The pauses by kind of fault.
pub(super) fn pauses(
    pauses_made: &[Pause],
    sleeps: &[(u64, u64)],
    history: &History,
) -> BTreeMap<&'static str, Pauses> {
    let records = history.records().iter();
    let granted = records.filter(|record| record.key == PROBE);
    let granted = granted.filter(|record| matches!(record.event, Event::Granted { .. }));
    let grants: Vec<u64> = granted.map(|record| record.at).collect();
    let mut all = BTreeMap::<_, Pauses>::new();
    for (number, pause_made) in pauses_made.iter().enumerate() {
        let next = pauses_made.get(number + 1).map_or(u64::MAX, |next| next.at);
        all.entry(pause_made.name).or_default().0.push(longest(
            &grants,
            sleeps,
            pause_made.at,
            next,
        ));
    }
    all.values_mut().for_each(|pauses| pauses.0.sort());
    all
}

/// The longest time without a grant that began after `from`, or just before it, and before `next`. A pause
/// that began earlier belongs to an earlier fault.
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

    /// A pause counts from the fault on, and belongs to the fault after which it began.
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

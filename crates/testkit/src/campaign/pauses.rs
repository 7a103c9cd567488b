//! How long faults kept everybody from getting anything.
//!
//! In: when each fault struck, and the history. Out: for each kind of fault, how long nobody was
//! granted any key after it struck and before the next one did: the time that recovery took.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Event, History};

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

/// What each kind of fault did.
pub(super) fn pauses(blows: &[Blow], history: &History) -> BTreeMap<&'static str, Pauses> {
    let records = history.records().iter();
    let granted = records.filter(|record| matches!(record.event, Event::Granted { .. }));
    let grants: Vec<u64> = granted.map(|record| record.at).collect();
    let mut all = BTreeMap::<_, Pauses>::new();
    for (number, blow) in blows.iter().enumerate() {
        let next = blows.get(number + 1).map_or(u64::MAX, |next| next.at);
        all.entry(blow.name).or_default().0.push(longest(&grants, blow.at, next));
    }
    all.values_mut().for_each(|pauses| pauses.0.sort());
    all
}

/// The longest time without a grant that began after `from`, or was under way then, and before `next`.
fn longest(grants: &[u64], from: u64, next: u64) -> Duration {
    let first = grants.partition_point(|at| *at < from);
    let mut last = from;
    let mut pause = 0;
    for at in &grants[first..] {
        pause = pause.max(at - last);
        last = *at;
        if last >= next {
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
        let grants = [10, 20, 90, 100, 130];
        let pause = |from, next| longest(&grants, from, next).as_nanos();
        assert_eq!(pause(15, 95), 70);
        assert_eq!(pause(50, 95), 40);
        assert_eq!(pause(95, u64::MAX), 30);
        assert_eq!(pause(200, u64::MAX), 0);
    }
}

//! Locks that the server still keeps though nobody relies on them any more.
//!
//! In: looks at the server while a campaign goes on, and the history of it. Out: how long the
//! longest orphan kept everybody out.
//!
//! Contenders label each claim `process/task/claim`, so that what the server shows can be found in
//! the history. A key is an orphan's from when the last one of the process that held it by that
//! grant stopped relying on it (or gave up asking, or was killed) until it is gone from the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Clock;

use crate::history::{Event, History};
use crate::judge::{Hold, holds};
use crate::wait::pass;

/// How often the server is looked at: an orphan is measured to within this.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Looks at the server.
pub(super) struct Watch {
    clock: Clock,
    keys: Vec<String>,
    seen: Mutex<Vec<Sighting>>,
}

/// One claim at the server, for as long as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    key: String,
    label: String,
    first: u64,
    last: u64,
}

/// What orphans there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// How many claims were seen at the server.
    pub seen: usize,
    /// How long the longest was kept with nobody relying on it.
    pub longest: Duration,
    /// The same, of processes that were never killed.
    pub longest_of_living: Duration,
}

impl Watch {
    pub(super) fn new(keys: &[String]) -> Self {
        Watch { clock: Clock::system(), keys: keys.into(), seen: Mutex::default() }
    }

    /// Looks until it is over.
    pub(super) fn until(&self, over: &AtomicBool, look: impl Fn() -> Option<Vec<Option<String>>>) {
        let mut open = vec![None; self.keys.len()];
        while !over.load(Ordering::Relaxed) {
            // The answer is at least as old as this.
            let at = self.clock.now().as_nanos();
            for (index, label) in look().unwrap_or_default().into_iter().enumerate() {
                self.see(&mut open[index], index, label, at);
            }
            pass(LOOK_EVERY);
        }
        open.into_iter().flatten().for_each(|sighting| self.close(sighting));
    }

    fn see(&self, open: &mut Option<Sighting>, index: usize, label: Option<String>, at: u64) {
        match (open.as_mut(), label) {
            (Some(known), Some(label)) if known.label == label => known.last = at,
            (_, label) => {
                let key = self.keys[index].clone();
                let next = label.map(|label| Sighting { key, label, first: at, last: at });
                std::mem::replace(open, next).into_iter().for_each(|seen| self.close(seen));
            }
        }
    }

    fn close(&self, sighting: Sighting) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(sighting);
    }

    /// What was seen, held against what was claimed.
    pub(super) fn orphans(&self, history: &History) -> Orphans {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let claims = Claims::of(history);
        let longest = |counts: &dyn Fn(&&Sighting) -> bool| {
            let all = seen.iter().filter(counts).map(|sighting| claims.unclaimed(sighting));
            Duration::from_nanos(all.max().unwrap_or_default())
        };
        let lives = |sighting: &&Sighting| !claims.killed.contains_key(process(&sighting.label));
        let (longest, longest_of_living) = (longest(&|_| true), longest(&lives));
        Orphans { seen: seen.len(), longest, longest_of_living }
    }
}

/// A key of a process.
type Spot = (String, String);

/// Who claimed what, by process.
struct Claims {
    /// In the order in which they were reported.
    holds: HashMap<Spot, Vec<Hold>>,
    /// When each claim that was not granted was given up, by its label.
    given_up: HashMap<String, u64>,
    killed: HashMap<String, u64>,
}

impl Claims {
    fn of(history: &History) -> Self {
        let mut claims =
            Claims { holds: HashMap::new(), given_up: HashMap::new(), killed: HashMap::new() };
        for hold in holds(history) {
            let spot = (process(&hold.owner).to_owned(), hold.key.clone());
            claims.holds.entry(spot).or_default().push(hold);
        }
        for record in history.records() {
            let label = || format!("{}/{}", record.owner, record.claim);
            match record.event {
                Event::GaveUp { .. } => drop(claims.given_up.insert(label(), record.at)),
                Event::Killed => drop(claims.killed.insert(record.owner.clone(), record.at)),
                _ => {}
            }
        }
        claims
    }

    /// For how long, in nanoseconds, it was seen with nobody relying on it.
    fn unclaimed(&self, sighting: &Sighting) -> u64 {
        let Sighting { key, label, first, last } = sighting;
        let process = process(label);
        let holds = self.holds.get(&(process.to_owned(), key.clone()));
        let ends = holds.into_iter().flatten();
        let ends = ends.filter(|hold| hold.reported <= *last && hold.end > *first);
        let claimed_until = ends.map(|hold| hold.end).max().or_else(|| {
            let ends = [self.given_up.get(label), self.killed.get(process)];
            ends.into_iter().flatten().min().copied()
        });
        // One that is neither held nor given up is still asked for.
        last.saturating_sub(claimed_until.unwrap_or(*last).max(*first))
    }
}

/// The process of an owner or a label.
fn process(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Record;

    fn record(at: u64, claim: u64, event: Event) -> Record {
        Record { at, owner: "p0/t0".into(), claim, key: "x".into(), event }
    }

    fn unclaimed(records: Vec<Record>, label: &str, first: u64, last: u64) -> u64 {
        let sighting = Sighting { key: "x".into(), label: label.into(), first, last };
        Claims::of(&History::new(records)).unclaimed(&sighting)
    }

    /// An orphan's time counts from the end of the last hold, from the giving up, or from the kill.
    #[test]
    fn time_counts_from_the_last_claim() {
        let granted = Event::Granted { fence: 1, valid_until: 40 };
        let held = || vec![record(5, 0, Event::Asked), record(10, 0, granted.clone())];
        assert_eq!(unclaimed(held(), "p0/t0/0", 8, 90), 50, "valid until 40");
        assert_eq!(unclaimed(held(), "p0/t0/0", 8, 30), 0, "still valid");
        let gone = Event::GaveUp { error: "late".into() };
        let given_up = || vec![record(5, 1, Event::Asked), record(20, 1, gone.clone())];
        assert_eq!(unclaimed(given_up(), "p0/t0/1", 30, 90), 60);
        assert_eq!(unclaimed(given_up(), "p0/t0/1", 10, 90), 70);
        assert_eq!(unclaimed(vec![record(5, 2, Event::Asked)], "p0/t0/2", 30, 90), 0, "asked for");
        let mut killed = record(50, 0, Event::Killed);
        killed.owner = "p0".into();
        assert_eq!(unclaimed(vec![killed], "p0/t0/3", 30, 90), 40);
    }

    /// A claim is followed from look to look, also over looks without an answer.
    #[test]
    fn looks_become_sightings() {
        let watch = Watch::new(&["x".into()]);
        let mut open = None;
        for (at, label) in [(1, None), (2, Some("a")), (4, Some("a")), (5, Some("b")), (6, None)] {
            watch.see(&mut open, 0, label.map(String::from), at);
        }
        assert_eq!(open, None);
        let sighting = |label: &str, first, last| Sighting {
            key: "x".into(),
            label: label.into(),
            first,
            last,
        };
        assert_eq!(*watch.seen.lock().unwrap(), [sighting("a", 2, 4), sighting("b", 5, 5)]);
    }
}

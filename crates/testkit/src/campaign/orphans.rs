//! What the server shows during a campaign: locks that no process relies on, and the order of service.
//!
//! In: polls of the server during a campaign, and the history. Out: how long the longest orphan blocked a
//! key; and the comparison of each poll with the one before ([`Turns`]).
//!
//! Contenders label each claim `process/task/claim`, so that a holder on the server can be found in the
//! history. A lock is an orphan from the moment when the last task of its process stopped relying on that
//! grant (or gave up asking, or was killed) until it is gone from the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Clock;

use crate::history::{Event, History};
use crate::judge::{Claimed, Hold, Snapshot, Turns, holds};
use crate::wait::pass;

/// How often the server is polled: the precision of the measured time.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls the server.
pub(super) struct Watch {
    clock: Clock,
    keys: Vec<String>,
    seen: Mutex<Vec<Sighting>>,
    turns: Mutex<Turns>,
}

/// One claim on the server, and the time during which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    key: String,
    label: String,
    first: u64,
    last: u64,
}

/// The orphans of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// The number of claims seen on the server.
    pub seen: usize,
    /// The longest time for which a lock stayed on the server without an owner that relied on it.
    pub longest: Duration,
    /// The same, only for processes that were never killed.
    pub longest_of_living: Duration,
}

impl Watch {
    pub(super) fn new(keys: &[String]) -> Self {
        let (seen, turns) = Default::default();
        Watch { clock: Clock::system(), keys: keys.into(), seen, turns }
    }

    /// Polls until `over` is set.
    pub(super) fn until(&self, over: &AtomicBool, look: impl Fn() -> Option<Vec<Snapshot>>) {
        let mut open = vec![Vec::new(); self.keys.len()];
        let mut before = vec![Snapshot::default(); self.keys.len()];
        while !over.load(Ordering::Relaxed) {
            // Read the clock first: the reply is newer than this.
            let at = self.clock.now().as_nanos();
            for (index, now) in look().unwrap_or_default().into_iter().enumerate() {
                self.see(&mut open[index], index, &now.holders, at);
                self.turns().compare(&self.keys[index], &before[index], &now);
                before[index] = now;
            }
            pass(POLL_INTERVAL);
        }
        open.into_iter().flatten().for_each(|sighting| self.close(sighting));
    }

    /// The order of service that was seen.
    pub(super) fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, open: &mut Vec<Sighting>, index: usize, holders: &[Claimed], at: u64) {
        let stays = |known: &mut Sighting| holders.iter().any(|claim| claim.label == known.label);
        let gone: Vec<Sighting> = open.extract_if(.., |known| !stays(known)).collect();
        gone.into_iter().for_each(|sighting| self.close(sighting));
        open.iter_mut().for_each(|known| known.last = at);
        for Claimed { label, .. } in holders {
            if !open.iter().any(|known| known.label == *label) {
                let (key, label) = (self.keys[index].clone(), label.clone());
                open.push(Sighting { key, label, first: at, last: at });
            }
        }
    }

    fn close(&self, sighting: Sighting) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(sighting);
    }

    /// Compares the claims on the server with the history.
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

/// A process and a key.
type Spot = (String, String);

/// The claims in the history, by process.
struct Claims {
    /// In the order in which they were reported.
    holds: HashMap<Spot, Vec<Hold>>,
    /// The time at which each claim without a grant was given up, by its label.
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

    /// For how long, in nanoseconds, the claim was seen while no owner relied on it.
    fn unclaimed(&self, sighting: &Sighting) -> u64 {
        let Sighting { key, label, first, last } = sighting;
        let process = process(label);
        let holds = self.holds.get(&(process.to_owned(), key.clone()));
        let holds = || holds.into_iter().flatten();
        // The claim of a task that gave up may have become the lease of another task.
        let lease = holds().find(|hold| hold.label() == *label).map(Hold::lease);
        let ends = holds().filter(|hold| lease.is_none_or(|lease| hold.lease() == lease));
        let ends = ends.filter(|hold| hold.reported <= *last && hold.end > *first);
        let claimed_until = ends.map(|hold| hold.end).max().or_else(|| {
            let ends = [self.given_up.get(label), self.killed.get(process)];
            ends.into_iter().flatten().min().copied()
        });
        // A claim that is neither held nor given up is still wanted.
        last.saturating_sub(claimed_until.unwrap_or(*last).max(*first))
    }
}

/// The process in the name of an owner or a label.
fn process(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Record;
    use tenure_core::Mode;

    const ASKED: Event = Event::Asked { mode: Mode::Exclusive };

    fn granted(fence: u64, valid_until: u64) -> Event {
        Event::Granted { fence, valid_until, slot: None }
    }

    fn record(at: u64, claim: u64, event: Event) -> Record {
        Record { at, owner: "p0/t0".into(), claim, key: "x".into(), event }
    }

    fn unclaimed(records: Vec<Record>, label: &str, first: u64, last: u64) -> u64 {
        let sighting = Sighting { key: "x".into(), label: label.into(), first, last };
        Claims::of(&History::new(records)).unclaimed(&sighting)
    }

    /// The time of an orphan counts from the end of the last hold, from giving up, or from the kill.
    #[test]
    fn time_counts_from_the_last_claim() {
        let held = || vec![record(5, 0, ASKED), record(10, 0, granted(1, 40))];
        assert_eq!(unclaimed(held(), "p0/t0/0", 8, 90), 50, "valid until 40");
        assert_eq!(unclaimed(held(), "p0/t0/0", 8, 30), 0, "still valid");
        let gone = Event::GaveUp { error: "late".into() };
        let given_up = || vec![record(5, 1, ASKED), record(20, 1, gone.clone())];
        assert_eq!(unclaimed(given_up(), "p0/t0/1", 30, 90), 60);
        assert_eq!(unclaimed(given_up(), "p0/t0/1", 10, 90), 70);
        assert_eq!(unclaimed(vec![record(5, 2, ASKED)], "p0/t0/2", 30, 90), 0, "asked for");
        let mut killed = record(50, 0, Event::Killed);
        killed.owner = "p0".into();
        assert_eq!(unclaimed(vec![killed], "p0/t0/3", 30, 90), 40);
    }

    /// A permit is an orphan also while its process holds another permit of the key.
    #[test]
    fn each_lease_counts_for_itself() {
        let records = vec![
            record(5, 0, ASKED),
            record(10, 0, granted(1 << 13, 40)),
            record(11, 1, ASKED),
            record(12, 1, granted(2 << 13, 200)),
        ];
        assert_eq!(unclaimed(records.clone(), "p0/t0/0", 8, 90), 50);
        assert_eq!(unclaimed(records, "p0/t0/1", 12, 90), 0);
    }

    /// A claim is followed from poll to poll, also over a poll without a reply.
    #[test]
    fn looks_become_sightings() {
        let watch = Watch::new(&["x".into()]);
        let mut open = Vec::new();
        let polls = [(1, vec![]), (2, vec!["a"]), (4, vec!["a", "b"]), (5, vec!["b"]), (6, vec![])];
        for (at, labels) in polls {
            let claimed = |label: &&str| Claimed { token: String::new(), label: (*label).into() };
            watch.see(&mut open, 0, &labels.iter().map(claimed).collect::<Vec<_>>(), at);
        }
        assert_eq!(open, []);
        let sighting = |label: &str, first, last| Sighting {
            key: "x".into(),
            label: label.into(),
            first,
            last,
        };
        assert_eq!(*watch.seen.lock().unwrap(), [sighting("a", 2, 4), sighting("b", 4, 5)]);
    }
}

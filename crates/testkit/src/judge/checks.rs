//! The checks, each a function from holds to offences.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::{Mode, admits};

use super::Reached;
use super::grants::{GivenUp, Hold};
use super::verdict::{Latencies, Offence};
use crate::register::Tally;

/// 1: holds of several owners on one key overlap only if they can hold it together.
pub(super) fn overlaps(holds: &[Hold]) -> Vec<Offence> {
    let mut found = Vec::new();
    for holds in by_key(holds).values() {
        let mut open: Vec<&Hold> = Vec::new();
        // Holds are ordered by their start, so the next one overlaps every hold that has not ended yet.
        for next in holds.iter().filter(|hold| !hold.is_empty()) {
            open.retain(|hold| hold.end > next.reported);
            let others = open.iter().filter(|hold| hold.owner != next.owner);
            let met: Vec<_> = others.filter(|hold| !hold.fits(next)).collect();
            found.extend(met.iter().map(|hold| Offence::overlap(hold, next)));
            if met.is_empty() {
                found.extend(over_capacity(&open, next));
            }
            open.push(next);
        }
    }
    found
}

/// 1: permits that are held at the same time are at most as many as the largest capacity among them. A hold that
/// an owner entered again counts once.
fn over_capacity(open: &[&Hold], next: &Hold) -> Option<Offence> {
    let mut holds = vec![next];
    for hold in open {
        let again = |other: &&Hold| (&other.owner, other.fence) == (&hold.owner, hold.fence);
        if !holds.iter().any(again) {
            holds.push(hold);
        }
    }
    let largest = holds.iter().max_by_key(|hold| hold.capacity())?;
    let others = holds.iter().filter(|hold| !std::ptr::eq(*hold, largest));
    let fits = largest.capacity().is_none() || admits(others.map(|hold| &hold.mode), &largest.mode);
    (!fits).then(|| Offence::OverCapacity { holds: holds.into_iter().cloned().collect() })
}

/// 1: the slot of a permit is lower than its capacity.
pub(super) fn slots_too_high(holds: &[Hold]) -> impl Iterator<Item = Offence> {
    let too_high = |hold: &&Hold| hold.slot.is_some() && hold.slot >= hold.capacity();
    holds.iter().filter(too_high).map(|hold| Offence::SlotTooHigh(Box::new(hold.clone())))
}

/// The result of the check of fence order.
pub(super) struct Order {
    pub(super) offences: Vec<Offence>,
    /// Local hand-overs of a lease that the server had ended without a signal.
    pub(super) exempt: usize,
}

/// 2: a grant that was requested after another grant was reported has a higher fence, if both cannot be held at
/// the same time.
pub(super) fn fence_order(
    holds: &[Hold],
    taken: &[(u64, &str)],
    given_up: &[GivenUp<'_>],
) -> Order {
    let mut order = Order { offences: Vec::new(), exempt: 0 };
    for (key, reported) in by_key(holds) {
        let mut asked = reported.clone();
        asked.sort_by_key(|hold| hold.asked);
        let mut earlier = reported.iter().peekable();
        let mut highest: HashMap<(&Mode, Option<u32>), &Hold> = HashMap::new();
        for next in asked {
            while let Some(hold) = earlier.next_if(|hold| hold.reported < next.asked) {
                let alike = highest.entry((&hold.mode, hold.slot)).or_insert(hold);
                *alike = if alike.fence >= hold.fence { *alike } else { hold };
            }
            let apart = highest.values().filter(|high| !high.fits(next));
            match apart.max_by_key(|high| high.fence) {
                Some(high) if high.fence >= next.fence && !is_reentry(next, &reported) => {
                    let since = lease_asked(next, &reported, given_up);
                    let exempt = since.is_some_and(|since| {
                        let ended = |(at, of): &(u64, &str)| {
                            *of == key && since < *at && *at <= next.reported
                        };
                        taken.iter().any(ended)
                    });
                    order.note(high, next, exempt);
                }
                _ => {}
            }
        }
    }
    order
}

impl Order {
    fn note(&mut self, high: &Hold, next: &Hold, exempt: bool) {
        if exempt {
            self.exempt += 1;
        } else {
            self.offences.push(Offence::fence_order(high, next));
        }
    }
}

/// A re-entry of the same owner has the fence of the first hold, as long as that is held.
fn is_reentry(hold: &Hold, all: &[&Hold]) -> bool {
    let first = |other: &&Hold| {
        let same = other.owner == hold.owner && other.fence == hold.fence;
        same && other.claim != hold.claim && other.reported < hold.reported
    };
    all.iter().copied().filter(first).any(|other| hold.asked < other.end)
}

/// When the lease of `hold` was requested, if another claim requested it: that of an earlier holder, or that
/// of a task that gave up and left its claim to the next local waiter. Such a lease may have been deleted at
/// the server before `hold` was requested; a lease that `hold` requested itself cannot.
fn lease_asked(hold: &Hold, all: &[&Hold], given_up: &[GivenUp<'_>]) -> Option<u64> {
    let same_lease = |other: &&&Hold| other.lease() == hold.lease();
    let first = all.iter().find(same_lease).filter(|first| first.claim_id() != hold.claim_id());
    let left_behind = given_up.iter().filter(|claim| {
        let is_mate = claim.key == hold.key && process(claim.owner) == process(&hold.owner);
        is_mate && (hold.asked..=hold.reported).contains(&claim.at)
    });
    first.map(|first| first.asked).or_else(|| left_behind.map(|claim| claim.asked).min())
}

/// The process in an owner's name `process/task`.
fn process(owner: &str) -> &str {
    owner.split('/').next().unwrap_or(owner)
}

/// 2: no two owners have the same fence, except for readers: those of one process share a lease.
pub(super) fn repeated_fences(holds: &[Hold]) -> Vec<Offence> {
    let mut seen: HashMap<(&str, u64), &Hold> = HashMap::new();
    let mut found = Vec::new();
    for hold in holds {
        match seen.insert((&hold.key, hold.fence), hold) {
            Some(first) if first.owner != hold.owner && !read_both(first, hold) => {
                found.push(Offence::fence_repeated(first, hold));
            }
            _ => {}
        }
    }
    found
}

fn read_both(one: &Hold, other: &Hold) -> bool {
    one.mode == Mode::Read && other.mode == Mode::Read
}

/// 3: the fenced value lost no update, and did not change while a reader held the key.
pub(super) fn register(tally: &Tally) -> impl Iterator<Item = Offence> {
    let lost = (tally.fenced_lost() > 0).then_some(Offence::UpdateLost { tally: *tally });
    let torn = (tally.fenced_torn > 0).then_some(Offence::ReadTorn { tally: *tally });
    lost.into_iter().chain(torn)
}

/// 4: each key could be acquired in time.
pub(super) fn unreached(reached: Vec<Reached>) -> impl Iterator<Item = Offence> {
    let late = |fact: &Reached| fact.after.is_none_or(|after| after > fact.within);
    reached.into_iter().filter(late).map(Offence::NotHad)
}

/// 5: the time from the deletion of a lock at the server to the signal at its holder.
pub(super) fn loss_latency(holds: &[Hold], taken: &[(u64, &str)]) -> Latencies {
    let one = |(at, key): &(u64, &str)| {
        let was_held = |hold: &&Hold| hold.key == *key && hold.reported <= *at && *at < hold.end;
        let lost = holds.iter().filter(was_held).filter_map(|hold| hold.lost).min()?;
        Some(Duration::from_nanos(lost.saturating_sub(*at)))
    };
    Latencies::new(taken.iter().filter_map(one).collect())
}

fn by_key(holds: &[Hold]) -> HashMap<&str, Vec<&Hold>> {
    let mut keys: HashMap<&str, Vec<&Hold>> = HashMap::new();
    for hold in holds {
        keys.entry(&hold.key).or_default().push(hold);
    }
    keys
}

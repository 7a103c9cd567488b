//! The checks, each a function from holds to offences.

use std::collections::HashMap;
use std::time::Duration;

use super::Reached;
use super::grants::{GivenUp, Hold};
use super::verdict::{Latencies, Offence};
use crate::register::Tally;

/// The low bits of a fence count local hand-offs within one grant of the server.
const LOCAL_BITS: u32 = 13;

/// 1: no two owners' holds on a key meet.
pub(super) fn overlaps(holds: &[Hold]) -> Vec<Offence> {
    let mut found = Vec::new();
    for holds in by_key(holds).values() {
        let mut open: Vec<&Hold> = Vec::new();
        // They come in the order of their beginnings, so whatever has not ended yet is met.
        for next in holds.iter().filter(|hold| !hold.is_empty()) {
            open.retain(|hold| hold.end > next.reported);
            let met = open.iter().filter(|hold| hold.owner != next.owner);
            found.extend(met.map(|hold| Offence::overlap(hold, next)));
            open.push(next);
        }
    }
    found
}

/// What the fences' order came to.
pub(super) struct Order {
    pub(super) offences: Vec<Offence>,
    /// Local grants from a lease that the server had silently ended.
    pub(super) exempt: usize,
}

/// 2: what was asked for after a grant was reported has a higher fence.
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
        let mut highest: Option<&Hold> = None;
        for next in asked {
            while let Some(hold) = earlier.next_if(|hold| hold.reported < next.asked) {
                highest = highest.filter(|high| high.fence >= hold.fence).or(Some(hold));
            }
            match highest {
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

/// The same owner's second guard carries the first one's fence, as long as that is held.
fn is_reentry(hold: &Hold, all: &[&Hold]) -> bool {
    let first = |other: &&Hold| {
        let same = other.owner == hold.owner && other.fence == hold.fence;
        same && other.claim != hold.claim && other.reported < hold.reported
    };
    all.iter().copied().filter(first).any(|other| hold.asked < other.end)
}

/// When the lease was asked for that `hold` was handed out from, if another asked for it: a holder
/// before it, or one who gave up and left its claim to those behind it. Such a lease may have been
/// taken away at the server before `hold` was even asked for; one's own cannot.
fn lease_asked(hold: &Hold, all: &[&Hold], given_up: &[GivenUp<'_>]) -> Option<u64> {
    let same_lease = |other: &&&Hold| other.fence >> LOCAL_BITS == hold.fence >> LOCAL_BITS;
    let first = all.iter().find(same_lease).filter(|first| first.claim_id() != hold.claim_id());
    let left_behind = given_up.iter().filter(|claim| {
        let is_mate = claim.key == hold.key && process(claim.owner) == process(&hold.owner);
        is_mate && (hold.asked..=hold.reported).contains(&claim.at)
    });
    first.map(|first| first.asked).or_else(|| left_behind.map(|claim| claim.asked).min())
}

/// The process of an owner: `process/task`.
fn process(owner: &str) -> &str {
    owner.split('/').next().unwrap_or(owner)
}

/// 2: all are different.
pub(super) fn repeated_fences(holds: &[Hold]) -> Vec<Offence> {
    let mut seen: HashMap<(&str, u64), &Hold> = HashMap::new();
    let mut found = Vec::new();
    for hold in holds {
        match seen.insert((&hold.key, hold.fence), hold) {
            Some(first) if first.owner != hold.owner => {
                found.push(Offence::fence_repeated(first, hold));
            }
            _ => {}
        }
    }
    found
}

/// 3: the fenced value lost nothing.
pub(super) fn lost_updates(tally: &Tally) -> Option<Offence> {
    (tally.fenced_lost() > 0).then_some(Offence::UpdateLost { tally: *tally })
}

/// 4: each key could be had in time.
pub(super) fn unreached(reached: Vec<Reached>) -> impl Iterator<Item = Offence> {
    let late = |fact: &Reached| fact.after.is_none_or(|after| after > fact.within);
    reached.into_iter().filter(late).map(Offence::NotHad)
}

/// 5: from a lock's being taken away to the holder's signal.
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

//! Several keys at once: all of them, or none.
//!
//! In: the history, and its holds. Out: every request that reported some of its keys, or keys that were not all held
//! at one moment.

use std::collections::{BTreeMap, BTreeSet};

use super::grants::Hold;
use super::verdict::Offence;
use crate::history::{Event, History};

/// A request: the owner, and the number of its claims.
type Id<'a> = (&'a str, u64);

/// The requests for several keys that were granted: the holds of each.
pub(super) fn requests<'a>(
    history: &'a History,
    holds: &'a [Hold],
) -> BTreeMap<Id<'a>, Vec<&'a Hold>> {
    let mut keys = BTreeMap::<Id<'_>, BTreeSet<&str>>::new();
    for record in history.records() {
        if let Event::Asked { .. } = record.event {
            keys.entry((&record.owner, record.claim)).or_default().insert(&record.key);
        }
    }
    let mut requests = BTreeMap::<_, Vec<_>>::new();
    for hold in
        holds.iter().filter(|hold| keys.get(&hold.claim_id()).is_some_and(|it| it.len() > 1))
    {
        requests.entry(hold.claim_id()).or_default().push(hold);
    }
    requests
}

/// 8: a request that reports a key reports all of them, and there was a moment at which it held them all.
pub(super) fn not_all(history: &History, holds: &[Hold]) -> Vec<Offence> {
    let requests = requests(history, holds);
    let offence = |holds: &Vec<&Hold>| Offence::NotAll {
        holds: holds.iter().map(|hold| (*hold).clone()).collect(),
    };
    let refused = history.records().iter().filter_map(|record| match record.event {
        Event::GaveUp { .. } => requests.get(&(record.owner.as_str(), record.claim)),
        _ => None,
    });
    let apart = requests.values().filter(|request| !met(request, holds));
    refused.chain(apart).map(offence).collect()
}

/// Whether no key of the request had ended before another one could be granted, because its last holder relied on it.
fn met(request: &[&Hold], holds: &[Hold]) -> bool {
    let first_end = request.iter().map(|hold| hold.end).min().unwrap_or(u64::MAX);
    // Nearly always no key has ended when the last one is reported.
    request.iter().filter(|ours| first_end <= ours.reported).all(|ours| {
        let late = |other: &&Hold| {
            let apart = other.key == ours.key && other.owner != ours.owner && !other.fits(ours);
            let before = other.fence < ours.fence && !other.is_empty();
            apart && before && (first_end..=ours.reported).contains(&other.end)
        };
        !holds.iter().any(|other| late(&other))
    })
}

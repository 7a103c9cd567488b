//! What observers of elections were shown.
//!
//! In: the history, and its holds. Out: every sighting of a leader that breaks a promise of elections ([`Misled`]).
//!
//! That two leaders never believe to lead at the same time is the check of overlaps: a leadership is a hold.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use super::grants::{Hold, Moment};
use super::verdict::Offence;
use crate::history::{Event, History};

/// A leader as an observer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The observer.
    pub observer: String,
    /// The key of the election.
    pub key: String,
    /// The value of the leader.
    pub value: String,
    /// The term of the leader, if it was shown.
    pub term: Option<u64>,
    /// When it was seen first.
    pub at: u64,
    /// When the observer saw something else, or stopped to look; `None` if its last record is this one.
    pub until: Option<u64>,
}

/// How an observer was misled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misled {
    /// It saw a lower term than before.
    OlderTerm,
    /// Nobody had proclaimed this value in this term.
    NotProclaimed,
    /// The leadership had ended, and the observer saw neither nobody nor a higher term in time.
    Ended,
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sighting { observer, key, value, term, at, until } = self;
        let (from, until) = (Moment(*at), Moment(until.unwrap_or(u64::MAX)));
        let term = term.map_or("?".into(), |term| term.to_string());
        write!(
            f,
            "`{observer}` saw `{value}` lead `{key}` in term {term} from {from} until {until}"
        )
    }
}

/// 7: terms rise, each value was proclaimed in its term, and no leader is seen for longer than `within` after its end.
pub(super) fn misled(history: &History, holds: &[Hold], within: Option<Duration>) -> Vec<Offence> {
    let past = Past::of(history, holds);
    let mut found = Vec::new();
    for seen in sightings(history) {
        let mut highest = None;
        for now in seen {
            let reasons = [
                (now.term.is_some() && now.term < highest).then_some(Misled::OlderTerm),
                (!past.has_proclaimed(&now)).then_some(Misled::NotProclaimed),
                within.filter(|within| past.ended_before(&now, *within)).map(|_| Misled::Ended),
            ];
            highest = highest.max(now.term);
            let of_now = |reason| Offence::Misled(reason, Box::new(now.clone()));
            found.extend(reasons.into_iter().flatten().map(of_now));
        }
    }
    found
}

/// The leaders that each observer saw, one after the other.
fn sightings(history: &History) -> impl Iterator<Item = Vec<Sighting>> {
    let mut observers = BTreeMap::<_, Vec<Sighting>>::new();
    for record in history.records() {
        let id = (&record.owner, record.claim, &record.key);
        let Event::Observed { value, term } = &record.event else {
            // Whatever else an observer records, it does not see a leader any more.
            end(observers.get_mut(&id), record.at);
            continue;
        };
        let seen = observers.entry(id).or_default();
        end(Some(seen), record.at);
        let (observer, key) = (record.owner.clone(), record.key.clone());
        let sighting = |value: &String| Sighting {
            observer,
            key,
            value: value.clone(),
            term: *term,
            at: record.at,
            until: None,
        };
        // Without value and term nobody is named: `file:` shows this before the holder has written its record.
        let named = value.as_ref().filter(|value| !value.is_empty() || term.is_some());
        seen.extend(named.map(sighting));
    }
    observers.into_values()
}

fn end(seen: Option<&mut Vec<Sighting>>, at: u64) {
    if let Some(last) = seen.and_then(|seen| seen.last_mut()) {
        last.until.get_or_insert(at);
    }
}

/// A claim and its key.
type Id<'a> = (&'a str, &'a str, u64);

/// Who led, and which values were proclaimed.
#[derive(Default)]
struct Past<'a> {
    /// By key and value: when it was proclaimed first, and by which claim.
    proclaimed: HashMap<(&'a str, &'a str), (u64, Id<'a>)>,
    by_term: HashMap<(&'a str, u64), &'a Hold>,
    /// By key: the time of each report, and the highest fence so far.
    highest: HashMap<&'a str, Vec<(u64, u64)>>,
}

impl<'a> Past<'a> {
    fn of(history: &'a History, holds: &'a [Hold]) -> Self {
        let mut past = Past::default();
        for record in history.records() {
            if let Event::Proclaimed { value } = &record.event {
                let claim = (record.key.as_str(), record.owner.as_str(), record.claim);
                past.proclaimed.entry((&record.key, value)).or_insert((record.at, claim));
            }
        }
        for hold in holds {
            let key = hold.key.as_str();
            past.by_term.insert((key, hold.fence), hold);
            let highest = past.highest.entry(key).or_default();
            let before = highest.last().map_or(0, |(_, fence)| *fence);
            highest.push((hold.reported, before.max(hold.fence)));
        }
        past
    }

    /// Whether the claim that leads in this term had proclaimed the value. A term that was never reported is that of a
    /// grant which its claim did not learn of. It is higher than all terms that were reported before the value was
    /// proclaimed.
    fn has_proclaimed(&self, now: &Sighting) -> bool {
        let Some((at, claim)) = self.proclaimed.get(&(&now.key, &now.value)) else { return false };
        let is_of_claim = now.term.is_none_or(|term| match self.by_term.get(&(&now.key, term)) {
            Some(hold) => (hold.key.as_str(), hold.owner.as_str(), hold.claim) == *claim,
            None => self.highest_before(&now.key, *at) < term,
        });
        *at <= now.at && is_of_claim
    }

    /// The highest fence that was reported before.
    fn highest_before(&self, key: &str, at: u64) -> u64 {
        let all = self.highest.get(key).map_or(&[][..], Vec::as_slice);
        let earlier = all.partition_point(|(reported, _)| *reported < at);
        earlier.checked_sub(1).map_or(0, |last| all[last].1)
    }

    /// Whether the leadership had ended more than `within` before the sighting did.
    fn ended_before(&self, now: &Sighting, within: Duration) -> bool {
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let of_term = now.term.and_then(|term| self.by_term.get(&(now.key.as_str(), term)));
        let latest = of_term.map_or(u64::MAX, |hold| hold.end.saturating_add(within));
        now.until.is_some_and(|until| until > latest)
    }
}

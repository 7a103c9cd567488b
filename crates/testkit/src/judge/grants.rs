//! From records to holds: which owner relied on which lock, from when until when.

use std::collections::HashMap;
use std::fmt;

use tenure_core::{Mode, admits};

use crate::history::{Event, History, Record};

/// The low bits of a fence count the local hand-overs within one grant of the server.
const LOCAL_BITS: u32 = 13;

/// One grant as its holder saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The owner.
    pub owner: String,
    /// The number of the claim among those of its owner.
    pub claim: u64,
    /// The key of the lock.
    pub key: String,
    /// How the key was held.
    pub mode: Mode,
    /// The slot of a numbered permit.
    pub slot: Option<u32>,
    /// The fence of the grant.
    pub fence: u64,
    /// When the lock was requested.
    pub asked: u64,
    /// When the caller got its guard.
    pub reported: u64,
    /// When the holder stopped relying on the lock: the earliest of release, loss, death and `valid_until`.
    pub end: u64,
    /// What ended the hold.
    pub ended_by: &'static str,
    /// When a loss was signalled, if one was.
    pub lost: Option<u64>,
}

impl Hold {
    /// Whether the holder never relied on the lock.
    pub fn is_empty(&self) -> bool {
        self.end <= self.reported
    }
}

impl Hold {
    /// Whether both may hold the key at the same time, if there are no others. Permits are judged by the larger
    /// capacity, and a slot is held by one permit.
    pub(super) fn fits(&self, other: &Hold) -> bool {
        let fit = admits([&self.mode], &other.mode) || admits([&other.mode], &self.mode);
        fit && (self.slot.is_none() || self.slot != other.slot)
    }

    /// How many permits may be taken by this claim's configuration.
    pub(super) fn capacity(&self) -> Option<u32> {
        match self.mode {
            Mode::Permits { capacity, .. } => Some(capacity),
            _ => None,
        }
    }

    /// Identifies the lease: its fences differ only by the local hand-overs.
    pub(crate) fn lease(&self) -> u64 {
        self.fence >> LOCAL_BITS
    }

    /// The label of the claim.
    pub(crate) fn label(&self) -> String {
        format!("{}/{}", self.owner, self.claim)
    }

    /// Identifies the claim among all claims of the run.
    pub(super) fn claim_id(&self) -> (&str, u64) {
        (&self.owner, self.claim)
    }
}

/// A claim that ended without a grant.
pub(super) struct GivenUp<'a> {
    pub(super) owner: &'a str,
    pub(super) key: &'a str,
    pub(super) asked: u64,
    pub(super) at: u64,
}

/// Every claim that ended without a grant.
pub(super) fn given_up(history: &History) -> Vec<GivenUp<'_>> {
    let mut asked = HashMap::new();
    let mut found = Vec::new();
    for Record { at, owner, claim, key, event } in history.records() {
        match event {
            Event::Asked { .. } => drop(asked.insert((owner, claim, key), *at)),
            Event::GaveUp { .. } => {
                let asked = asked.get(&(owner, claim, key)).copied().unwrap_or(*at);
                found.push(GivenUp { owner, key, asked, at: *at });
            }
            _ => {}
        }
    }
    found
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hold { owner, claim, key, fence, asked, reported, end, ended_by, .. } = self;
        write!(f, "`{owner}` claim {claim} on `{key}` ")?;
        if self.mode != Mode::Exclusive {
            write!(f, "({}) ", self.mode)?;
        }
        if let Some(slot) = self.slot {
            write!(f, "slot {slot} ")?;
        }
        write!(f, "fence {fence}: ")?;
        write!(f, "asked {}, held from {} ", Moment(*asked), Moment(*reported))?;
        write!(f, "until {} ({ended_by})", Moment(*end))
    }
}

/// Nanoseconds, shown as seconds.
pub(super) struct Moment(pub(super) u64);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("never"),
            nanos => write!(f, "{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000),
        }
    }
}

/// A claim while its records are read.
struct Open {
    asked: u64,
    mode: Mode,
    hold: Option<Hold>,
    valid_until: u64,
    over: bool,
}

type Claims<'a> = HashMap<(&'a str, u64, &'a str), Open>;

/// Every grant of the history, ordered by the time of its report.
pub(crate) fn holds(history: &History) -> Vec<Hold> {
    let mut claims = Claims::new();
    for record in history.records() {
        match &record.event {
            Event::TakenAway => {}
            Event::Killed => kill(&mut claims, record),
            _ => follow(&mut claims, record),
        }
    }
    let mut holds: Vec<Hold> = claims.into_values().filter_map(Open::close).collect();
    holds.sort_by(|a, b| (a.reported, &a.owner, a.claim).cmp(&(b.reported, &b.owner, b.claim)));
    holds
}

/// The locks that were deleted at the server, with the time.
pub(super) fn taken_away(history: &History) -> Vec<(u64, &str)> {
    let taken = history.records().iter().filter(|record| record.event == Event::TakenAway);
    taken.map(|record| (record.at, record.key.as_str())).collect()
}

fn follow<'a>(claims: &mut Claims<'a>, record: &'a Record) {
    let id = (record.owner.as_str(), record.claim, record.key.as_str());
    // A history without its beginning may contain a grant without its request.
    let open = claims.entry(id).or_insert_with(|| Open::new(record.at));
    match &record.event {
        Event::Asked { mode } => open.mode = mode.clone(),
        Event::Granted { fence, valid_until, slot } => {
            open.grant(record, *fence, *valid_until, *slot);
        }
        Event::Extended { valid_until } => open.valid(*valid_until),
        Event::ReleaseCalled { valid_until } => {
            open.valid(*valid_until);
            open.end(record.at, "release called");
        }
        Event::Lost { .. } => {
            open.lost(record.at);
            open.end(record.at, "loss signalled");
        }
        Event::Released | Event::GaveUp { .. } | Event::Proclaimed { .. } => {}
        Event::Observed { .. } | Event::TakenAway | Event::Killed => {}
    }
}

/// Ends every hold of the killed process.
fn kill(claims: &mut Claims<'_>, record: &Record) {
    for ((owner, ..), open) in claims.iter_mut() {
        let rest = owner.strip_prefix(record.owner.as_str());
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            open.end(record.at, "killed");
        }
    }
}

impl Open {
    fn new(asked: u64) -> Self {
        Open { asked, mode: Mode::Exclusive, hold: None, valid_until: 0, over: false }
    }

    fn grant(&mut self, record: &Record, fence: u64, valid_until: u64, slot: Option<u32>) {
        self.valid_until = valid_until;
        self.hold = Some(Hold {
            owner: record.owner.clone(),
            claim: record.claim,
            key: record.key.clone(),
            mode: self.mode.clone(),
            slot,
            fence,
            asked: self.asked,
            reported: record.at,
            end: u64::MAX,
            ended_by: "end of the history",
            lost: None,
        });
    }

    fn valid(&mut self, until: u64) {
        if !self.over {
            self.valid_until = until;
        }
    }

    /// Only the first end counts.
    fn end(&mut self, at: u64, by: &'static str) {
        if let Some(hold) = self.hold.as_mut().filter(|_| !self.over) {
            (hold.end, hold.ended_by) = (at, by);
            self.over = true;
        }
    }

    fn lost(&mut self, at: u64) {
        if let Some(hold) = &mut self.hold {
            hold.lost.get_or_insert(at);
        }
    }

    fn close(self) -> Option<Hold> {
        let mut hold = self.hold?;
        if self.valid_until < hold.end {
            (hold.end, hold.ended_by) = (self.valid_until, "valid_until");
        }
        Some(hold)
    }
}

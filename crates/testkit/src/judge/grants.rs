//! From records to holds: who claimed to hold what, from when until when.

use std::collections::HashMap;
use std::fmt;

use crate::history::{Event, History, Record};

/// One grant as its holder saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who held it.
    pub owner: String,
    /// Which of the owner's claims it was.
    pub claim: u64,
    /// What was held.
    pub key: String,
    /// Its fence.
    pub fence: u64,
    /// When it was asked for.
    pub asked: u64,
    /// When the caller had it.
    pub reported: u64,
    /// When the holder stopped relying on it: the earliest of release, loss, death and `valid_until`.
    pub end: u64,
    /// What ended it.
    pub ended_by: &'static str,
    /// When a loss was signalled, if one was.
    pub lost: Option<u64>,
}

impl Hold {
    /// Whether the holder claimed to hold it at any time at all.
    pub fn is_empty(&self) -> bool {
        self.end <= self.reported
    }
}

impl Hold {
    /// What tells its claim from all others of the run.
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
            Event::Asked => drop(asked.insert((owner, claim, key), *at)),
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
        write!(f, "`{owner}` claim {claim} on `{key}` fence {fence}: ")?;
        write!(f, "asked {}, held from {} ", Moment(*asked), Moment(*reported))?;
        write!(f, "until {} ({ended_by})", Moment(*end))
    }
}

/// Nanoseconds, shown as seconds.
struct Moment(u64);

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
    hold: Option<Hold>,
    valid_until: u64,
    over: bool,
}

type Claims<'a> = HashMap<(&'a str, u64, &'a str), Open>;

/// Every grant of the history, by the time it was reported.
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

/// When, and which, locks were taken away at the server.
pub(super) fn taken_away(history: &History) -> Vec<(u64, &str)> {
    let taken = history.records().iter().filter(|record| record.event == Event::TakenAway);
    taken.map(|record| (record.at, record.key.as_str())).collect()
}

fn follow<'a>(claims: &mut Claims<'a>, record: &'a Record) {
    let id = (record.owner.as_str(), record.claim, record.key.as_str());
    // A history that was cut at its front may grant what it never saw asked for.
    let open = claims.entry(id).or_insert_with(|| Open::new(record.at));
    match &record.event {
        Event::Granted { fence, valid_until } => open.grant(record, *fence, *valid_until),
        Event::Extended { valid_until } => open.valid(*valid_until),
        Event::ReleaseCalled { valid_until } => {
            open.valid(*valid_until);
            open.end(record.at, "release called");
        }
        Event::Lost { .. } => {
            open.lost(record.at);
            open.end(record.at, "loss signalled");
        }
        Event::Asked
        | Event::Released
        | Event::GaveUp { .. }
        | Event::TakenAway
        | Event::Killed => {}
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
        Open { asked, hold: None, valid_until: 0, over: false }
    }

    fn grant(&mut self, record: &Record, fence: u64, valid_until: u64) {
        self.valid_until = valid_until;
        self.hold = Some(Hold {
            owner: record.owner.clone(),
            claim: record.claim,
            key: record.key.clone(),
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

    /// The first end counts; what comes after is only the aftermath.
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

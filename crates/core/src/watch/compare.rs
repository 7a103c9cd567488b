//! What happened to a lock between two looks at it.
//!
//! In: what was seen before and after, and the span of time in which it may have changed. Out:
//! events, in the order in which they must have happened.
//!
//! A lock that is gone was released if that was before the end of its lease, and lost if it was
//! after. Where the span is so long that it can have been either, that is what is said.

use std::time::Duration;

use crate::backend::LockInfo;
use crate::claim::{Holder, Token};
use crate::fence::Fence;
use crate::time::{Time, UnixMillis};

use super::{Event, What};

/// A span that is no longer than this is a moment: a lease that nobody renewed and that ended within
/// it is taken to have run out. It covers a look every tenth of a second on a busy machine.
const BLINK: Duration = Duration::from_millis(250);
/// Two looks at the same lease disagree on its end by as much as an answer takes; a renewal moves it
/// by more.
const SAME_END: Duration = Duration::from_millis(20);

/// A lock as it was seen.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    tenures: Vec<Tenure>,
    waiters: Option<usize>,
    pub(super) looked: Time,
}

/// One claim that was seen to hold it.
#[derive(Clone, Debug)]
struct Tenure {
    token: Option<Token>,
    holder: Holder,
    fence: Option<Fence>,
    /// Its lease lasts at least until then, unless it is given back.
    ends: Time,
    /// When its present end was first seen.
    renewed: Time,
}

/// When a lock may have changed without our looking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: Time,
    pub(super) to: Time,
    /// The engine may have forgotten it.
    pub(super) forgot: bool,
}

impl Seen {
    /// What `info` shows, which was asked for at `looked`. A lock that is only kept closed has no holder.
    pub(super) fn new(info: LockInfo, looked: Time, before: Option<&Seen>) -> Self {
        let waiters = info.waiters.map(|queue| queue.len());
        let held = info.holders.into_iter().filter(|holding| !holding.holder.closing);
        let tenures = held.map(|holding| {
            let left = holding.holder.lease_left;
            // The lease was seen after we asked: its end lies no earlier than this.
            let ends = left.map_or(Time::NEVER, |left| looked.after(left));
            let known = before.and_then(|before| before.tenure(holding.token));
            let same = known.filter(|known| ends.since(known.ends) <= SAME_END);
            let renewed = same.map_or(looked, |known| known.renewed);
            let (token, fence) = (holding.token, holding.fence);
            Tenure { token, holder: holding.holder, fence, ends, renewed }
        });
        Seen { tenures: tenures.collect(), waiters, looked }
    }

    /// When the first of its leases ends.
    pub(super) fn ends(&self) -> Time {
        self.tenures.iter().map(|tenure| tenure.ends).min().unwrap_or(Time::NEVER)
    }

    /// Whether anybody held it.
    pub(super) fn is_held(&self) -> bool {
        !self.tenures.is_empty()
    }

    /// The claims that held it and do not any more.
    pub(super) fn gone(&self, after: Option<&Seen>) -> impl Iterator<Item = Token> {
        let gone = self.tenures.iter().filter(move |tenure| !tenure.is_in(after));
        gone.filter_map(|tenure| tenure.token)
    }

    fn tenure(&self, token: Option<Token>) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| tenure.token == token)
    }
}

impl Tenure {
    fn is_in(&self, seen: Option<&Seen>) -> bool {
        seen.is_some_and(|seen| seen.tenure(self.token).is_some())
    }

    /// How it ended, if it did so within `span`.
    fn end(&self, span: Span) -> What {
        if span.forgot {
            return What::Ended;
        }
        if span.to < self.ends {
            return What::Released;
        }
        let half = self.renewed.after(self.ends.since(self.renewed) / 2);
        // Whoever renews does so before half of the lease is over.
        let dying = span.from >= half && span.to.since(span.from) <= BLINK;
        if span.from >= self.ends || dying { What::Lost } else { What::Ended }
    }
}

/// What happened to a lock between two looks.
pub(super) struct Change<'a> {
    pub(super) before: Option<&'a Seen>,
    pub(super) after: Option<&'a Seen>,
    pub(super) span: Span,
    pub(super) at: UnixMillis,
}

impl Change<'_> {
    /// The events of it. `fate` says how a claim ended where the engine knows.
    pub(super) fn events(
        &self,
        key: &crate::Key,
        fate: impl Fn(Token) -> Option<What>,
    ) -> Vec<Event> {
        let (gone, mut came) = (self.gone(), self.came());
        let mut events = Vec::new();
        for tenure in gone {
            let known = tenure.token.and_then(&fate);
            match (known.unwrap_or_else(|| self.end_of(tenure)), came.is_empty()) {
                (What::Released, false) => {
                    let next = came.remove(0);
                    let event = self.event(key, What::HandedOver, next);
                    events.push(Event { from: Some(tenure.former()), ..event });
                }
                (what, _) => events.push(self.ended(key, what, tenure)),
            }
        }
        events.extend(came.into_iter().map(|tenure| self.event(key, What::Acquired, tenure)));
        events
    }

    fn gone(&self) -> Vec<&Tenure> {
        let before = self.before.iter().flat_map(|seen| &seen.tenures);
        before.filter(|tenure| !tenure.is_in(self.after)).collect()
    }

    fn came(&self) -> Vec<&Tenure> {
        let after = self.after.iter().flat_map(|seen| &seen.tenures);
        after.filter(|tenure| !tenure.is_in(self.before)).collect()
    }

    fn end_of(&self, tenure: &Tenure) -> What {
        let mut others = self.before.iter().flat_map(|seen| &seen.tenures);
        // Where several claims seem to end together, what is shown is the end of the last of them.
        let shared = others.any(|other| other.token != tenure.token && other.ends == tenure.ends);
        if shared { What::Ended } else { tenure.end(self.span) }
    }

    fn event(&self, key: &crate::Key, what: What, tenure: &Tenure) -> Event {
        let holder = Some(tenure.holder.clone());
        let (at, key, fence) = (self.at, key.clone(), tenure.fence);
        Event { at, key, what, holder, fence, from: None, waiters: self.waiters() }
    }

    /// How many are shown to wait now; nobody for a lock that is not shown at all.
    fn waiters(&self) -> Option<usize> {
        match self.after {
            Some(after) => after.waiters,
            None => self.before.and_then(|before| before.waiters).map(|_| 0),
        }
    }

    fn ended(&self, key: &crate::Key, what: What, tenure: &Tenure) -> Event {
        Event { holder: Some(tenure.former()), ..self.event(key, what, tenure) }
    }
}

impl Tenure {
    /// Its holder, of whose lease nothing is left.
    fn former(&self) -> Holder {
        Holder { lease_left: None, ..self.holder.clone() }
    }
}

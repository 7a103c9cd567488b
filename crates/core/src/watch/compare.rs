//! What happened to a lock between two inspections.
//!
//! In: the state before and after, and the time span in which it may have changed. Out: events, in the order
//! in which they must have happened.
//!
//! A lock that is gone was released if it ended before the end of its lease, and lost if it ended after. If
//! the span is too long to decide, the event is [`EventKind::Ended`].

use std::time::Duration;

use crate::fence::Fence;
use crate::holder::Holder;
use crate::key::Key;
use crate::mode::Mode;
use crate::report::LockInfo;
use crate::time::{Time, UnixMillis};
use crate::token::Token;

use super::{Event, EventKind};

/// A span up to this length counts as a moment: a lease that was not renewed and ended within it is taken as
/// expired. It covers an inspection every tenth of a second on a busy machine.
const BLINK: Duration = Duration::from_millis(250);
/// Two inspections of the same lease differ in its end by at most the duration of a reply; a renewal moves
/// the end by more.
const SAME_END: Duration = Duration::from_millis(20);

/// The state of a lock at one inspection.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    tenures: Vec<Tenure>,
    waiters: Option<usize>,
    pub(super) looked: Time,
}

/// One claim that held the lock.
#[derive(Clone, Debug)]
struct Tenure {
    token: Option<Token>,
    mode: Mode,
    holder: Holder,
    fence: Option<Fence>,
    /// The lease is valid at least until then, unless it is released.
    ends: Time,
    /// When the current end was first seen.
    renewed: Time,
}

/// The time in which a lock may have changed without an inspection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) from: Time,
    pub(super) to: Time,
    /// The engine may have lost the lock's data.
    pub(super) forgot: bool,
}

impl Seen {
    /// The state that `info` shows; it was requested at `looked`. A lock that is only kept closed has no
    /// holder.
    pub(super) fn new(info: LockInfo, looked: Time, before: Option<&Seen>) -> Self {
        let waiters = info.waiters.map(|queue| queue.len());
        let held = info.holders.into_iter().filter(|holding| !holding.holder.cooling_down);
        let tenures = held.map(|holding| {
            let left = holding.holder.lease_left;
            // The server read the lease after we sent the request, so it ends no earlier than this.
            let ends = left.map_or(Time::NEVER, |left| looked.after(left));
            let known = before.and_then(|before| before.tenure(holding.token));
            let same = known.filter(|known| ends.since(known.ends) <= SAME_END);
            let renewed = same.map_or(looked, |known| known.renewed);
            let (token, mode, fence) = (holding.token, holding.mode, holding.fence);
            Tenure { token, mode, holder: holding.holder, fence, ends, renewed }
        });
        Seen { tenures: tenures.collect(), waiters, looked }
    }

    /// When the first of its leases ends.
    pub(super) fn ends(&self) -> Time {
        self.tenures.iter().map(|tenure| tenure.ends).min().unwrap_or(Time::NEVER)
    }

    /// Whether the lock had a holder.
    pub(super) fn is_held(&self) -> bool {
        !self.tenures.is_empty()
    }

    /// The one that holds the lock alone, with its fence.
    pub(super) fn sole_holder(&self) -> Option<(&Holder, Option<Fence>)> {
        let sole = self.tenures.first().filter(|tenure| tenure.mode == Mode::Exclusive)?;
        Some((&sole.holder, sole.fence))
    }

    /// The claims that held the lock, and are not among the holders in `after`.
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

    /// How the claim ended, if it ended within `span`.
    fn end(&self, span: Span) -> EventKind {
        if span.forgot {
            return EventKind::Ended;
        }
        if span.to < self.ends {
            return EventKind::Released;
        }
        let half = self.renewed.after(self.ends.since(self.renewed) / 2);
        // A live holder renews before half of the lease is over.
        let dying = span.from >= half && span.to.since(span.from) <= BLINK;
        if span.from >= self.ends || dying { EventKind::Lost } else { EventKind::Ended }
    }
}

/// The change of a lock between two inspections.
pub(super) struct Change<'a> {
    pub(super) before: Option<&'a Seen>,
    pub(super) after: Option<&'a Seen>,
    pub(super) span: Span,
    pub(super) at: UnixMillis,
}

impl Change<'_> {
    /// The events of this change. `reason` returns how a claim ended, where the engine knows.
    pub(super) fn events(
        &self,
        key: &Key,
        reason: impl Fn(Token) -> Option<EventKind>,
    ) -> Vec<Event> {
        let (gone, mut came) = (self.gone(), self.came());
        let mut events = Vec::new();
        for tenure in gone {
            let known = tenure.token.and_then(&reason);
            match (known.unwrap_or_else(|| self.end_of(tenure)), came.is_empty()) {
                (EventKind::Released, false) => {
                    let next = came.remove(0);
                    let event = self.event(key, EventKind::HandedOver, next);
                    events.push(Event { from: Some(tenure.former()), ..event });
                }
                (what, _) => events.push(self.ended(key, what, tenure)),
            }
        }
        events.extend(came.into_iter().map(|tenure| self.event(key, EventKind::Acquired, tenure)));
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

    fn end_of(&self, tenure: &Tenure) -> EventKind {
        let mut others = self.before.iter().flat_map(|seen| &seen.tenures);
        // If several claims seem to end together, their end is that of the longest of them.
        let shared = others.any(|other| other.token != tenure.token && other.ends == tenure.ends);
        if shared { EventKind::Ended } else { tenure.end(self.span) }
    }

    fn event(&self, key: &Key, what: EventKind, tenure: &Tenure) -> Event {
        let holder = Some(tenure.holder.clone());
        let (at, key, fence) = (self.at, key.clone(), tenure.fence);
        Event { at, key, what, holder, fence, from: None, waiters: self.waiters() }
    }

    /// How many claims wait now; zero if the lock is gone.
    fn waiters(&self) -> Option<usize> {
        match self.after {
            Some(after) => after.waiters,
            None => self.before.and_then(|before| before.waiters).map(|_| 0),
        }
    }

    fn ended(&self, key: &Key, what: EventKind, tenure: &Tenure) -> Event {
        Event { holder: Some(tenure.former()), ..self.event(key, what, tenure) }
    }
}

impl Tenure {
    /// The former holder, without a remaining lease.
    fn former(&self) -> Holder {
        Holder { lease_left: None, ..self.holder.clone() }
    }
}

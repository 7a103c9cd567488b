//! Watching locks: reports what happens to them.
//!
//! In: a glob, hints of the engine if it sends any, and inspections of the locks. Out: [`Event`]s.
//!
//! Events come from comparing two inspections, never from a hint alone: a hint only says which lock to
//! inspect. `compare.rs` decides what happened to a lock between two inspections.
//!
//! There is no background task: nothing is done unless the caller awaits the next event.

mod compare;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::change_hints::Hints;
use crate::change_hints::{HintTimes, PendingHints};
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::holder::Holder;
use crate::key::Key;
use crate::report::{ClaimEnd, LockInfo, Query};
use crate::time::{Time, UnixMillis};
use crate::token::Token;
use compare::{Change, Seen, Span};

/// The pause between two inspections if the engine sends no hints.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// After an inspection of all locks, the watch pauses for this many times its duration. So watching takes at
/// most a fifth of the engine's time.
const PAUSE_PER_LOOK: u32 = 4;
/// The pause after an inspection that failed.
const PAUSE_FAILED: Duration = Duration::from_millis(250);
/// How long after the end of a lease the lock is inspected: servers count whole milliseconds.
const AFTER_END: Duration = Duration::from_millis(5);

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When it was noticed, by our wall clock.
    pub at: UnixMillis,
    /// The key of the lock.
    pub key: Key,
    /// What happened.
    pub what: EventKind,
    /// The new holder, or the former one if the lock has ended.
    pub holder: Option<Holder>,
    /// The fence of that holder's grant; `None` if the engine does not store it.
    pub fence: Option<Fence>,
    /// The former holder, if the lock was [handed over](EventKind::HandedOver).
    pub from: Option<Holder>,
    /// How many claims wait for the lock now; `None` if the engine does not know.
    pub waiters: Option<usize>,
}

impl Event {
    /// An event without holders, fence and waiters.
    pub fn new(at: UnixMillis, key: Key, what: EventKind) -> Self {
        Event { at, key, what, holder: None, fence: None, from: None, waiters: None }
    }
}

/// What happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The lock was free, and is held now.
    Acquired,
    /// The lock was released before its lease ended. If leases do not expire (`file:`), its process may also
    /// have ended. A key that was deleted by hand or evicted looks the same.
    Released,
    /// The lock was released, and another claim holds it; it was not seen free in between.
    HandedOver,
    /// The lease ended without a release.
    Lost,
    /// An operator released it by force; the text says who, and why.
    Forced(String),
    /// The lock is no longer held, and it is not known whether it was released or lost. Either the watch was
    /// disconnected or not polled for longer than the rest of the lease, or the engine may have lost its
    /// data, or it was one of several claims of a shared owner.
    Ended,
}

impl EventKind {
    /// The event as one word: `acquired`, `released`, `handed_over`, `lost`, `forced`, `ended`.
    pub fn as_str(&self) -> &'static str {
        match self {
            EventKind::Acquired => "acquired",
            EventKind::Released => "released",
            EventKind::HandedOver => "handed_over",
            EventKind::Lost => "lost",
            EventKind::Forced(_) => "forced",
            EventKind::Ended => "ended",
        }
    }
}

impl From<ClaimEnd> for EventKind {
    fn from(reason: ClaimEnd) -> EventKind {
        match reason {
            ClaimEnd::Released => EventKind::Released,
            ClaimEnd::Lost(Loss::Forced(by)) => EventKind::Forced(by),
            ClaimEnd::Lost(_) => EventKind::Lost,
        }
    }
}

/// A watch over all locks that match a glob: see [`Locker::watch`](crate::Locker::watch).
///
/// Events come from comparing inspections of the locks. If the engine reports changes (`memory:`, etcd, and Redis
/// except quorums), each change triggers an inspection. Otherwise, or without the rights for it, all locks are
/// inspected up to ten times a second.
///
/// A watch does *not* see everything. Changes between two inspections are merged: a lock that was acquired
/// and released in between causes no event, and one that had several holders causes one event, from the first
/// to the last. To the engine the holder of a lock is a process, so hand-overs between tasks of one process
/// are not seen either. A release within the last quarter of a second of a lease that was not renewed may be
/// reported as [`EventKind::Lost`].
///
/// Nothing is inspected unless [`next`](Self::next) is awaited. Dropping the watch ends it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::watch::EventKind;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("watched"));
/// let mut watch = locker.watch("order:*").await?;
/// let guard = locker.lock("order:42").await?;
/// let event = watch.next().await?;
/// assert_eq!((event.key.as_str(), event.what), ("order:42", EventKind::Acquired));
/// guard.release().await?;
/// assert_eq!(watch.next().await?.what, EventKind::Released);
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    engine: Arc<Engine>,
    query: Query,
    /// `None`: the engine sends no hints, so all locks are polled.
    hints: Option<Hints>,
    seen: BTreeMap<Key, Seen>,
    /// The hints that have not been processed yet; kept until the inspection has succeeded.
    due: PendingHints,
    /// The earliest time of the next inspection.
    not_before: Time,
    ready: VecDeque<Event>,
}

impl Watch {
    pub(crate) async fn new(engine: &Arc<Engine>, query: Query) -> Result<Self, Error> {
        // Subscribed before the inspection: a lock that changes during it is inspected again.
        let failed = |fault| Error::backend(None, fault);
        let operator = engine.operator().map_err(failed)?;
        let hints = engine.bounded(operator.change_hints(&query)).await.map_err(failed)?;
        let (engine, not_before) = (engine.clone(), engine.clock.now());
        let (seen, due, ready) = Default::default();
        let mut watch = Watch { engine, query, hints, seen, due, not_before, ready };
        watch.look_at_all().await?;
        // Locks that are held already are not events.
        watch.ready.clear();
        Ok(watch)
    }

    /// How many locks were held at the last inspection. Sends no request.
    pub fn held(&self) -> usize {
        self.seen.values().filter(|seen| seen.is_held()).count()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// Errors of the engine. The watch is still usable: the next call inspects again after a pause, and
    /// reports what has changed meanwhile as far as it can still be seen. [`is_closed`](Error::is_closed)
    /// after a shutdown of the locker; then the watch is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.look_again().await?;
        }
    }

    /// Waits until something may have changed, and inspects it. Dropping the future loses nothing.
    pub(crate) async fn look_again(&mut self) -> Result<(), Error> {
        let closing = self.engine.closing.clone();
        let looked = async {
            self.wait().await;
            self.look().await.inspect_err(|_| {
                self.not_before = self.engine.clock.now().after(PAUSE_FAILED);
            })
        };
        tokio::select! {
            biased;
            () = closing.cancelled() => Err(Error::closed(None)),
            looked = looked => looked,
        }
    }

    /// Who held `key` alone at the last inspection, and the fence.
    pub(crate) fn sole_holder(&self, key: &Key) -> Option<(&Holder, Option<Fence>)> {
        self.seen.get(key).and_then(Seen::sole_holder)
    }

    /// Waits until there is something to inspect.
    async fn wait(&mut self) {
        let clock = self.engine.clock.clone();
        clock.sleep_until(self.not_before).await;
        let Some(hints) = &self.hints else { return };
        if !self.due.all && self.due.changed.is_empty() {
            tokio::select! {
                () = hints.news() => {}
                () = clock.sleep_until(self.next_end()) => {}
            }
        }
        self.due.add_all(hints.take());
        if self.due.over {
            (self.hints, self.due.all) = (None, true);
        }
    }

    /// When to inspect for an expired lease: it may expire before a hint arrives.
    fn next_end(&self) -> Time {
        let first = self.seen.values().map(Seen::ends).min().unwrap_or(Time::NEVER);
        first.after(AFTER_END)
    }

    async fn look(&mut self) -> Result<(), Error> {
        if self.due.all || self.hints.is_none() {
            return self.look_at_all().await;
        }
        let now = self.engine.clock.now();
        let changed = self.due.changed.keys().filter(|key| self.query.matches(key.as_str()));
        let ended = self.seen.iter().filter(|(_, seen)| seen.ends().after(AFTER_END) <= now);
        let mut keys: Vec<Key> = changed.chain(ended.map(|(key, _)| key)).cloned().collect();
        keys.sort();
        keys.dedup();
        if !keys.is_empty() {
            let named = match &self.query {
                Query::Key(key) => Query::Key(key.clone()),
                _ => Query::Keys(keys.clone()),
            };
            self.poll_keys(&named, &keys).await?;
        }
        self.due = PendingHints::default();
        Ok(())
    }

    async fn look_at_all(&mut self) -> Result<(), Error> {
        let (query, keys) = (self.query.clone(), self.seen.keys().cloned().collect::<Vec<_>>());
        let start = self.engine.clock.now();
        self.poll_keys(&query, &keys).await?;
        let end = self.engine.clock.now();
        self.due = PendingHints::default();
        if self.hints.is_none() {
            self.not_before = end.after(POLL_INTERVAL.max(end.since(start) * PAUSE_PER_LOOK));
        }
        Ok(())
    }

    /// Inspects the locks of `query`, and adds the events of `keys` and of all other locks found.
    async fn poll_keys(&mut self, query: &Query, keys: &[Key]) -> Result<(), Error> {
        // Read before the request: the remaining time in the reply counts from this moment at the earliest.
        let sent = self.engine.clock.now();
        let found = self.engine.inspect(query).await;
        let found = found.map_err(|fault| Error::backend(None, fault))?;
        let mut after = self.sights(found, sent);
        let ended = match self.query {
            // Of one key it is asked who holds it, not how its last holder ended.
            Query::Key(_) => Vec::new(),
            _ => self.ended(keys, &after),
        };
        let reasons = match ended.is_empty() {
            true => HashMap::new(),
            false => end_reasons(&self.engine, &ended).await?,
        };
        let by = self.engine.clock.now();
        let mut changed: Vec<Key> = keys.iter().chain(after.keys()).cloned().collect();
        changed.sort();
        changed.dedup();
        for key in changed {
            self.report(&key, after.remove(&key), by, &reasons);
        }
        Ok(())
    }

    fn sights(&self, found: Vec<LockInfo>, sent: Time) -> HashMap<Key, Seen> {
        let sight = |info: LockInfo| {
            let key = info.key.clone();
            let seen = Seen::new(info, sent, self.seen.get(&key));
            (key, seen)
        };
        found.into_iter().map(sight).collect()
    }

    /// The claims that held a lock before, and no longer do.
    fn ended(&self, keys: &[Key], after: &HashMap<Key, Seen>) -> Vec<(Key, Token)> {
        let seen = keys.iter().filter_map(|key| self.seen.get_key_value(key));
        let ended = seen.flat_map(|(key, before)| {
            before.gone(after.get(key)).map(|token| (key.clone(), token))
        });
        ended.collect()
    }

    /// Adds the events of `key`, and stores its new state.
    fn report(
        &mut self,
        key: &Key,
        after: Option<Seen>,
        by: Time,
        reasons: &HashMap<Token, EventKind>,
    ) {
        let before = self.seen.remove(key);
        let span = self.span(key, before.as_ref(), by);
        let change =
            Change { before: before.as_ref(), after: after.as_ref(), span, at: self.at(span.to) };
        self.ready.extend(change.events(key, |token| reasons.get(&token).cloned()));
        if let Some(after) = after {
            self.seen.insert(key.clone(), after);
        }
    }

    /// The time in which `key` may have changed without an inspection, up to now.
    fn span(&self, key: &Key, before: Option<&Seen>, by: Time) -> Span {
        let forgot = self.due.forgot;
        let heard = self.due.changed.get(key);
        match (&self.hints, heard) {
            (Some(_), Some(HintTimes { first, last })) => Span { from: *first, to: *last, forgot },
            // No hint arrived, so the lock did not change before now.
            (Some(_), None) if !self.due.all => Span { from: by, to: by, forgot },
            _ => Span { from: before.map_or(by, |before| before.looked), to: by, forgot },
        }
    }

    fn at(&self, moment: Time) -> UnixMillis {
        UnixMillis::now().before(self.engine.clock.now().since(moment))
    }
}

/// How claims ended, where the engine knows.
async fn end_reasons(
    engine: &Engine,
    ended: &[(Key, Token)],
) -> Result<HashMap<Token, EventKind>, Error> {
    let reasons = engine.end_reasons(ended).await.map_err(|fault| Error::backend(None, fault))?;
    let known =
        ended.iter().zip(reasons).filter_map(|((_, token), reason)| Some((*token, reason?.into())));
    Ok(known.collect())
}

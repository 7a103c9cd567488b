//! Watching locks: what happens to them, as it happens.
//!
//! In: a glob, hints from the engine where it gives any, and looks at the locks. Out: [`Event`]s.
//!
//! Events come from comparing looks, never from a hint alone: a hint says where to look. `compare.rs`
//! judges what happened between two looks at one lock.
//!
//! Absent on purpose: a task. Nothing is done unless somebody waits for the next event.

mod compare;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Fate, Hints, LockInfo, Loss, Query};
use crate::claim::{Holder, Token};
use crate::engine::Engine;
use crate::error::Error;
use crate::fence::Fence;
use crate::hints::{Heard, Told};
use crate::key::Key;
use crate::time::{Time, UnixMillis};
use compare::{Change, Seen, Span};

/// The pause between looks where the engine gives no hints.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A look at everything is followed by a pause of this many times its length, so that watching never
/// takes more than a fifth of what the engine can do.
const PAUSE_PER_LOOK: u32 = 4;
/// The pause after a look that failed.
const PAUSE_FAILED: Duration = Duration::from_millis(250);
/// How long after the end of a lease it is looked for: servers count in whole milliseconds.
const AFTER_END: Duration = Duration::from_millis(5);

/// Something that happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When it was seen, by our wall clock.
    pub at: UnixMillis,
    /// The lock.
    pub key: Key,
    /// What happened.
    pub what: What,
    /// Whom it happened to: who holds it now, or who held it.
    pub holder: Option<Holder>,
    /// The fence of that holder's grant; `None` where the engine does not keep it.
    pub fence: Option<Fence>,
    /// Who held it before, where it was [handed over](What::HandedOver).
    pub from: Option<Holder>,
    /// How many wait for it now; `None` where the engine does not know.
    pub waiters: Option<usize>,
}

impl Event {
    /// Something that happened to a lock, with nothing known of who had to do with it.
    pub fn new(at: UnixMillis, key: Key, what: What) -> Self {
        Event { at, key, what, holder: None, fence: None, from: None, waiters: None }
    }
}

/// What happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// It was free, and is held.
    Acquired,
    /// It was given back before its lease ended. Where a lease has no end (`file:`), its process may
    /// also have ended. A key that was deleted by hand, or evicted, looks the same.
    Released,
    /// It was given back, and another claim holds it: it was not seen free in between.
    HandedOver,
    /// Its lease ended without a release.
    Lost,
    /// An operator took it away; who, and why.
    Forced(String),
    /// It is not held any more, and nobody saw whether it was released or lost: the watch was cut off
    /// or not asked for longer than was left of the lease, the engine may have lost its data, or it
    /// was one of several claims of a shared owner.
    Ended,
}

impl What {
    /// One word for it: `acquired`, `released`, `handed_over`, `lost`, `forced`, `ended`.
    pub fn word(&self) -> &'static str {
        match self {
            What::Acquired => "acquired",
            What::Released => "released",
            What::HandedOver => "handed_over",
            What::Lost => "lost",
            What::Forced(_) => "forced",
            What::Ended => "ended",
        }
    }
}

impl From<Fate> for What {
    fn from(fate: Fate) -> What {
        match fate {
            Fate::Released => What::Released,
            Fate::Lost(Loss::Forced(by)) => What::Forced(by),
            Fate::Lost(_) => What::Lost,
        }
    }
}

/// A watch over all locks that match a glob: see [`Locker::watch`](crate::Locker::watch).
///
/// Events are told by comparing looks at the locks. Where the engine tells of changes (Redis, etcd), a look
/// follows each; elsewhere, and where that is not allowed, everything is looked at ten times a second.
///
/// What is *not* promised: that everything is seen. What happens between two looks is merged: a lock
/// that was acquired and released in between leaves no trace, and one that went through several hands
/// is told once, from the first to the last. To the engine a lock is held by a process, so what tasks
/// of one process pass on among themselves is not seen either. A release within the last quarter of a
/// second of a lease that nobody renewed may be told as [`What::Lost`].
///
/// Nothing is looked at unless [`next`](Self::next) is awaited. Dropping it ends the watch.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::watch::What;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("watched"));
/// let mut watch = locker.watch("order:*").await?;
/// let guard = locker.lock("order:42").await?;
/// let event = watch.next().await?;
/// assert_eq!((event.key.as_str(), event.what), ("order:42", What::Acquired));
/// guard.release().await?;
/// assert_eq!(watch.next().await?.what, What::Released);
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    engine: Arc<Engine>,
    query: Query,
    /// `None`: nobody tells, so everything is looked at again and again.
    hints: Option<Hints>,
    seen: BTreeMap<Key, Seen>,
    /// What is to be looked at, kept until that has been done.
    due: Told,
    /// Not to be looked at earlier.
    not_before: Time,
    ready: VecDeque<Event>,
}

impl Watch {
    pub(crate) async fn new(engine: &Arc<Engine>, glob: &str) -> Result<Self, Error> {
        let query = Query::Glob(glob.into());
        // Hints first: what changes while we look is told and looked at again.
        let hints = engine.bounded(engine.backend.hints()).await;
        let hints = hints.map_err(|fault| Error::backend(None, fault))?;
        let (engine, not_before) = (engine.clone(), engine.clock.now());
        let (seen, due, ready) = Default::default();
        let mut watch = Watch { engine, query, hints, seen, due, not_before, ready };
        watch.look_at_all().await?;
        // What is held already is no event.
        watch.ready.clear();
        Ok(watch)
    }

    /// How many locks are held now, as far as has been seen.
    pub fn held(&self) -> usize {
        self.seen.values().filter(|seen| seen.is_held()).count()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// What kept the engine from answering. The watch is not over: call again, and it looks again
    /// after a pause, and tells what has changed meanwhile as far as it still shows. Over it is when
    /// the locker was shut down ([`is_closed`](Error::is_closed)).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let closing = self.engine.closing.clone();
        tokio::select! {
            biased;
            () = closing.cancelled() => Err(Error::closed(None)),
            event = self.next_open() => event,
        }
    }

    async fn next_open(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.wait().await;
            let looked = self.look().await;
            if looked.is_err() {
                self.not_before = self.engine.clock.now().after(PAUSE_FAILED);
            }
            looked?;
        }
    }

    /// Waits until there is something to look at.
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

    /// When to look for a lease that has run out: it may, before anybody tells us.
    fn next_end(&self) -> Time {
        let first = self.seen.values().map(Seen::ends).min().unwrap_or(Time::NEVER);
        first.after(AFTER_END)
    }

    async fn look(&mut self) -> Result<(), Error> {
        if self.due.all || self.hints.is_none() {
            return self.look_at_all().await;
        }
        let now = self.engine.clock.now();
        let told = self.due.changed.keys().filter(|key| self.query.matches(key.as_str()));
        let ended = self.seen.iter().filter(|(_, seen)| seen.ends().after(AFTER_END) <= now);
        let mut keys: Vec<Key> = told.chain(ended.map(|(key, _)| key)).cloned().collect();
        keys.sort();
        keys.dedup();
        if !keys.is_empty() {
            self.look_at(&Query::Keys(keys.clone()), &keys).await?;
        }
        self.due = Told::default();
        Ok(())
    }

    async fn look_at_all(&mut self) -> Result<(), Error> {
        let (query, keys) = (self.query.clone(), self.seen.keys().cloned().collect::<Vec<_>>());
        let start = self.engine.clock.now();
        self.look_at(&query, &keys).await?;
        let end = self.engine.clock.now();
        self.due = Told::default();
        if self.hints.is_none() {
            self.not_before = end.after(LOOK_EVERY.max(end.since(start) * PAUSE_PER_LOOK));
        }
        Ok(())
    }

    /// Looks, and says what has happened to `keys` and to whatever else is found.
    async fn look_at(&mut self, query: &Query, keys: &[Key]) -> Result<(), Error> {
        // Read before asking: a lease that is shown ends no earlier than what is left of it from here.
        let sent = self.engine.clock.now();
        let found = self.engine.inspect(query).await;
        let found = found.map_err(|fault| Error::backend(None, fault))?;
        let mut after = self.sights(found, sent);
        let ended = self.ended(keys, &after);
        let fates = match ended.is_empty() {
            true => HashMap::new(),
            false => fates(&self.engine, &ended).await?,
        };
        let by = self.engine.clock.now();
        let mut changed: Vec<Key> = keys.iter().chain(after.keys()).cloned().collect();
        changed.sort();
        changed.dedup();
        for key in changed {
            self.settle(&key, after.remove(&key), by, &fates);
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

    /// The claims that held a lock and do not any more.
    fn ended(&self, keys: &[Key], after: &HashMap<Key, Seen>) -> Vec<(Key, Token)> {
        let seen = keys.iter().filter_map(|key| self.seen.get_key_value(key));
        let ended = seen.flat_map(|(key, before)| {
            before.gone(after.get(key)).map(|token| (key.clone(), token))
        });
        ended.collect()
    }

    /// Says what has happened to `key`, and remembers what it now looks like.
    fn settle(&mut self, key: &Key, after: Option<Seen>, by: Time, fates: &HashMap<Token, What>) {
        let before = self.seen.remove(key);
        let span = self.span(key, before.as_ref(), by);
        let change =
            Change { before: before.as_ref(), after: after.as_ref(), span, at: self.at(span.to) };
        self.ready.extend(change.events(key, |token| fates.get(&token).cloned()));
        if let Some(after) = after {
            self.seen.insert(key.clone(), after);
        }
    }

    /// When `key` may have changed without our looking, up to now.
    fn span(&self, key: &Key, before: Option<&Seen>, by: Time) -> Span {
        let forgot = self.due.forgot;
        let heard = self.due.changed.get(key);
        match (&self.hints, heard) {
            (Some(_), Some(Heard { first, last })) => Span { from: *first, to: *last, forgot },
            // Nothing was heard, so nothing has happened until now.
            (Some(_), None) if !self.due.all => Span { from: by, to: by, forgot },
            _ => Span { from: before.map_or(by, |before| before.looked), to: by, forgot },
        }
    }

    fn at(&self, moment: Time) -> UnixMillis {
        UnixMillis::now().before(self.engine.clock.now().since(moment))
    }
}

/// How claims ended, where the engine knows.
async fn fates(engine: &Engine, ended: &[(Key, Token)]) -> Result<HashMap<Token, What>, Error> {
    let fates = engine.fates(ended).await.map_err(|fault| Error::backend(None, fault))?;
    let known =
        ended.iter().zip(fates).filter_map(|((_, token), fate)| Some((*token, fate?.into())));
    Ok(known.collect())
}

//! Hints from the server that locks have changed, for watchers.
//!
//! In: changes of our keys. Out: hints for the engine, which then reads the named locks, and how claims
//! ended.
//!
//! Every watch has a stream of its own. A task keeps it open and ends with the watch. After a broken stream,
//! all locks are read again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{ClaimEnd, Hint, HintSender, Hints, Loss, Query, hints};
use tenure_core::{Key, Token};
use tenure_net::jittered;
use tokio::sync::watch;

use crate::error::EngineError;
use crate::keys::Keys;
use crate::link::{Link, Watch};
use crate::proto::{
    Event, EventType, KeyValue, RangeRequest, TxnRequest, WatchCreateRequest, WatchResponse, end_of,
};
use crate::value;

/// The pause after a watch has failed.
const PAUSE: Duration = Duration::from_millis(100);
/// How many ended claims are remembered.
const ENDS_MAX: usize = 10_000;
/// How long to wait for the event of a change that a read has already shown.
const EVENT_WITHIN: Duration = Duration::from_secs(1);
/// How often a watched connection is probed.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How many notes are read in one round trip.
const NOTES_AT_ONCE: usize = 64;

/// The watches of all locks, and how claims ended whose keys a watch has seen deleted.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
    pub(crate) ends: watch::Sender<RecentEnds>,
}

#[derive(Debug, Default)]
pub(crate) struct RecentEnds {
    reasons: HashMap<Token, ClaimEnd>,
    /// The oldest first.
    order: VecDeque<Token>,
}

impl RecentEnds {
    /// Several watches may report the same claim.
    fn add(&mut self, token: Token, reason: ClaimEnd) {
        if self.reasons.insert(token, reason).is_some() {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > ENDS_MAX {
            self.order.pop_front().map(|oldest| self.reasons.remove(&oldest));
        }
    }
}

impl Watcher {
    /// Hints about the locks of `query` from now on.
    pub(crate) async fn hints(
        self: &Arc<Self>,
        query: &Query,
    ) -> Result<Option<Hints>, EngineError> {
        let (hints_out, hints) = hints(self.calls.clock());
        let only = match query {
            Query::Key(key) => Some(self.keys.queue(key)),
            _ => None,
        };
        let lock_watch = LockWatch { watcher: self.clone(), hints_out, only };
        let watch = lock_watch.open().await?;
        Ok(Some(hints.kept_by(tokio::spawn(lock_watch.keep_open(watch)).abort_handle())))
    }

    /// How these claims ended: as a watch has seen it, otherwise by the note of an operator.
    pub(crate) async fn end_reasons(
        &self,
        ended: &[(Key, Token)],
    ) -> Result<Vec<Option<ClaimEnd>>, EngineError> {
        let mut reasons = self.seen_reasons(ended).await;
        let unknown: Vec<usize> = (0..reasons.len()).filter(|at| reasons[*at].is_none()).collect();
        for some in unknown.chunks(NOTES_AT_ONCE) {
            let note = |at: &usize| RangeRequest::one(self.keys.forced(ended[*at].1));
            let answer = self.calls.call(TxnRequest::read(some.iter().map(note))).await?;
            for (found, at) in answer.ranges().zip(some) {
                reasons[*at] = found.kvs.first().map(|note| value::forced(&note.value).into());
            }
        }
        Ok(reasons)
    }

    /// How these claims ended, as far as a watch has seen it. The event of a change may come a little later
    /// than a read that shows it, so this waits for it.
    async fn seen_reasons(&self, ended: &[(Key, Token)]) -> Vec<Option<ClaimEnd>> {
        let mut ends = self.ends.subscribe();
        let all = ends.wait_for(|ends| ended.iter().all(|(_, it)| ends.reasons.contains_key(it)));
        // Times out if a watch broke meanwhile.
        let _ = tokio::time::timeout(EVENT_WITHIN, all).await;
        let ends = self.ends.borrow();
        ended.iter().map(|(_, token)| ends.reasons.get(token).cloned()).collect()
    }
}

/// The changes at one revision, which belong together. A lock that is deleted together with its session's own
/// key has expired, a lock with a note about it was released by force, and a lock that is deleted alone was
/// released.
#[derive(Default)]
struct Change {
    gone: Vec<(Token, i64)>,
    closed: Vec<Token>,
    ended: HashSet<Bytes>,
    notes: HashMap<Token, Loss>,
}

impl Change {
    fn read(keys: &Keys, events: &[Event]) -> Self {
        let mut change = Change::default();
        for event in events {
            match (event.r#type(), &event.kv) {
                (EventType::Delete, Some(kv)) => change.deleted(kv, event.prev_kv.as_ref()),
                (EventType::Put, Some(kv)) => change.written(keys, kv),
                (_, None) => {}
            }
        }
        change
    }

    fn deleted(&mut self, kv: &KeyValue, before: Option<&KeyValue>) {
        match before.and_then(|before| Some((value::token(&before.value)?, before.lease))) {
            Some(gone) => self.gone.push(gone),
            None => drop(self.ended.insert(kv.key.clone())),
        }
    }

    fn written(&mut self, keys: &Keys, kv: &KeyValue) {
        if let Some(token) = keys.parse_forced(&kv.key) {
            self.notes.insert(token, value::forced(&kv.value));
        } else if value::is_closed(&kv.value) {
            self.closed.extend(value::token(&kv.value));
        }
    }

    fn end_reasons(mut self, keys: &Keys) -> Vec<(Token, ClaimEnd)> {
        let closed = std::mem::take(&mut self.closed).into_iter();
        let gone = std::mem::take(&mut self.gone).into_iter();
        let end_reason = |(token, lease)| (token, self.end_reason(keys, token, lease));
        closed.map(|token| (token, ClaimEnd::Released)).chain(gone.map(end_reason)).collect()
    }

    fn end_reason(&self, keys: &Keys, token: Token, lease: i64) -> ClaimEnd {
        match self.notes.get(&token) {
            Some(forced) => forced.clone().into(),
            None if self.ended.contains(&keys.session(lease)) => Loss::Expired.into(),
            None => ClaimEnd::Released,
        }
    }
}

/// One watch over all locks, or one of them.
struct LockWatch {
    watcher: Arc<Watcher>,
    hints_out: HintSender,
    /// The queue of the only lock that is watched. Such a watch does not see why a claim has ended.
    only: Option<Bytes>,
}

impl LockWatch {
    /// Begins a watch on the server. It has begun when this returns.
    async fn open(&self) -> Result<Watch, EngineError> {
        let all = || Bytes::copy_from_slice(self.watcher.keys.root().as_bytes());
        let key = self.only.clone().unwrap_or_else(all);
        let range_end = end_of(&key);
        let create = WatchCreateRequest { key, range_end, prev_kv: true, ..Default::default() };
        self.watcher.calls.watch(create).await
    }

    async fn keep_open(self, mut watch: Watch) {
        loop {
            self.listen(&mut watch).await;
            loop {
                tokio::time::sleep(jittered(PAUSE)).await;
                match self.open().await {
                    Ok(again) => break watch = again,
                    // The watcher reads, and so finds the error.
                    Err(_) => self.hints_out.send(Hint::All),
                }
            }
            self.hints_out.send(Hint::All);
        }
    }

    /// Forwards events until the watch ends.
    async fn listen(&self, watch: &mut Watch) {
        loop {
            tokio::select! {
                response = watch.next() => match response {
                    Ok(response) => self.handle(&response),
                    Err(_) => return,
                },
                () = tokio::time::sleep(PING_EVERY) => self.ping().await,
            }
        }
    }

    /// Records how claims ended before it sends the hints.
    fn handle(&self, response: &WatchResponse) {
        let keys = &self.watcher.keys;
        let changes = response.events.chunk_by(|one, next| one.revision() == next.revision());
        let ends: Vec<_> =
            changes.flat_map(|events| Change::read(keys, events).end_reasons(keys)).collect();
        if !ends.is_empty() && self.only.is_none() {
            self.watcher.ends.send_modify(|known| {
                ends.into_iter().for_each(|(token, reason)| known.add(token, reason));
            });
        }
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            let changed = keys.parse(&kv.key).map(|(key, _)| Hint::Changed(key));
            changed.into_iter().for_each(|hint| self.hints_out.send(hint));
        }
    }

    /// Finds a connection that is silently dead: the failed read discards it, and the watch ends with it.
    async fn ping(&self) {
        let _ = self.watcher.calls.oldest_under(self.watcher.keys.all_forced()).await;
    }
}

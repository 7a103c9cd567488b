//! Hints that locks have changed, told by the server, for whoever watches.
//!
//! In: changes of all our keys. Out: hints for the engine, which looks at what they name, and how claims
//! ended.
//!
//! Every watch has a stream of its own, kept up by a task that ends with the watch. After a cut everything
//! is looked at.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Fate, Hint, Hinter, Hints, Loss, hints};
use tenure_core::{Key, Token};
use tokio::sync::watch;

use crate::backend::Shared;
use crate::force::forced;
use crate::jitter::jittered;
use crate::keys::Keys;
use crate::link::Watching;
use crate::proto::{Event, EventType, KeyValue, WatchCreateRequest, WatchResponse, end_of};
use crate::trouble::Trouble;
use crate::value;

/// The pause after a failure to watch.
const PAUSE: Duration = Duration::from_millis(100);
/// How many claims are remembered that have ended.
const DEPARTED_MAX: usize = 10_000;
/// How long to wait for being told of what a look has shown.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// How often a watched connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(5);

impl Shared {
    /// Hints from now on.
    pub(crate) async fn hints(self: &Arc<Self>) -> Result<Option<Hints>, Trouble> {
        let (hinter, hints) = hints(&self.clock);
        let eyes = Eyes { shared: self.clone(), hinter };
        let watching = eyes.open().await?;
        Ok(Some(hints.kept_by(tokio::spawn(eyes.keep_open(watching)).abort_handle())))
    }
}

/// How claims ended whose keys a watch has seen go.
#[derive(Debug, Default)]
pub(crate) struct Departed(watch::Sender<Known>);

#[derive(Debug, Default)]
struct Known {
    fates: HashMap<Token, Fate>,
    /// The oldest first.
    order: VecDeque<Token>,
}

impl Departed {
    fn add(&self, departures: Vec<(Token, Fate)>) {
        self.0.send_modify(|known| {
            for (token, fate) in departures {
                known.add(token, fate);
            }
        });
    }

    /// How these claims ended. What a look shows may be told of a little later: that is waited for.
    pub(crate) async fn fates(&self, ended: &[(Key, Token)]) -> Vec<Option<Fate>> {
        let mut told = self.0.subscribe();
        let all = told.wait_for(|known| ended.iter().all(|(_, it)| known.fates.contains_key(it)));
        // In vain where a watch was cut meanwhile.
        let _ = tokio::time::timeout(TOLD_WITHIN, all).await;
        let known = self.0.borrow();
        ended.iter().map(|(_, token)| known.fates.get(token).cloned()).collect()
    }
}

impl Known {
    /// Several watches may tell of the same.
    fn add(&mut self, token: Token, fate: Fate) {
        if self.fates.insert(token, fate).is_some() {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > DEPARTED_MAX {
            self.order.pop_front().map(|oldest| self.fates.remove(&oldest));
        }
    }
}

/// What was done at one revision, and so at once. A lock that goes with its session's own key has run out,
/// one with a word about it was taken away, and one that goes alone was given back.
#[derive(Default)]
struct Deed {
    gone: Vec<(Token, i64)>,
    closed: Vec<Token>,
    ended: HashSet<Bytes>,
    words: HashMap<Token, Loss>,
}

impl Deed {
    fn read(keys: &Keys, events: &[Event]) -> Self {
        let mut deed = Deed::default();
        for event in events {
            match (event.r#type(), &event.kv) {
                (EventType::Delete, Some(kv)) => deed.deleted(kv, event.prev_kv.as_ref()),
                (EventType::Put, Some(kv)) => deed.written(keys, kv),
                (_, None) => {}
            }
        }
        deed
    }

    fn deleted(&mut self, kv: &KeyValue, before: Option<&KeyValue>) {
        match before.and_then(|before| Some((value::token(&before.value)?, before.lease))) {
            Some(gone) => self.gone.push(gone),
            None => drop(self.ended.insert(kv.key.clone())),
        }
    }

    fn written(&mut self, keys: &Keys, kv: &KeyValue) {
        if let Some(token) = keys.parse_forced(&kv.key) {
            self.words.insert(token, forced(kv));
        } else if value::is_closed(&kv.value) {
            self.closed.extend(value::token(&kv.value));
        }
    }

    fn fates(mut self, keys: &Keys) -> Vec<(Token, Fate)> {
        let closed = std::mem::take(&mut self.closed).into_iter();
        let gone = std::mem::take(&mut self.gone).into_iter();
        let fate = |(token, lease)| (token, self.fate(keys, token, lease));
        closed.map(|token| (token, Fate::Released)).chain(gone.map(fate)).collect()
    }

    fn fate(&self, keys: &Keys, token: Token, lease: i64) -> Fate {
        match self.words.get(&token) {
            Some(forced) => forced.clone().into(),
            None if self.ended.contains(&keys.session(lease)) => Loss::Expired.into(),
            None => Fate::Released,
        }
    }
}

/// One watch over all locks.
struct Eyes {
    shared: Arc<Shared>,
    hinter: Hinter,
}

impl Eyes {
    /// Has the server tell us of changes. It has begun when this returns.
    async fn open(&self) -> Result<Watching, Trouble> {
        let key = Bytes::copy_from_slice(self.shared.keys.root().as_bytes());
        let range_end = end_of(&key);
        let create = WatchCreateRequest { key, range_end, prev_kv: true, ..Default::default() };
        self.shared.calls.watch(create).await
    }

    async fn keep_open(self, mut watching: Watching) {
        loop {
            self.listen(&mut watching).await;
            loop {
                tokio::time::sleep(jittered(PAUSE)).await;
                match self.open().await {
                    Ok(again) => break watching = again,
                    // Whoever watches looks, and finds out what is wrong.
                    Err(_) => self.hinter.tell(Hint::All),
                }
            }
            self.hinter.tell(Hint::All);
        }
    }

    /// Passes on what is told, until that ends.
    async fn listen(&self, watching: &mut Watching) {
        loop {
            tokio::select! {
                told = watching.next() => match told {
                    Ok(told) => self.pass_on(&told),
                    Err(_) => return,
                },
                () = tokio::time::sleep(PING_EVERY) => self.ping().await,
            }
        }
    }

    /// How claims ended is known before anybody is told to look.
    fn pass_on(&self, told: &WatchResponse) {
        let keys = &self.shared.keys;
        let at_once = told.events.chunk_by(|one, next| one.revision() == next.revision());
        let departures: Vec<_> = at_once.flat_map(|it| Deed::read(keys, it).fates(keys)).collect();
        if !departures.is_empty() {
            self.shared.departed.add(departures);
        }
        for kv in told.events.iter().filter_map(|event| event.kv.as_ref()) {
            keys.parse(&kv.key).into_iter().for_each(|key| self.hinter.tell(Hint::Changed(key)));
        }
    }

    /// A connection that is silently dead is given up, and with it the watch.
    async fn ping(&self) {
        let _ = self.shared.first(&self.shared.keys.all_forced()).await;
    }
}

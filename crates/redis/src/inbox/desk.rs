//! Claims that wait or hold, and what is told to them.
//!
//! In: messages as the scripts write them. Out: a push in the slot of its claim, or a notice to the
//! engine; a grant for a claim that was given up is given back.
//!
//! Anybody with the right to publish can write a message, and anybody who reads the lock's value knows the
//! token. So no message makes this process release a lock that it may hold: a grant is given back only for
//! a claim that was given up here, and a release by force is read from the server before it counts.
//!
//! ```text
//! granted:<token>:<fence>:<flag>:<lock>   ask:<token>:<lock>
//! contended:<token>:<lock>                forced:<token>:<lock>\n<by>
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::backend::{Loss, Notice};
use tenure_core::{Claim, Key, Token};
use tokio::sync::Notify;

use crate::calm::Calm;
use crate::keys::Keys;
use crate::link::{Links, Server};
use crate::scripts::{Freed, Run};

/// How many claims that were given up are kept in mind. A grant for one that is forgotten ends with its ttl.
const GIVEN_UP_KEPT: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Desk {
    server: Arc<Server>,
    commands: Arc<Links>,
    keys: Keys,
    calm: Calm,
    slots: Mutex<Slots>,
    /// How many there are, for those who know that theirs is not among none.
    count: AtomicUsize,
    /// Claims that were known here and are not asked for again, newest last.
    given_up: Mutex<VecDeque<Token>>,
}

type Slots = HashMap<Token, Arc<Slot>, BuildHasherDefault<AsItIs>>;

/// Tokens are random: any part of one is as good as a hash of it.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, token: u128) {
        self.0 = token as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Where a claim is told of its turn.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// None any more once it was let go of for another process.
    claim: Weak<Claim>,
    push: Mutex<Option<Push>>,
    told: Notify,
    /// It has asked by the full form, and so may have left more than the short one finds: a heartbeat, or
    /// a place in the queue of a lock that it was given while the slot moved.
    in_full: AtomicBool,
}

/// A grant as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) fence: u64,
    pub(crate) contended: bool,
    /// The server's turn in which it was heard; `None` if we were not sure to be listening.
    pub(crate) turn: Option<u64>,
}

impl Push {
    /// Nothing to rely on: whoever gets it asks.
    const UNSURE: Push = Push { fence: 0, contended: false, turn: None };
}

impl Slot {
    /// The next grant that is told, also one that was told before.
    pub(crate) async fn push(&self) -> Push {
        loop {
            self.told.notified().await;
            if let Some(push) = self.take() {
                return push;
            }
        }
    }

    /// Whether all it has done about its lock is to stand in the queue.
    pub(crate) fn only_stood(&self) -> bool {
        !self.in_full.load(Ordering::Relaxed)
    }

    pub(crate) fn asks_in_full(&self) {
        self.in_full.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Push> {
        self.push.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, push: Push) {
        *self.push.lock().unwrap_or_else(PoisonError::into_inner) = Some(push);
        self.told.notify_one();
    }
}

impl Desk {
    pub(super) fn new(server: &Arc<Server>, commands: &Arc<Links>, keys: &Keys) -> Self {
        let (server, commands, keys) = (server.clone(), commands.clone(), keys.clone());
        Desk {
            server,
            commands,
            keys,
            calm: Calm::new(),
            slots: Mutex::default(),
            count: AtomicUsize::new(0),
            given_up: Mutex::default(),
        }
    }

    /// Which keys nobody else wants, as far as is known.
    pub(crate) fn calm(&self) -> &Calm {
        &self.calm
    }

    /// Makes a claim known, or finds it where it is known already.
    pub(crate) fn expect(&self, claim: &Arc<Claim>) -> Arc<Slot> {
        let mut slots = self.slots();
        let new = || Arc::new(Slot { claim: Arc::downgrade(claim), ..Slot::default() });
        let slot = slots.entry(claim.token()).or_insert_with(new).clone();
        self.count.store(slots.len(), Ordering::Release);
        slot
    }

    /// Whether this claim may wait already.
    pub(crate) fn knows(&self, token: Token) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.slots().contains_key(&token)
    }

    /// Nobody will ask for this claim again. Where it was told of its turn, if it was known here.
    pub(crate) fn forget(&self, token: Token) -> Option<Arc<Slot>> {
        // Whoever was expected knows that it was: its slot is counted here.
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut slots = self.slots();
        let slot = slots.remove(&token)?;
        self.count.store(slots.len(), Ordering::Release);
        let mut given_up = self.given_up();
        if given_up.len() == GIVEN_UP_KEPT {
            given_up.pop_front();
        }
        given_up.push_back(token);
        Some(slot)
    }

    fn given_up(&self) -> MutexGuard<'_, VecDeque<Token>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in one message. What no script of ours writes is nobody's business here.
    pub(super) fn deliver(&self, message: &[u8], turn: Option<u64>) {
        let _ = std::str::from_utf8(message).ok().and_then(|text| self.read(text, turn));
    }

    fn read(&self, text: &str, turn: Option<u64>) -> Option<()> {
        let (word, rest) = text.split_once(':')?;
        let (token, rest) = rest.split_once(':')?;
        let token = Token::parse(token)?;
        match word {
            "granted" => self.granted(token, rest, turn),
            "ask" => self.slots().get(&token).map(|slot| slot.put(Push::UNSURE)),
            "contended" => self.contended(token, rest),
            "forced" => {
                let (lock, _) = rest.split_once('\n')?;
                self.look_who_forced(self.keys.parse_lock(lock.as_bytes())?, token);
                Some(())
            }
            _ => None,
        }
    }

    /// Noted on the claim itself where that is known here: a notice wakes the engine's thread.
    fn contended(&self, token: Token, lock: &str) -> Option<()> {
        let now = self.server.clock().now();
        let claim = self.slots().get(&token).and_then(|slot| slot.claim.upgrade());
        if let Some(claim) = claim {
            self.calm.disturb(claim.key(), now);
            claim.set_contended(now);
            return Some(());
        }
        let key = self.keys.parse_lock(lock.as_bytes())?;
        self.calm.disturb(&key, now);
        self.server.tell(Notice::Contended { key, token });
        Some(())
    }

    fn granted(&self, token: Token, rest: &str, turn: Option<u64>) -> Option<()> {
        let mut fields = rest.splitn(3, ':');
        let fence = fields.next()?.parse().ok()?;
        let contended = fields.next()? == "*";
        let slot = self.slots().get(&token).cloned();
        match slot {
            Some(slot) => slot.put(Push { fence, contended, turn }),
            None if self.given_up().contains(&token) => {
                self.disown(self.keys.parse_lock(fields.next()?.as_bytes())?, token);
            }
            None => tracing::debug!("a grant for a claim that never waited here is ignored"),
        }
        Some(())
    }

    /// Gives back what nobody asked for any more: a request that was carried out late. If that
    /// fails, its ttl ends it.
    fn disown(&self, key: Key, token: Token) {
        tracing::debug!(%key, "a grant for a claim that has ended is given back");
        let (run, commands) = (Run::disown(&self.keys, &key, token), self.commands.clone());
        tokio::spawn(async move {
            let _ = run.on::<Freed>(commands.of(&key)).await;
        });
    }

    /// Tells the engine that the lock was released by force, if the server says so too. If that cannot be
    /// read, the next renewal finds out.
    fn look_who_forced(&self, key: Key, token: Token) {
        let (server, commands) = (self.server.clone(), self.commands.clone());
        let mut get = redis::cmd("GET");
        get.arg(self.keys.forced(&key, token));
        tokio::spawn(async move {
            let link = commands.of(&key);
            let Ok(live) = link.live().await else { return };
            let by = link.call(&live, get).await.ok().map(redis::from_redis_value);
            if let Some(Ok(Some(by))) = by {
                server.tell(Notice::Lost { key, token, loss: Loss::Forced(by) });
            }
        });
    }
}

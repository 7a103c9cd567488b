//! Claims that wait or hold a lock, and their messages.
//!
//! In: messages as the scripts write them. Out: a push in the mailbox of its claim, or a notice to the
//! engine; a grant for an abandoned claim is released.
//!
//! Every client with the right to publish can send a message, and every client that reads the lock's value
//! knows the token. So no message makes this process release a lock that it may hold: a grant is released
//! only for a claim that was abandoned or released here, and a release by force is read from the server
//! before it counts.
//!
//! ```text
//! granted:<token>:<fence>:<flag><slot>:<lock>   ask:<token>:<lock>
//! contended:<token>:<lock>                forced:<token>:<lock>\n<by>
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_core::backend::{Loss, Notice};
use tenure_core::{Claim, Key, Token};
use tokio::sync::Notify;

use super::contention::ContentionHints;
use crate::link::{Pool, Server};
use crate::scripts::{ReleaseReply, ScriptCall};
use crate::wire::keys::Keys;

/// How many ended claims are remembered. A grant for a claim that is no longer remembered ends with its ttl.
const GIVEN_UP_KEPT: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Waiters {
    server: Arc<Server>,
    commands: Arc<Pool>,
    keys: Keys,
    contention: ContentionHints,
    mailboxes: Mutex<Mailboxes>,
    /// The number of mailboxes, so that the common case (no waiters) skips the mutex.
    count: AtomicUsize,
    /// Claims that were known here and will not be requested again, newest last.
    given_up: Mutex<VecDeque<Token>>,
}

type Mailboxes = HashMap<Token, Arc<Mailbox>, BuildHasherDefault<IdentityHasher>>;

/// Tokens are random: any part of a token serves as its hash.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

/// Receives the grants that are pushed to a claim.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Dangling after the claim was relinquished to another process.
    claim: Weak<Claim>,
    push: Mutex<Option<Push>>,
    notified: Notify,
    /// The claim used `acquire.lua`. So it may have left more than the short script looks for: a heartbeat,
    /// or an entry in the queue of a lock that it was granted while the slot moved.
    used_full_script: AtomicBool,
}

/// A grant as it was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) fence: u64,
    pub(crate) contended: bool,
    /// The slot of a numbered permit.
    pub(crate) slot: Option<u32>,
    /// The epoch of the server in which it was received; `None` if we were perhaps not subscribed.
    pub(crate) epoch: Option<u64>,
}

impl Push {
    /// Not a grant to rely on: the claim must ask.
    const RECHECK: Push = Push { fence: 0, contended: false, slot: None, epoch: None };
}

impl Mailbox {
    /// The next pushed grant, also one that was pushed before this call.
    pub(crate) async fn push(&self) -> Push {
        loop {
            self.notified.notified().await;
            if let Some(push) = self.take() {
                return push;
            }
        }
    }

    /// Whether the claim used no other script than `enqueue_fast.lua` to wait.
    pub(crate) fn enqueued_fast_only(&self) -> bool {
        !self.used_full_script.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_full_script(&self) {
        self.used_full_script.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Option<Push> {
        self.push.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, push: Push) {
        *self.push.lock().unwrap_or_else(PoisonError::into_inner) = Some(push);
        self.notified.notify_one();
    }
}

impl Waiters {
    pub(super) fn new(server: &Arc<Server>, commands: &Arc<Pool>, keys: &Keys) -> Self {
        let (server, commands, keys) = (server.clone(), commands.clone(), keys.clone());
        Waiters {
            server,
            commands,
            keys,
            contention: ContentionHints::new(),
            mailboxes: Mutex::default(),
            count: AtomicUsize::new(0),
            given_up: Mutex::default(),
        }
    }

    /// Which keys other processes want, as far as is known.
    pub(crate) fn contention(&self) -> &ContentionHints {
        &self.contention
    }

    /// Makes a claim known, or returns its mailbox if it is known already.
    pub(crate) fn register(&self, claim: &Arc<Claim>) -> Arc<Mailbox> {
        let mut mailboxes = self.mailboxes();
        let new = || Arc::new(Mailbox { claim: Arc::downgrade(claim), ..Mailbox::default() });
        let mailbox = mailboxes.entry(claim.token()).or_insert_with(new).clone();
        self.count.store(mailboxes.len(), Ordering::Release);
        mailbox
    }

    /// Whether this claim may be waiting already.
    pub(crate) fn contains(&self, token: Token) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.mailboxes().contains_key(&token)
    }

    /// The claim will not be requested again. Returns its mailbox, if the claim was known here.
    pub(crate) fn remove(&self, token: Token) -> Option<Arc<Mailbox>> {
        // A registered claim is counted in `count` before its caller can get here.
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut mailboxes = self.mailboxes();
        let mailbox = mailboxes.remove(&token)?;
        self.count.store(mailboxes.len(), Ordering::Release);
        let mut given_up = self.given_up();
        if given_up.len() == GIVEN_UP_KEPT {
            given_up.pop_front();
        }
        given_up.push_back(token);
        Some(mailbox)
    }

    fn given_up(&self) -> MutexGuard<'_, VecDeque<Token>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mailboxes(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes one message. Messages that none of our scripts writes are ignored.
    pub(super) fn dispatch(&self, message: &[u8], epoch: Option<u64>) {
        let _ = std::str::from_utf8(message).ok().and_then(|text| self.read(text, epoch));
    }

    fn read(&self, text: &str, epoch: Option<u64>) -> Option<()> {
        let (word, rest) = text.split_once(':')?;
        let (token, rest) = rest.split_once(':')?;
        let token = Token::parse(token)?;
        match word {
            "granted" => self.granted(token, rest, epoch),
            "ask" => self.mailboxes().get(&token).map(|mailbox| mailbox.put(Push::RECHECK)),
            "contended" => self.contended(token, rest),
            "forced" => {
                let (lock, _) = rest.split_once('\n')?;
                self.confirm_forced(self.keys.parse_lock(lock.as_bytes())?, token);
                Some(())
            }
            _ => None,
        }
    }

    /// Noted on the claim itself if it is known here: a notice wakes the engine's thread.
    fn contended(&self, token: Token, lock: &str) -> Option<()> {
        let now = self.server.clock().now();
        let claim = self.mailboxes().get(&token).and_then(|mailbox| mailbox.claim.upgrade());
        if let Some(claim) = claim {
            self.contention.mark_contended(claim.key(), now);
            claim.set_contended(now);
            return Some(());
        }
        let key = self.keys.parse_lock(lock.as_bytes())?;
        self.contention.mark_contended(&key, now);
        self.server.notify(Notice::Contended { key, token });
        Some(())
    }

    fn granted(&self, token: Token, rest: &str, epoch: Option<u64>) -> Option<()> {
        let mut fields = rest.splitn(3, ':');
        let fence = fields.next()?.parse().ok()?;
        let (flag, slot) = fields.next()?.split_at_checked(1)?;
        let (contended, slot) = (flag == "*", slot.parse().ok());
        let mailbox = self.mailboxes().get(&token).cloned();
        match mailbox {
            Some(mailbox) => mailbox.put(Push { fence, contended, slot, epoch }),
            None if self.given_up().contains(&token) => {
                self.release_unwanted(self.keys.parse_lock(fields.next()?.as_bytes())?, token);
            }
            None => tracing::debug!("a grant for a claim that never waited here is ignored"),
        }
        Some(())
    }

    /// Releases a grant that no claim wants any more: its request executed late. If the release fails, the
    /// ttl ends the grant.
    fn release_unwanted(&self, key: Key, token: Token) {
        tracing::debug!(%key, "a grant for a claim that has ended is released");
        let (run, commands) = (ScriptCall::dequeue(&self.keys, &key, token), self.commands.clone());
        tokio::spawn(async move {
            let _ = run.on::<ReleaseReply>(commands.of(&key)).await;
        });
    }

    /// Notifies the engine that the lock was released by force, if the server confirms it. If that cannot be
    /// read, the next renewal finds out.
    fn confirm_forced(&self, key: Key, token: Token) {
        let (server, commands) = (self.server.clone(), self.commands.clone());
        let mut get = redis::cmd("GET");
        get.arg(self.keys.forced(&key, token));
        tokio::spawn(async move {
            let link = commands.of(&key);
            let Ok(live) = link.live().await else { return };
            let by = link.call(&live, get).await.ok().map(redis::from_redis_value);
            if let Some(Ok(Some(by))) = by {
                server.notify(Notice::Lost { key, token, loss: Loss::Forced(by) });
            }
        });
    }
}

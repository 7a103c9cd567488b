//! The "server" of `memory:`: a table of locks under one mutex.
//!
//! Time does not run here by itself: every look first drops what has expired, and waiters come
//! back when the holder they wait for should have.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast};

use crate::backend::{
    Attempt, Fate, Fault, FaultKind, Grant, Holding, LockInfo, Loss, Notice, Notices, Query,
    Release, Term, Then, Waiting,
};
use crate::claim::{Claim, Holder, Token};
use crate::fence::{self, Fence};
use crate::key::Key;
use crate::time::{Clock, Time, UnixMillis};

/// How many notices a slow listener may be behind before it is told that it missed some.
const NOTICES_KEPT: usize = 1024;

#[derive(Debug)]
pub(super) struct Space {
    clock: Clock,
    state: Mutex<State>,
    notices: broadcast::Sender<Notice>,
}

#[derive(Debug, Default)]
struct State {
    locks: HashMap<Key, Lock>,
    last_fence: u64,
    forced: Vec<Taken>,
}

/// A claim that an operator took the lock from, kept for as long as its lease would have lasted.
#[derive(Debug)]
struct Taken {
    token: Token,
    by: String,
    until: Time,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Held>,
    closed: Option<(Time, Holder)>,
    queue: VecDeque<Queued>,
}

#[derive(Debug)]
struct Held {
    token: Token,
    shared_owner: Option<String>,
    holder: Holder,
    grant: Grant,
    until: Time,
}

#[derive(Debug)]
struct Queued {
    token: Token,
    shared_owner: Option<String>,
    holder: Holder,
    ttl: Duration,
    changed: Arc<Notify>,
}

/// What a waiting claim is told.
pub(super) enum Answer {
    Granted(Grant),
    Wait { holder: Holder, place: u64, changed: Arc<Notify>, until: Time },
}

impl Space {
    pub(super) fn new(clock: Clock) -> Self {
        Space { clock, state: Mutex::default(), notices: broadcast::Sender::new(NOTICES_KEPT) }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn notices(&self) -> Notices {
        Notices::of(&self.notices)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the lock as it stands now, and forgets it if nothing is left of it.
    fn on<T>(&self, key: &Key, f: impl FnOnce(&mut Lock, &mut u64, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = self.state();
        let State { locks, last_fence, .. } = &mut *state;
        let lock = locks.entry(key.clone()).or_default();
        lock.settle(now, last_fence);
        let answer = f(lock, last_fence, now);
        lock.settle(now, last_fence);
        if lock.is_idle() {
            locks.remove(key);
        }
        answer
    }

    /// One attempt, without queueing.
    pub(super) fn ask(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.on(claim.key(), |lock, last_fence, now| {
            if let Some(grant) = lock.grant_to(claim, last_fence, now)? {
                return Ok(Attempt::Granted(grant));
            }
            Ok(Attempt::Held(Box::new(lock.in_the_way(now))))
        })
    }

    /// An attempt that queues where it fails.
    pub(super) fn queue(&self, claim: &Claim) -> Result<Answer, Fault> {
        self.on(claim.key(), |lock, last_fence, now| {
            if let Some(grant) = lock.grant_to(claim, last_fence, now)? {
                return Ok(Answer::Granted(grant));
            }
            let (place, changed, is_new) = lock.enqueue(claim);
            if is_new {
                self.tell_contended(claim.key(), &lock.holders);
            }
            Ok(Answer::Wait {
                holder: lock.in_the_way(now),
                place,
                changed,
                until: lock.next_change(),
            })
        })
    }

    /// Extends the claim's lease; whether others wait. `None` if it is not the claim's.
    pub(super) fn renew(&self, claim: &Claim, from: Time, ttl: Duration) -> Option<bool> {
        self.on(claim.key(), |lock, _, _| {
            let contended = !lock.queue.is_empty();
            let held = lock.held_by(claim.token())?;
            held.until = held.until.max(from.after(ttl));
            held.grant.term = Term::Lease { from, ttl };
            Some(contended)
        })
    }

    pub(super) fn release(&self, claim: &Claim, then: Then) -> Release {
        self.on(claim.key(), |lock, _, now| {
            let Some(held) = lock.take(claim.token()) else { return Release::NotHeld };
            if let Then::Closed(rest) = then {
                let until = now.after(rest);
                if lock.closed.as_ref().is_none_or(|(closed, _)| *closed < until) {
                    lock.closed = Some((until, Holder { closing: true, ..held.holder }));
                }
                // Those who wait sleep until the lease they saw would have ended; this is sooner.
                lock.queue.iter().for_each(|queued| queued.changed.notify_one());
            }
            match u32::try_from(lock.holders.len()).unwrap_or(u32::MAX) {
                0 => Release::Freed,
                others => Release::StillHeld(others),
            }
        })
    }

    pub(super) fn abandon(&self, claim: &Claim) {
        self.on(claim.key(), |lock, _, _| {
            lock.take(claim.token());
            lock.queue.retain(|queued| queued.token != claim.token());
        });
    }

    pub(super) fn force_release(&self, key: &Key, seen: Token, by: &str) -> Release {
        let taken = self.on(key, |lock, _, _| lock.take(seen));
        let Some(held) = taken else { return Release::NotHeld };
        self.remember(Taken { token: seen, by: by.into(), until: held.until });
        self.tell_lost(key, seen, Loss::Forced(by.into()));
        Release::Freed
    }

    fn remember(&self, taken: Taken) {
        let (now, mut state) = (self.clock.now(), self.state());
        state.forced.retain(|taken| now < taken.until);
        state.forced.push(taken);
    }

    /// Who took the lock from this claim, if somebody did.
    pub(super) fn fate(&self, token: Token) -> Option<Fate> {
        let state = self.state();
        let taken = state.forced.iter().find(|taken| taken.token == token)?;
        Some(Loss::Forced(taken.by.clone()).into())
    }

    /// Forgets all holders; their tokens.
    pub(super) fn evict(&self, key: &Key) -> Vec<Token> {
        self.on(key, |lock, _, _| lock.holders.drain(..).map(|held| held.token).collect())
    }

    pub(super) fn inspect(&self, query: &Query) -> Vec<LockInfo> {
        let keys: Vec<Key> = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Keys(keys) => keys.clone(),
            Query::Glob(_) => self
                .state()
                .locks
                .keys()
                .filter(|key| query.matches(key.as_str()))
                .cloned()
                .collect(),
        };
        let mut found: Vec<_> = keys.iter().filter_map(|key| self.info(key)).collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    fn info(&self, key: &Key) -> Option<LockInfo> {
        self.on(key, |lock, _, now| (!lock.is_idle()).then(|| lock.info(key, now)))
    }

    fn tell_contended(&self, key: &Key, holders: &[Held]) {
        for held in holders {
            let _ = self.notices.send(Notice::Contended { key: key.clone(), token: held.token });
        }
    }

    pub(super) fn tell_lost(&self, key: &Key, token: Token, loss: Loss) {
        let _ = self.notices.send(Notice::Lost { key: key.clone(), token, loss });
    }
}

impl Lock {
    /// Drops what has expired, and hands a free lock to the first in the queue.
    fn settle(&mut self, now: Time, last_fence: &mut u64) {
        self.holders.retain(|held| now < held.until);
        self.closed.take_if(|(until, _)| now >= *until);
        while self.holders.is_empty() && self.closed.is_none() {
            let Some(first) = self.queue.pop_front() else { return };
            let Some(fence) = next_fence(last_fence) else { return };
            first.changed.notify_one();
            self.hold(first, fence, now);
        }
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.closed.is_none() && self.queue.is_empty()
    }

    fn hold(&mut self, claim: Queued, fence: u64, now: Time) -> Grant {
        let term = Term::Lease { from: now, ttl: claim.ttl };
        let grant = Grant { fence, term, contended: !self.queue.is_empty() };
        let Queued { token, shared_owner, holder, ttl, .. } = claim;
        let holder = Holder { since: Some(UnixMillis::now()), ..holder };
        self.holders.push(Held { token, shared_owner, holder, grant, until: now.after(ttl) });
        grant
    }

    /// Grants the claim if it has been granted already, if the lock is free, or if its shared owner
    /// holds it.
    fn grant_to(
        &mut self,
        claim: &Claim,
        last_fence: &mut u64,
        now: Time,
    ) -> Result<Option<Grant>, Fault> {
        let contended = !self.queue.is_empty();
        if let Some(held) = self.held_by(claim.token()) {
            return Ok(Some(Grant { contended, ..held.grant }));
        }
        let free = self.is_idle();
        let mates = claim.shared_owner().is_some()
            && !self.holders.is_empty()
            && self.holders.iter().all(|held| held.shared_owner.as_deref() == claim.shared_owner());
        if !free && !mates {
            return Ok(None);
        }
        let fence = next_fence(last_fence).ok_or_else(fence_exhausted)?;
        self.queue.retain(|queued| queued.token != claim.token());
        Ok(Some(self.hold(Queued::of(claim), fence, now)))
    }

    fn held_by(&mut self, token: Token) -> Option<&mut Held> {
        self.holders.iter_mut().find(|held| held.token == token)
    }

    fn take(&mut self, token: Token) -> Option<Held> {
        let at = self.holders.iter().position(|held| held.token == token)?;
        Some(self.holders.remove(at))
    }

    /// The claim's place in the queue, one for the first; queued now if it was not.
    fn enqueue(&mut self, claim: &Claim) -> (u64, Arc<Notify>, bool) {
        let at = self.queue.iter().position(|queued| queued.token == claim.token());
        if at.is_none() {
            self.queue.push_back(Queued::of(claim));
        }
        let at_or_last = at.unwrap_or(self.queue.len() - 1);
        (at_or_last as u64 + 1, self.queue[at_or_last].changed.clone(), at.is_none())
    }

    fn in_the_way(&self, now: Time) -> Holder {
        let held = self.holders.first().map(|held| held.as_seen(now));
        let closed = self.closed.as_ref().map(|(until, holder)| left(holder, *until, now));
        held.or(closed).unwrap_or_else(Holder::unknown)
    }

    fn next_change(&self) -> Time {
        let ends = self.holders.iter().map(|held| held.until);
        let opens = self.closed.iter().map(|(until, _)| *until);
        ends.chain(opens).min().unwrap_or(Time::NEVER)
    }

    fn info(&self, key: &Key, now: Time) -> LockInfo {
        let held = self.holders.iter().map(|held| {
            Holding::new(
                held.as_seen(now),
                Some(Fence::from_server(held.grant.fence)),
                Some(held.token),
            )
        });
        let closed = self
            .closed
            .iter()
            .map(|(until, holder)| Holding::new(left(holder, *until, now), None, None));
        let waiters = self
            .queue
            .iter()
            .map(|queued| Waiting::new(queued.holder.clone(), queued.holder.since));
        LockInfo::exclusive(key.clone(), held.chain(closed).collect(), Some(waiters.collect()))
    }
}

impl Held {
    fn as_seen(&self, now: Time) -> Holder {
        left(&self.holder, self.until, now)
    }
}

impl Queued {
    fn of(claim: &Claim) -> Self {
        Queued {
            token: claim.token(),
            shared_owner: claim.shared_owner().map(Into::into),
            holder: Holder::of(claim, UnixMillis::now()),
            ttl: claim.ttl(),
            changed: Arc::default(),
        }
    }
}

fn left(holder: &Holder, until: Time, now: Time) -> Holder {
    Holder { lease_left: Some(until.since(now)), ..holder.clone() }
}

fn next_fence(last: &mut u64) -> Option<u64> {
    let next = fence::next_server_fence(*last, UnixMillis::now())?;
    *last = next;
    Some(next)
}

fn fence_exhausted() -> Fault {
    Fault::new(FaultKind::Refused, "the fence counter is at its end; the wall clock is wrong")
}

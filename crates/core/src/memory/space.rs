//! The "server" of `memory:`: a table of locks under one mutex.
//!
//! There is no timer here. Every access first removes expired holders. A waiter returns when the holder that
//! it waits for should have expired.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Notice, Notifier};
use crate::change_hints::{Hint, HintSender, Hints, hints};
use crate::claim::Claim;
use crate::fault::{Fault, FaultKind, Loss};
use crate::fence::{self, Fence};
use crate::grant::{AfterRelease, Attempt, Grant, Release, Validity};
use crate::holder::Holder;
use crate::key::Key;
use crate::mode::{self, Mode};
use crate::report::{Holding, LockInfo, Query, Waiting};
use crate::time::{Clock, Time, UnixMillis};
use crate::token::Token;

#[derive(Debug)]
pub(super) struct Space {
    clock: Clock,
    state: Mutex<State>,
    pub(super) notifier: Notifier,
}

#[derive(Debug, Default)]
struct State {
    locks: HashMap<Key, Lock>,
    last_fence: u64,
    forced: Vec<ForcedRelease>,
    watches: Vec<HintSender>,
}

/// A claim whose lock was released by force. Kept until its lease would have ended.
#[derive(Debug)]
struct ForcedRelease {
    token: Token,
    by: String,
    until: Time,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Held>,
    queue: VecDeque<Queued>,
}

/// A holder. One that is [cooling down](Holder::cooling_down) has released the lock before its `min_hold` was
/// over, and keeps others out for the rest of that time.
#[derive(Debug)]
struct Held {
    token: Token,
    mode: Mode,
    holder: Holder,
    grant: Grant,
    until: Time,
}

#[derive(Debug)]
struct Queued {
    token: Token,
    mode: Mode,
    numbered: bool,
    holder: Holder,
    ttl: Duration,
    changed: Arc<Notify>,
}

/// The reply to a claim that may wait.
pub(super) enum Answer {
    Granted(Grant),
    Wait { holder: Holder, position: u64, changed: Arc<Notify>, until: Time },
}

impl Space {
    pub(super) fn new(clock: Clock) -> Self {
        Space { clock, state: Mutex::default(), notifier: Notifier::default() }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hints about the locks from now on.
    pub(super) fn hints(&self) -> Hints {
        let (sender, hints) = hints(&self.clock);
        let mut state = self.state();
        state.watches.retain(HintSender::is_heard);
        state.watches.push(sender);
        hints
    }

    /// Runs `f`, which may change the lock.
    fn on<T>(&self, key: &Key, f: impl FnOnce(&mut Lock, &mut u64, Time) -> T) -> T {
        let mut state = self.state();
        let answer = state.on(key, self.clock.now(), f);
        state.hint(key);
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

    /// An attempt that queues the claim if it is not granted.
    pub(super) fn queue(&self, claim: &Claim) -> Result<Answer, Fault> {
        self.on(claim.key(), |lock, last_fence, now| {
            if let Some(grant) = lock.grant_to(claim, last_fence, now)? {
                return Ok(Answer::Granted(grant));
            }
            let (position, changed, is_new) = lock.enqueue(claim);
            if is_new {
                self.notify_contended(claim.key(), &lock.holders);
            }
            Ok(Answer::Wait {
                holder: lock.in_the_way(now),
                position,
                changed,
                until: lock.next_change(),
            })
        })
    }

    /// Extends the lease of the claim. Returns whether others wait, or `None` if the claim does not hold the
    /// lock, or holds it together with others and is adopted as one that is alone.
    pub(super) fn renew(&self, claim: &Claim, from: Time, ttl: Duration) -> Option<bool> {
        self.on(claim.key(), |lock, _, _| {
            let contended = !lock.queue.is_empty();
            let together = claim.mode().is_together();
            let held = lock.held_by(claim.token())?;
            if held.mode.is_together() != together {
                return None;
            }
            held.until = held.until.max(from.after(ttl));
            if let Some(label) = claim.new_label() {
                held.holder.label = Some(label.as_ref().into());
            }
            held.grant.validity = Validity::Lease { from, ttl };
            Some(contended)
        })
    }

    pub(super) fn release(&self, claim: &Claim, then: AfterRelease) -> Release {
        self.on(claim.key(), |lock, _, now| {
            let Some(held) = lock.held_by(claim.token()) else { return Release::NotHeld };
            match then {
                AfterRelease::Free => drop(lock.take(claim.token())),
                AfterRelease::Cooldown(rest) => {
                    (held.until, held.holder.cooling_down) = (now.after(rest), true);
                    // A closed lock is closed to the other processes of a shared owner too.
                    if let Mode::SharedOwner(_) = held.mode {
                        held.mode = Mode::Exclusive;
                    }
                    // Waiters sleep until the end of the lease that they saw; the closed time ends sooner.
                    lock.queue.iter().for_each(|queued| queued.changed.notify_one());
                }
            }
            match (claim.shared_owner(), lock.live().count()) {
                (Some(_), others @ 1..) => {
                    Release::StillHeld(u32::try_from(others).unwrap_or(u32::MAX))
                }
                _ => Release::Freed,
            }
        })
    }

    pub(super) fn abandon(&self, claim: &Claim) {
        self.on(claim.key(), |lock, _, _| {
            if lock.held_by(claim.token()).is_some() {
                lock.take(claim.token());
            }
            lock.queue.retain(|queued| queued.token != claim.token());
        });
    }

    pub(super) fn force_release(&self, key: &Key, seen: Token, by: &str) -> Release {
        let (now, mut state) = (self.clock.now(), self.state());
        let forced = state.on(key, now, |lock, _, _| lock.take(seen));
        let Some(held) = forced else { return Release::NotHeld };
        state.hint(key);
        if held.holder.cooling_down {
            return Release::Freed;
        }
        // With the mutex of the release still locked: a renewal must not find that the lock is merely gone.
        state.forced.retain(|forced| now < forced.until);
        state.forced.push(ForcedRelease { token: seen, by: by.into(), until: held.until });
        drop(state);
        self.notify_lost(key, seen, Loss::Forced(by.into()));
        Release::Freed
    }

    /// The loss of the claim, if its lock was released by force.
    pub(super) fn forced(&self, token: Token) -> Option<Loss> {
        let state = self.state();
        let forced = state.forced.iter().find(|forced| forced.token == token)?;
        Some(Loss::Forced(forced.by.clone()))
    }

    /// Removes all holders and returns their tokens.
    pub(super) fn evict(&self, key: &Key) -> Vec<Token> {
        self.on(key, |lock, _, _| {
            lock.holders
                .extract_if(.., |held| !held.holder.cooling_down)
                .map(|held| held.token)
                .collect()
        })
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
        let shown =
            |lock: &mut Lock, _: &mut u64, now| (!lock.is_idle()).then(|| lock.info(key, now));
        self.state().on(key, self.clock.now(), shown)
    }

    fn notify_contended(&self, key: &Key, holders: &[Held]) {
        for held in holders {
            self.notifier.send(Notice::Contended { key: key.clone(), token: held.token });
        }
    }

    pub(super) fn notify_lost(&self, key: &Key, token: Token, loss: Loss) {
        self.notifier.send(Notice::Lost { key: key.clone(), token, loss });
    }
}

impl State {
    /// Runs `f` on the current state of the lock, and removes the lock if it is idle afterwards.
    fn on<T>(&mut self, key: &Key, now: Time, f: impl FnOnce(&mut Lock, &mut u64, Time) -> T) -> T {
        let State { locks, last_fence, .. } = self;
        let lock = locks.entry(key.clone()).or_default();
        lock.serve(now, last_fence);
        let answer = f(lock, last_fence, now);
        lock.serve(now, last_fence);
        if lock.is_idle() {
            locks.remove(key);
        }
        answer
    }

    fn hint(&self, key: &Key) {
        self.watches.iter().for_each(|watch| watch.send(Hint::Changed(key.clone())));
    }
}

impl Lock {
    /// Removes expired holders, and grants the lock to the waiters at the front that the holders admit.
    fn serve(&mut self, now: Time, last_fence: &mut u64) {
        self.holders.retain(|held| now < held.until);
        while self.queue.front().is_some_and(|first| self.admits(&first.mode)) {
            let Some(fence) = next_fence(last_fence) else { return };
            let Some(first) = self.queue.pop_front() else { return };
            first.changed.notify_one();
            self.hold(first, fence, now);
        }
    }

    fn admits(&self, claim: &Mode) -> bool {
        mode::admits(self.holders.iter().map(|held| &held.mode), claim)
    }

    /// The holders that have not released the lock.
    fn live(&self) -> impl Iterator<Item = &Held> {
        self.holders.iter().filter(|held| !held.holder.cooling_down)
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    fn hold(&mut self, claim: Queued, fence: u64, now: Time) -> Grant {
        let Queued { token, mode, numbered, holder, ttl, .. } = claim;
        let slots = self.holders.iter().filter_map(|held| held.grant.slot);
        let slot = numbered.then(|| mode::free_slot(slots));
        let validity = Validity::Lease { from: now, ttl };
        let grant = Grant::new(fence, validity).contended(!self.queue.is_empty()).slot(slot);
        let holder = Holder { since: Some(UnixMillis::now()), ..holder };
        self.holders.push(Held { token, mode, holder, grant, until: now.after(ttl) });
        grant
    }

    /// Grants the claim if it has been granted already, or if the holders admit it and no claim waits. A claim
    /// of a shared owner that holds the lock is granted although others wait: they wait for the owner.
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
        let joins_owner = claim.shared_owner().is_some() && !self.holders.is_empty();
        if !self.admits(claim.mode()) || (contended && !joins_owner) {
            return Ok(None);
        }
        let fence = next_fence(last_fence).ok_or_else(fence_exhausted)?;
        self.queue.retain(|queued| queued.token != claim.token());
        Ok(Some(self.hold(Queued::of(claim), fence, now)))
    }

    fn held_by(&mut self, token: Token) -> Option<&mut Held> {
        self.holders.iter_mut().find(|held| held.token == token && !held.holder.cooling_down)
    }

    /// Removes a holder, also one that is cooling down.
    fn take(&mut self, token: Token) -> Option<Held> {
        let at = self.holders.iter().position(|held| held.token == token)?;
        Some(self.holders.remove(at))
    }

    /// The claim's position in the queue, from 1, its `Notify`, and whether it is new. Queues the claim if
    /// necessary.
    fn enqueue(&mut self, claim: &Claim) -> (u64, Arc<Notify>, bool) {
        let at = self.queue.iter().position(|queued| queued.token == claim.token());
        if at.is_none() {
            self.queue.push_back(Queued::of(claim));
        }
        let at_or_last = at.unwrap_or(self.queue.len() - 1);
        (at_or_last as u64 + 1, self.queue[at_or_last].changed.clone(), at.is_none())
    }

    /// A holder that keeps others out; the one whose lease ends first.
    fn in_the_way(&self, now: Time) -> Holder {
        let first = self.holders.iter().min_by_key(|held| held.until);
        first.map_or_else(Holder::unknown, |held| held.as_seen(now))
    }

    fn next_change(&self) -> Time {
        self.holders.iter().map(|held| held.until).min().unwrap_or(Time::NEVER)
    }

    fn info(&self, key: &Key, now: Time) -> LockInfo {
        let held = self.holders.iter().map(|held| {
            let fence = Fence::from_server(held.grant.fence);
            let fence = (!held.holder.cooling_down).then_some(fence);
            Holding::new(held.as_seen(now), fence, Some(held.token))
                .mode(held.mode.clone(), held.grant.slot)
        });
        let waiters = self.queue.iter().map(|queued| {
            Waiting::new(queued.holder.clone(), queued.holder.since).mode(queued.mode.clone())
        });
        LockInfo::new(key.clone(), held.collect(), Some(waiters.collect()))
    }
}

impl Held {
    fn as_seen(&self, now: Time) -> Holder {
        Holder { lease_left: Some(self.until.since(now)), ..self.holder.clone() }
    }
}

impl Queued {
    fn of(claim: &Claim) -> Self {
        Queued {
            token: claim.token(),
            mode: claim.mode().clone(),
            numbered: claim.numbered(),
            holder: Holder::of(claim, UnixMillis::now()),
            ttl: claim.ttl(),
            changed: Arc::default(),
        }
    }
}

fn next_fence(last: &mut u64) -> Option<u64> {
    let next = fence::next_server_fence(*last, UnixMillis::now())?;
    *last = next;
    Some(next)
}

fn fence_exhausted() -> Fault {
    Fault::new(FaultKind::Refused, "the fence counter is at its end; the wall clock is wrong")
}

//! The gate: the tasks of one process in front of one key.
//!
//! In: a [`Request`]. Out: the right to hold ([`Hold`]), the duty to ask the server ([`Lead`]), or an entry
//! in the local queue ([`Ticket`]).
//!
//! At most one claim of a process waits for a key at the server. The claim belongs to the gate, not to a task.
//! The task with the lead sends it. If that task is dropped, the next waiter continues with the same claim;
//! only the last one abandons it. On release, the lease goes to the next local waiter without a request to the
//! server, within the bounds of [`Tenancy::may_hand_over`].
//!
//! A key that is held together can have several leases here: one for each permit, and one that the readers of
//! this process share until another process is known to wait. While such a key is held, the next waiter asks the
//! server at once, and a try asks by itself.
//!
//! Every right is a value. Dropping it passes the right on, so a cancelled future cannot leak one. All state
//! of a key is behind one mutex, which is locked briefly. The mutex is never held across an `.await`, nor
//! while such a value is dropped: values to drop are moved out of the critical section first.
//!
//! Reading order: this file (all gates, entering and leaving), `key.rs` (one gate), `tenancy.rs` (the owner
//! of the lease, and the conditions of a hand-over), `rights.rs`, `wakeups.rs` (turns to be sent).
//!
//! No call here waits for a server: an abandon, a release and `watch_contention` only start background work.

mod key;
mod tenancy;
mod rights;
mod wakeups;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::hash::BuildHasherDefault;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::Notify;

use crate::claim::Claim;
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::{Fault, Loss};
use crate::fence::Fence;
use crate::grant::AfterRelease;
use crate::holder::{Holder, WaitStatus};
use crate::key::{Key, PrehashedHasher};
use crate::lease::{Ended, Lease};
use crate::owner::Owner;
use crate::request::Request;
use crate::sync::{AtomicU64, Mutex, MutexGuard};
use crate::time::Time;
use crate::token::Token;

use key::{Asking, Gate, Waiter};
pub(crate) use rights::{Hold, Lead, Member, PendingRelease, Ticket};
use tenancy::{LostTenancy, Tenancy};
use wakeups::Wakeups;

/// The gates are sharded by key into this many parts, so that concurrent tasks seldom contend for a mutex.
const PARTS: usize = 8;

/// All gates of a `Locker`.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    parts: [Part; PARTS],
    serial: AtomicU64,
    /// Notified when a gate is removed after the gates were closed.
    removed: Notify,
}

/// Aligned to a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(Mutex<Table>);

type ByKey<T> = HashMap<Key, T, BuildHasherDefault<PrehashedHasher>>;

#[derive(Debug, Default)]
struct Table {
    gates: ByKey<Gate>,
    /// Detached leases that were lost. `release` by key reports the loss later.
    lost_detached: ByKey<Loss>,
    /// Lost leases whose owner still has guards. The owner must get `Lost`, not a silent re-entry.
    lost: ByKey<Vec<LostTenancy>>,
    closed: bool,
}

/// The outcome of a wait in the local queue.
#[derive(Debug)]
pub(crate) enum Turn {
    Hold(Hold),
    Lead(Lead),
    Refused(Error),
}

/// The outcome of [`Gates::enter`].
pub(crate) enum Entry<'a> {
    Hold(Hold),
    Lead(Lead),
    Wait(Ticket<'a>),
    Busy(Option<Holder>),
    /// A lease that has ended by the clock blocks the gate. The caller handles the loss and enters again.
    Stale(Arc<Lease>),
}

/// Whether a request waits in the local queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queueing {
    Queue,
    Try,
}

/// The outcome of a local release.
pub(crate) enum LocalRelease {
    StillHeld(u32),
    /// Other readers of this process still share the lease.
    OthersRead,
    HandedOver,
    /// The lock must be released at the server.
    Depart(PendingRelease),
    /// The lock was lost before the release.
    Lost(Arc<Lease>, Loss),
}

impl Gates {
    /// The part that `key` belongs to.
    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        self.parts[key.part_of(PARTS)].table()
    }

    /// Locks one part after the other.
    fn tables(&self) -> impl Iterator<Item = MutexGuard<'_, Table>> {
        self.parts.iter().map(Part::table)
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Admits a request, or returns the error that refuses it. Refuses `tokio::time::pause()`: with paused time
    /// no wait would take its time. Every lock enters here.
    pub(crate) fn enter<'a>(
        &self,
        engine: &'a Arc<Engine>,
        ask: &'a Arc<Request>,
        patience: Queueing,
    ) -> Result<Entry<'a>, Error> {
        engine.must_not_be_forked(&ask.key)?;
        engine.clock.must_run()?;
        let now = engine.clock.now();
        let mut table = self.table(&ask.key);
        table.refuse_lost_owner(ask)?;
        let closed = table.closed;
        let gate = match table.gates.entry(ask.key.clone()) {
            MapEntry::Occupied(gate) => gate.into_mut(),
            MapEntry::Vacant(_) if closed => return Err(Error::closed(Some(&ask.key))),
            MapEntry::Vacant(entry) => entry.insert(Gate::default()),
        };
        if let Some(again) = gate.reenter(engine, ask) {
            return again.map(Entry::Hold);
        }
        if let Some(stale) = gate.held.iter().find(|tenancy| tenancy.lease.ended_by(now).is_some())
        {
            return Ok(Entry::Stale(stale.lease.clone()));
        }
        if closed {
            return Err(Error::closed(Some(&ask.key)));
        }
        gate.admit(engine, ask, patience, self.next_serial(), now)
    }

    /// Puts a granted lease into the gate and makes the leading task its holder.
    fn settle(
        &self,
        lead: &Lead,
        ask: &Arc<Request>,
        lease: Arc<Lease>,
        fence: Fence,
        now: Time,
    ) -> Result<Hold, Error> {
        let serial = self.next_serial();
        let engine = &lead.engine;
        let mut table = self.table(&ask.key);
        if table.closed {
            return Err(Error::closed(Some(&ask.key)));
        }
        let Some(gate) = table.gates.get_mut(&ask.key) else {
            return Err(Error::closed(Some(&ask.key)));
        };
        let tenancy = Tenancy::new(ask, lease, serial, fence, now);
        let hold = tenancy.hold(engine, 1);
        gate.held.push(tenancy);
        gate.heard = true;
        let unused = gate.end_lead(lead);
        engine.observe.holding(ask);
        let mut wakeups = Wakeups::default();
        gate.admit_same_owner(engine, &mut wakeups);
        gate.join_queued(engine, &mut wakeups);
        gate.answer_tries(&mut wakeups);
        if !gate.queue.is_empty() {
            gate.watch_contention(engine);
        }
        gate.ask_next(engine, &ask.key, &mut wakeups);
        drop(table);
        wakeups.send();
        drop(unused);
        Ok(hold)
    }

    /// Ends one hold. The caller handles the result outside the mutex.
    pub(crate) fn release_local(&self, hold: &Hold) -> LocalRelease {
        let mut wakeups = Wakeups::default();
        let released = self.release_into(hold, &mut wakeups);
        wakeups.send();
        released
    }

    fn release_into(&self, hold: &Hold, wakeups: &mut Wakeups) -> LocalRelease {
        let (lease, engine) = (&hold.lease, &hold.engine);
        let mut table = self.table(lease.claim().key());
        table.clear_lost(hold);
        let Some(gate) = table.gates.get_mut(lease.claim().key()) else {
            return LocalRelease::lost(lease);
        };
        let Some(at) = gate.held.iter().position(|tenancy| tenancy.is_under(hold)) else {
            return LocalRelease::lost(lease);
        };
        let tenancy = &mut gate.held[at];
        let left = tenancy.leave(engine, hold);
        let now = engine.clock.now();
        if let Some(Ended::Lost(loss)) = lease.ended_by(now) {
            return LocalRelease::Lost(lease.clone(), loss);
        }
        if left > 0 {
            return LocalRelease::StillHeld(left);
        }
        match &hold.member {
            Some(member) => engine.observe.held(&member.ask, now.since(member.since)),
            None => engine.observe.held(&tenancy.ask, now.since(tenancy.since)),
        }
        if tenancy.depth > 0 {
            return LocalRelease::OthersRead;
        }
        if tenancy.then(now) == AfterRelease::Free && gate.hand_over(at, engine, self, now, wakeups)
        {
            return LocalRelease::HandedOver;
        }
        LocalRelease::Depart(gate.depart(at, engine, now))
    }

    /// Removes a lost lease, so that the next local waiter can ask for a new one.
    pub(crate) fn evict(&self, engine: &Arc<Engine>, lease: &Arc<Lease>, loss: &Loss) {
        let key = lease.claim().key();
        let mut table = self.table(key);
        let Table { gates, lost_detached, lost, .. } = &mut *table;
        let Some(gate) = gates.get_mut(key) else { return };
        let Some((tenancy, lead)) = gate.evict(engine, lease) else { return };
        for (ask, since) in tenancy.asks() {
            engine.observe.held(ask, engine.clock.now().since(since));
            engine.observe.freed(ask);
            engine.observe.count_loss(ask, loss);
        }
        if tenancy.detached > 0 {
            lost_detached.insert(key.clone(), loss.clone());
        }
        let mut left = tenancy.lost_tenancies(loss).peekable();
        if left.peek().is_some() {
            lost.entry(key.clone()).or_default().extend(left);
        }
        // An expired lease may mean that the server does not answer.
        gate.heard = *loss != Loss::Expired;
        drop(table);
        drop(lead);
    }

    /// Checks that the detached hold is the only one of its lease, so that another process can adopt the
    /// lease.
    pub(crate) fn may_export(&self, hold: &Hold) -> Result<(), Error> {
        self.table(hold.lease.claim().key()).tenancy_to_export(hold).map(drop)
    }

    /// Removes the lease from the gate without ending it at the server.
    pub(crate) fn export(&self, hold: &Hold) -> Result<Lead, Error> {
        let mut table = self.table(hold.lease.claim().key());
        let gate = table.tenancy_to_export(hold)?;
        // If the lease has already been lost, the code that handles the loss releases it.
        hold.lease.finish(Ended::Released);
        if hold.lease.ended() != Some(Ended::Released) {
            return Err(hold.lost_error());
        }
        let (tenancy, lead) =
            gate.evict(&hold.engine, &hold.lease).ok_or_else(|| hold.lost_error())?;
        hold.engine.observe.freed(&tenancy.ask);
        Ok(lead)
    }

    /// Asks the backend to notify us when another process waits for the key of `hold`.
    pub(crate) fn watch_contention(&self, hold: &Hold) {
        let key = hold.lease.claim().key();
        if let Some(gate) = self.table(key).gates.get_mut(key) {
            gate.watch_contention(&hold.engine);
        }
    }

    /// Detaches a hold: it will be released by key.
    pub(crate) fn detach(&self, hold: &Hold) {
        let key = hold.lease.claim().key();
        let mut table = self.table(key);
        table.lost_detached.remove(key);
        if let Some(tenancy) = table.gates.get_mut(key).and_then(|gate| gate.tenancy(hold)) {
            tenancy.detached += 1;
            return;
        }
        table.clear_lost(hold);
        table.lost_detached.insert(key.clone(), hold.loss());
    }

    /// Returns a detached hold, to release it by key.
    pub(crate) fn attach(&self, engine: &Arc<Engine>, key: &Key) -> Result<Hold, Error> {
        let mut table = self.table(key);
        if let Some(loss) = table.lost_detached.remove(key) {
            return Err(Error::lost(key, loss));
        }
        let held = table.gates.get_mut(key).into_iter().flat_map(|gate| &mut gate.held);
        let detached = held.into_iter().find(|tenancy| tenancy.detached > 0);
        let tenancy = detached.ok_or_else(|| Error::not_held(key))?;
        tenancy.detached -= 1;
        Ok(tenancy.hold(engine, tenancy.depth))
    }

    /// How many guards of the key there are whose lease is valid.
    pub(crate) fn hold_count(&self, key: &Key) -> u32 {
        let table = self.table(key);
        let held = table.gates.get(key).into_iter().flat_map(|gate| &gate.held);
        held.filter(|tenancy| tenancy.lease.is_valid()).map(|tenancy| tenancy.depth).sum()
    }

    /// The leases of the key.
    pub(crate) fn leases_of(&self, key: &Key) -> Vec<Arc<Lease>> {
        let table = self.table(key);
        let held = table.gates.get(key).into_iter().flat_map(|gate| &gate.held);
        held.map(|tenancy| tenancy.lease.clone()).collect()
    }

    /// Whether `owner` holds the key, and its lease is valid.
    pub(crate) fn is_held_by(&self, key: &Key, owner: &Owner) -> bool {
        let table = self.table(key);
        let mut held = table.gates.get(key).into_iter().flat_map(|gate| &gate.held);
        held.any(|tenancy| tenancy.depth_of(owner) > 0 && tenancy.lease.is_valid())
    }

    /// Whether the requesting task acquired the lock itself, without an owner.
    pub(crate) fn is_own(&self, ask: &Request) -> bool {
        self.table(&ask.key).gates.get(&ask.key).is_some_and(|gate| gate.is_own(ask))
    }

    /// A key that the asker of `ask` holds, for which `which` is true.
    pub(crate) fn held_by_asker(&self, ask: &Request, which: impl Fn(&Key) -> bool) -> Option<Key> {
        self.tables().find_map(|table| {
            let held = table.gates.iter().filter(|(_, gate)| gate.is_held_by_asker(ask));
            held.map(|(key, _)| key).find(|key| which(key)).cloned()
        })
    }

    /// The claim with this token, if this process holds the lock or asks for it with that claim.
    pub(crate) fn claim(&self, key: &Key, token: Token) -> Option<Arc<Claim>> {
        let table = self.table(key);
        table.gates.get(key)?.claims().find(|claim| claim.token() == token).cloned()
    }

    /// What this process knows about the lock, for the error of a wait that ends.
    pub(crate) fn wait_status(&self, key: &Key) -> WaitStatus {
        self.table(key).gates.get(key).map(Gate::wait_status).unwrap_or_default()
    }

    /// Since when the server has not answered the task of this process that asks for the key, and why. `None` if it
    /// answers, or if no task asks.
    pub(crate) fn silence(&self, key: &Key) -> Option<(Time, Fault)> {
        self.table(key).gates.get(key)?.silence()
    }

    /// The permit that another task of this process has handed to the task that waits with `claim`.
    pub(crate) fn take_handed(&self, claim: &Claim) -> Option<Hold> {
        let mut table = self.table(claim.key());
        let asking = table.gates.get_mut(claim.key())?.asking.as_mut()?;
        let (_, waits) = asking.with.as_ref()?;
        if waits.token() == claim.token() { asking.handed.take() } else { None }
    }

    /// Records the claim that a lead asks with. From now on the claim is notified when the gates are closed.
    fn set_asking(&self, lead: &Lead, ask: &Arc<Request>, claim: &Arc<Claim>) -> Result<(), Error> {
        let mut table = self.table(&lead.key);
        if table.closed {
            return Err(Error::closed(Some(&lead.key)));
        }
        let mut wakeups = Wakeups::default();
        let gate = table.gates.get_mut(&lead.key);
        if let Some(gate) = gate {
            if lead.side {
                gate.tried.push(claim.clone());
                return Ok(());
            }
            let asking = gate.asking.get_or_insert_with(Asking::default);
            asking.with = Some((ask.clone(), claim.clone()));
            asking.since.get_or_insert_with(|| lead.engine.clock.now());
            gate.answer_tries(&mut wakeups);
        }
        drop(table);
        wakeups.send();
        Ok(())
    }

    /// Acts on the wait status that the claim of this gate reported: answers the tries, and refuses waiters
    /// that will not wait any longer for an unavailable server. Returns the fault if `leader`, which asks
    /// with the claim, is one of them.
    pub(crate) fn on_wait_report(&self, engine: &Engine, leader: &Request) -> Option<Fault> {
        let mut wakeups = Wakeups::default();
        let fault = self.table(&leader.key).gates.get_mut(&leader.key).and_then(|gate| {
            gate.answer_tries(&mut wakeups);
            gate.give_up(engine, leader, &mut wakeups)
        });
        wakeups.send();
        fault
    }

    /// Admits no new request, and refuses all waiters.
    pub(crate) fn close(&self) {
        let (mut waiters, mut asking) = (Vec::<Waiter>::new(), Vec::<Arc<Claim>>::new());
        for mut table in self.tables() {
            table.closed = true;
            for gate in table.gates.values_mut() {
                waiters.extend(gate.queue.drain(..).chain(gate.tries.drain(..)));
                asking.extend(gate.claim_asked_with().cloned());
            }
        }
        asking.iter().for_each(|claim| claim.close());
        for waiter in waiters {
            let error = Error::closed(Some(&waiter.ask.key));
            let _ = waiter.turn.send(Turn::Refused(error));
        }
    }

    /// Waits until every gate is removed. Call [`close`](Self::close) first.
    pub(crate) async fn emptied(&self) {
        loop {
            let removed = self.removed.notified();
            if self.tables().all(|table| table.gates.is_empty()) {
                return;
            }
            removed.await;
        }
    }

    /// Every held lease, and the state of its lock after a release `now`.
    pub(crate) fn leases(&self, now: Time) -> Vec<(Arc<Lease>, AfterRelease)> {
        self.tables().flat_map(|table| table.leases(now)).collect()
    }

    /// Hands the lead to the next waiter, with the claim if it is compatible. Without a waiter, the gate is
    /// removed. Returns the claim if it is not needed any more; the caller abandons it.
    fn hand_to_next(&self, lead: &Lead, mut claim: Option<Arc<Claim>>) -> Option<Arc<Claim>> {
        let mut table = self.table(&lead.key);
        let closed = table.closed;
        let MapEntry::Occupied(mut entry) = table.gates.entry(lead.key.clone()) else {
            return claim;
        };
        let gate = entry.get_mut();
        gate.heard |= lead.heard || claim.as_ref().is_some_and(|claim| claim.sees_a_holder());
        let silence = if lead.heard { None } else { gate.silence() };
        let unused = gate.end_lead(lead);
        let mut next = None;
        if !lead.side && !gate.is_exclusive() {
            let queued = gate.queue.pop_front().map(|waiter| (waiter, true));
            next = queued.or_else(|| gate.tries.pop_front().map(|waiter| (waiter, false)));
        }
        let Some((Waiter { ask, turn, .. }, waits)) = next else {
            if gate.is_idle() {
                entry.remove();
                if closed {
                    self.removed.notify_waiters();
                }
            }
            drop(table);
            drop(unused);
            return claim;
        };
        let mut next = gate.lead(&lead.engine, &lead.key, silence.map(|(since, _)| since));
        let mut wakeups = Wakeups::default();
        gate.answer_tries(&mut wakeups);
        drop(table);
        wakeups.send();
        drop(unused);
        // A try must not take over a claim that may be in the server's queue.
        let misfit = claim.take_if(|claim| !waits || !claim.is_compatible(&ask.claim_options()));
        (next.claim, next.not_before) = (claim, lead.not_before);
        // If the waiter has left meanwhile, its turn is dropped here and goes to the next waiter.
        drop(turn.send(Turn::Lead(next)));
        misfit
    }

    /// Fails the tries, and the queued waiters selected by `also`, with the same error.
    fn fail(&self, key: &Key, error: &Error, also: impl Fn(&Request) -> bool) {
        let mut wakeups = Wakeups::default();
        if let Some(gate) = self.table(key).gates.get_mut(key) {
            for waiter in std::mem::take(&mut gate.tries) {
                wakeups.add(waiter.turn, Turn::Refused(error.clone()));
            }
            gate.refuse(error, also, &mut wakeups);
        }
        wakeups.send();
    }

    fn leave(&self, key: &Key, number: u64) {
        let mut table = self.table(key);
        let Some(gate) = table.gates.get_mut(key) else { return };
        for line in [&mut gate.queue, &mut gate.tries] {
            // Numbers ascend from front to back.
            if let Ok(at) = line.binary_search_by_key(&number, |waiter| waiter.number) {
                line.remove(at);
            }
        }
    }
}

impl Part {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn leases(&self, now: Time) -> Vec<(Arc<Lease>, AfterRelease)> {
        let held = self.gates.values().flat_map(|gate| &gate.held);
        held.map(|tenancy| (tenancy.lease.clone(), tenancy.then(now))).collect()
    }

    /// Returns the gate, if this detached hold is the only one of its lease.
    fn tenancy_to_export(&mut self, hold: &Hold) -> Result<&mut Gate, Error> {
        let key = hold.lease.claim().key();
        let gate = self.gates.get_mut(key).filter(|_| hold.is_valid());
        let gate = gate.ok_or_else(|| hold.lost_error())?;
        match gate.tenancy(hold) {
            Some(Tenancy { depth: 1, detached: 1, .. }) => Ok(gate),
            Some(Tenancy { depth: depth @ 2.., .. }) => {
                let others = *depth - 1;
                Err(Error::invalid(format!(
                    "lock `{key}` cannot be exported: this process holds it {others} more times"
                )))
            }
            _ => Err(hold.lost_error()),
        }
    }

    /// Refuses an owner that lost the lock and still has a guard of it.
    fn refuse_lost_owner(&self, ask: &Request) -> Result<(), Error> {
        let lost = self.lost.get(&ask.key).into_iter().flatten();
        let own =
            lost.into_iter().find(|lost_tenancy| Some(&lost_tenancy.owner) == ask.owner.as_ref());
        own.map_or(Ok(()), |lost_tenancy| Err(Error::lost(&ask.key, lost_tenancy.loss.clone())))
    }

    /// Counts down when a guard of a lost lease is dropped.
    fn clear_lost(&mut self, hold: &Hold) {
        let key = hold.lease.claim().key();
        let Some(lost) = self.lost.get_mut(key) else { return };
        let owner = hold.member.as_ref().and_then(|member| member.ask.owner.as_ref());
        let ours = |lost: &&mut LostTenancy| {
            lost.serial == hold.serial && (hold.member.is_none() || Some(&lost.owner) == owner)
        };
        lost.iter_mut().filter(ours).for_each(|lost| lost.guards -= 1);
        lost.retain(|lost_tenancy| lost_tenancy.guards > 0);
        if lost.is_empty() {
            self.lost.remove(key);
        }
    }
}

impl LocalRelease {
    /// The hold is no longer in the gate: it was lost, or revoked by a shutdown.
    fn lost(lease: &Arc<Lease>) -> Self {
        match lease.ended() {
            Some(Ended::Lost(loss)) => LocalRelease::Lost(lease.clone(), loss),
            _ => LocalRelease::Lost(lease.clone(), Loss::Gone),
        }
    }
}

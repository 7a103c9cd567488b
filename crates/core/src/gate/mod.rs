//! The gate: the tasks of one process before one key.
//!
//! In: an [`Ask`]. Out: the right to hold ([`Hold`]), the duty to ask the server ([`Lead`]), or a
//! place in the local queue ([`Ticket`]).
//!
//! A process has at most one claim per key at the server. It belongs to the gate, not to a task:
//! the task that leads asks for it; if that task is dropped, the next in the queue goes on with the
//! same claim, and only the last one abandons it. On release, a lease goes to the next local
//! waiter without a word to the server, within the bounds of [`Tenancy::may_hand_over`].
//!
//! Every right is a value whose drop passes it on, so no way out of a future can leak one. All
//! state of a key is behind one short mutex that is never held across an `.await`, nor while such a
//! value is dropped: what must be dropped is carried out of the critical section first.
//!
//! In reading order: this file (all gates, and the ways in and out), `one.rs` (one gate), `tenancy.rs`
//! (who has the lease, and when it may go on), `rights.rs`, `post.rs` (turns on their way).
//!
//! Absent on purpose: no server is asked here.

mod one;
mod tenancy;
mod rights;
mod post;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::backend::{Loss, Then};
use crate::claim::{Claim, Holder, Sight};
use crate::engine::Engine;
use crate::error::Error;
use crate::fence::Fence;
use crate::key::{Key, Known};
use crate::lease::{Ended, Lease};
use crate::request::Ask;
use crate::time::Time;

use one::{Gate, Phase, Waiter};
use post::Post;
pub(crate) use rights::{Departure, Hold, Lead, Ticket};
use tenancy::{Tenancy, Wreck};

/// In how many parts the gates are kept, by their keys: those who come at the same time seldom meet.
const PARTS: usize = 8;

/// All gates of a `Locker`.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    parts: [Part; PARTS],
    serial: AtomicU64,
    /// Told when a gate is removed, once they are closed.
    removed: Notify,
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(Mutex<Table>);

type ByKey<T> = HashMap<Key, T, BuildHasherDefault<Known>>;

#[derive(Debug, Default)]
struct Table {
    gates: ByKey<Gate>,
    /// Detached leases that were lost, for the `release` by key that will ask for them.
    lost_detached: ByKey<Loss>,
    /// Lost leases whose owner still has guards of them: it must not re-enter as if nothing was.
    wrecks: ByKey<Vec<Wreck>>,
    closed: bool,
}

/// What a waiter is given.
#[derive(Debug)]
pub(crate) enum Turn {
    Hold(Hold),
    Lead(Lead),
    Refused(Error),
}

/// How an ask is met at the gate.
pub(crate) enum Entry<'a> {
    Hold(Hold),
    Lead(Lead),
    Wait(Ticket<'a>),
    Busy(Option<Holder>),
    /// A lease that had ended by the clock was in the way; it is gone now, ask again.
    Stale(Arc<Lease>),
}

/// Whether to stand in the local queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Queue,
    Try,
}

/// What a holder's release comes to.
pub(crate) enum Parting {
    StillHeld(u32),
    HandedOver,
    /// The server must be told.
    Depart(Departure),
    /// It was not the holder's any more.
    Lost(Arc<Lease>, Loss),
}

impl Gates {
    /// The part that `key` belongs to.
    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        self.parts[key.part_of(PARTS)].table()
    }

    /// One part after the other.
    fn tables(&self) -> impl Iterator<Item = MutexGuard<'_, Table>> {
        self.parts.iter().map(Part::table)
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Lets an ask in, or says why not.
    pub(crate) fn enter<'a>(
        &self,
        engine: &'a Arc<Engine>,
        ask: &'a Arc<Ask>,
        patience: Patience,
    ) -> Result<Entry<'a>, Error> {
        let mut table = self.table(&ask.key);
        table.refuse_wrecked(ask)?;
        let closed = table.closed;
        let gate = match table.gates.entry(ask.key.clone()) {
            Place::Occupied(gate) => gate.into_mut(),
            Place::Vacant(_) if closed => return Err(Error::closed(Some(&ask.key))),
            Place::Vacant(place) => {
                place.insert(Gate::asking());
                return Ok(Entry::Lead(Lead::new(engine, &ask.key)));
            }
        };
        if let Phase::Held(tenancy) = &mut gate.phase {
            if tenancy.is_of(ask) && tenancy.depth > 0 {
                if engine.is_forked() {
                    return Err(Error::forked(&ask.key));
                }
                return tenancy.reenter(engine, ask).map(Entry::Hold);
            }
            if !tenancy.lease.is_valid() {
                return Ok(Entry::Stale(tenancy.lease.clone()));
            }
        }
        if closed {
            return Err(Error::closed(Some(&ask.key)));
        }
        gate.admit(engine, ask, patience, self.next_serial())
    }

    /// Puts a granted lease in the gate and makes the leading task its holder.
    fn settle(
        &self,
        lead: &Lead,
        ask: &Arc<Ask>,
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
        (gate.phase, gate.heard) = (Phase::Held(tenancy), true);
        engine.observe.holding();
        let mut post = Post::default();
        gate.admit_mates(engine, &mut post);
        gate.answer_tries(&mut post);
        if !gate.queue.is_empty() {
            gate.heed(engine);
        }
        drop(table);
        post.send();
        Ok(hold)
    }

    /// Ends one hold. What follows is up to the caller, outside the mutex.
    pub(crate) fn part(&self, hold: &Hold) -> Parting {
        let mut post = Post::default();
        let parting = self.part_into(hold, &mut post);
        post.send();
        parting
    }

    fn part_into(&self, hold: &Hold, post: &mut Post) -> Parting {
        let (lease, engine) = (&hold.lease, &hold.engine);
        let mut table = self.table(lease.claim().key());
        table.clear_wreck(hold);
        let Some(gate) = table.gates.get_mut(lease.claim().key()) else {
            return Parting::lost(lease);
        };
        let Phase::Held(tenancy) = &mut gate.phase else { return Parting::lost(lease) };
        if tenancy.serial != hold.serial {
            return Parting::lost(lease);
        }
        tenancy.depth -= 1;
        let now = engine.clock.now();
        if let Some(Ended::Lost(loss)) = lease.ended_by(now) {
            return Parting::Lost(lease.clone(), loss);
        }
        if tenancy.depth > 0 {
            return Parting::StillHeld(tenancy.depth);
        }
        let held = now.since(tenancy.since);
        engine.observe.held(&tenancy.ask, held);
        if tenancy.then(now) == Then::Free && gate.hand_over(engine, self, now, post) {
            return Parting::HandedOver;
        }
        let departure = gate.depart(engine, now);
        departure.map_or_else(|| Parting::lost(lease), Parting::Depart)
    }

    /// Takes a lost lease out, so that the next local waiter can ask for a new one.
    pub(crate) fn evict(&self, engine: &Arc<Engine>, lease: &Arc<Lease>, loss: &Loss) {
        let key = lease.claim().key();
        let mut table = self.table(key);
        let Table { gates, lost_detached, wrecks, .. } = &mut *table;
        let Some(gate) = gates.get_mut(key) else { return };
        match &gate.phase {
            Phase::Held(tenancy) if Arc::ptr_eq(&tenancy.lease, lease) => {
                engine.observe.held(&tenancy.ask, engine.clock.now().since(tenancy.since));
                if tenancy.detached > 0 {
                    lost_detached.insert(key.clone(), loss.clone());
                }
                if let Some(wreck) = tenancy.wreck(loss) {
                    wrecks.entry(key.clone()).or_default().push(wreck);
                }
            }
            _ => return,
        }
        // A lease that ran out may have done so because the server is silent.
        (gate.phase, gate.heard) = (Phase::Asking(None), *loss != Loss::Expired);
        engine.observe.freed();
        let lead = Lead::new(engine, key);
        drop(table);
        drop(lead);
    }

    /// Whether a detached lease is its owner's only one, and can be carried away by another process.
    pub(crate) fn may_carry_away(&self, hold: &Hold) -> Result<(), Error> {
        self.table(hold.lease.claim().key()).tenancy_to_carry(hold).map(drop)
    }

    /// Takes it out, without ending it at the server.
    pub(crate) fn carry_away(&self, hold: &Hold) -> Result<Lead, Error> {
        let mut table = self.table(hold.lease.claim().key());
        let phase = table.tenancy_to_carry(hold)?;
        // Whoever has seen it end already will release it.
        hold.lease.finish(Ended::Released);
        if hold.lease.ended() != Some(Ended::Released) {
            return Err(hold.lost_error());
        }
        *phase = Phase::Asking(None);
        hold.engine.observe.freed();
        Ok(Lead::new(&hold.engine, hold.lease.claim().key()))
    }

    /// Leaves a hold to be ended by key.
    pub(crate) fn detach(&self, hold: &Hold) {
        let key = hold.lease.claim().key();
        let mut table = self.table(key);
        table.lost_detached.remove(key);
        if let Some(Gate { phase: Phase::Held(tenancy), .. }) = table.gates.get_mut(key)
            && tenancy.serial == hold.serial
        {
            tenancy.detached += 1;
            return;
        }
        table.clear_wreck(hold);
        table.lost_detached.insert(key.clone(), hold.loss());
    }

    /// A hold that was left to be ended by key.
    pub(crate) fn attach(&self, engine: &Arc<Engine>, key: &Key) -> Result<Hold, Error> {
        let mut table = self.table(key);
        if let Some(loss) = table.lost_detached.remove(key) {
            return Err(Error::lost(key, loss));
        }
        let not_held = || Error::not_held(key);
        let gate = table.gates.get_mut(key).ok_or_else(not_held)?;
        let Phase::Held(tenancy) = &mut gate.phase else { return Err(not_held()) };
        tenancy.detached = tenancy.detached.checked_sub(1).ok_or_else(not_held)?;
        Ok(tenancy.hold(engine, tenancy.depth))
    }

    /// How deep the key is held, and by which lease.
    pub(crate) fn held(&self, key: &Key) -> Option<(u32, Arc<Lease>)> {
        match self.table(key).gates.get(key).map(|gate| &gate.phase) {
            Some(Phase::Held(tenancy)) => Some((tenancy.depth, tenancy.lease.clone())),
            _ => None,
        }
    }

    /// The claim that this process has or waits with.
    pub(crate) fn claim(&self, key: &Key) -> Option<Arc<Claim>> {
        match &self.table(key).gates.get(key)?.phase {
            Phase::Held(tenancy) => Some(tenancy.lease.claim().clone()),
            Phase::Asking(claim) => claim.clone(),
        }
    }

    /// What this process knows of the lock, for one whose wait ends.
    pub(crate) fn sight(&self, key: &Key) -> Sight {
        self.table(key).gates.get(key).map(Gate::sight).unwrap_or_default()
    }

    /// Makes it known with which claim a lead asks: it is told from now on when the gates are closed.
    fn note_claim(&self, key: &Key, claim: &Arc<Claim>) -> Result<(), Error> {
        let mut table = self.table(key);
        if table.closed {
            return Err(Error::closed(Some(key)));
        }
        let mut post = Post::default();
        if let Some(gate) = table.gates.get_mut(key) {
            gate.phase = Phase::Asking(Some(claim.clone()));
            gate.answer_tries(&mut post);
        }
        drop(table);
        post.send();
        Ok(())
    }

    /// Answers those who only try, if something is known by now.
    pub(crate) fn answer_tries(&self, key: &Key) {
        let mut post = Post::default();
        if let Some(gate) = self.table(key).gates.get_mut(key) {
            gate.answer_tries(&mut post);
        }
        post.send();
    }

    /// Lets nobody in any more; those who wait are told.
    pub(crate) fn close(&self) {
        let (mut waiters, mut asking) = (Vec::<Waiter>::new(), Vec::<Arc<Claim>>::new());
        for mut table in self.tables() {
            table.closed = true;
            for gate in table.gates.values_mut() {
                waiters.extend(gate.queue.drain(..).chain(gate.tries.drain(..)));
                asking.extend(gate.claim_asked_with());
            }
        }
        asking.iter().for_each(|claim| claim.close());
        for waiter in waiters {
            let error = Error::closed(Some(&waiter.ask.key));
            let _ = waiter.turn.send(Turn::Refused(error));
        }
    }

    /// Waits until every gate is gone. They have been closed before.
    pub(crate) async fn emptied(&self) {
        loop {
            let removed = self.removed.notified();
            if self.tables().all(|table| table.gates.is_empty()) {
                return;
            }
            removed.await;
        }
    }

    /// Every lease that is held, and what becomes of its lock if it ends `now`.
    pub(crate) fn leases(&self, now: Time) -> Vec<(Arc<Lease>, Then)> {
        self.tables().flat_map(|table| table.leases(now)).collect()
    }

    /// Gives the duty to ask to the next in the queue, with the claim if it fits; if nobody is
    /// left, the gate goes. The claim that nobody wants is returned, to be abandoned.
    fn pass_on(&self, lead: &Lead, mut claim: Option<Arc<Claim>>) -> Option<Arc<Claim>> {
        let mut table = self.table(&lead.key);
        let closed = table.closed;
        let Place::Occupied(mut place) = table.gates.entry(lead.key.clone()) else { return claim };
        let gate = place.get_mut();
        gate.heard |= lead.heard || claim.as_ref().is_some_and(|claim| claim.sees_a_holder());
        let (queued, tries) = (gate.queue.pop_front(), &mut gate.tries);
        let waits = queued.is_some();
        let Some(Waiter { ask, turn, .. }) = queued.or_else(|| tries.pop_front()) else {
            place.remove();
            if closed {
                self.removed.notify_waiters();
            }
            return claim;
        };
        gate.phase = Phase::Asking(None);
        let mut post = Post::default();
        gate.answer_tries(&mut post);
        drop(table);
        post.send();
        // One that only tries must not take over a claim that may stand in the server's queue.
        let misfit = claim.take_if(|claim| !waits || !claim.fits(&ask.terms()));
        let mut next = Lead::new(&lead.engine, &lead.key);
        (next.claim, next.not_before) = (claim, lead.not_before);
        // If the waiter has gone meanwhile, its turn is dropped here, and goes to the one after it.
        drop(turn.send(Turn::Lead(next)));
        misfit
    }

    /// Fails everyone who waits behind a lead with the same error; or those only who try.
    fn fail(&self, key: &Key, error: &Error, whom: Patience) {
        let mut table = self.table(key);
        let Some(gate) = table.gates.get_mut(key) else { return };
        let mut waiters = std::mem::take(&mut gate.tries);
        if whom == Patience::Queue {
            waiters.extend(gate.queue.drain(..));
        }
        drop(table);
        for waiter in waiters {
            let _ = waiter.turn.send(Turn::Refused(error.clone()));
        }
    }

    fn leave(&self, key: &Key, number: u64) {
        let mut table = self.table(key);
        let Some(gate) = table.gates.get_mut(key) else { return };
        for line in [&mut gate.queue, &mut gate.tries] {
            // Numbers rise from front to back.
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
    fn leases(&self, now: Time) -> Vec<(Arc<Lease>, Then)> {
        let lease = |gate: &Gate| match &gate.phase {
            Phase::Held(tenancy) => Some((tenancy.lease.clone(), tenancy.then(now))),
            Phase::Asking(_) => None,
        };
        self.gates.values().filter_map(lease).collect()
    }

    /// The phase of the gate, if the hold is the only one there and was left to be ended by key.
    fn tenancy_to_carry(&mut self, hold: &Hold) -> Result<&mut Phase, Error> {
        let key = hold.lease.claim().key();
        let phase = self.gates.get_mut(key).map(|gate| &mut gate.phase);
        let phase = phase.filter(|_| hold.is_valid()).ok_or_else(|| hold.lost_error())?;
        match phase {
            Phase::Held(Tenancy { serial, depth: 1, detached: 1, .. })
                if *serial == hold.serial =>
            {
                Ok(phase)
            }
            Phase::Held(Tenancy { serial, depth, .. }) if *serial == hold.serial && *depth > 1 => {
                let others = *depth - 1;
                Err(Error::invalid(format!(
                    "lock `{key}` cannot be written down: held {others} times more in this process"
                )))
            }
            _ => Err(hold.lost_error()),
        }
    }

    /// An owner that has lost the lock, and still has a guard of it, is told so.
    fn refuse_wrecked(&self, ask: &Ask) -> Result<(), Error> {
        let wrecks = self.wrecks.get(&ask.key).into_iter().flatten();
        let own = wrecks.into_iter().find(|wreck| Some(&wreck.owner) == ask.owner.as_ref());
        own.map_or(Ok(()), |wreck| Err(Error::lost(&ask.key, wreck.loss.clone())))
    }

    /// A guard of a lost lease is gone.
    fn clear_wreck(&mut self, hold: &Hold) {
        let key = hold.lease.claim().key();
        let Some(wrecks) = self.wrecks.get_mut(key) else { return };
        for wreck in wrecks.iter_mut().filter(|wreck| wreck.serial == hold.serial) {
            wreck.guards -= 1;
        }
        wrecks.retain(|wreck| wreck.guards > 0);
        if wrecks.is_empty() {
            self.wrecks.remove(key);
        }
    }
}

impl Parting {
    /// The hold is not the gate's any more: lost, or taken away by a shutdown.
    fn lost(lease: &Arc<Lease>) -> Self {
        match lease.ended() {
            Some(Ended::Lost(loss)) => Parting::Lost(lease.clone(), loss),
            _ => Parting::Lost(lease.clone(), Loss::Gone),
        }
    }
}

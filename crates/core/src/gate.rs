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
//! state is behind one short mutex that is never held across an `.await`, nor while such a value
//! is dropped: what must be dropped is carried out of the critical section first.
//!
//! Absent on purpose: no server is asked here.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::backend::{Capabilities, Loss, Then};
use crate::claim::{Claim, Holder};
use crate::engine::Engine;
use crate::error::{Error, HeldBy};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::options::{Reentry, WithinProcess};
use crate::owner::Owner;
use crate::request::Ask;
use crate::time::Time;

/// How many more local hand-offs once another process is known to wait: enough to drain a small
/// local queue, too few to starve a fleet.
const HANDOFFS_CONTENDED: u32 = 16;
/// And for how long.
const HANDOFF_TIME_CONTENDED: Duration = Duration::from_millis(100);

/// All gates of a `Locker`.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    table: Mutex<Table>,
    serial: AtomicU64,
    /// Told when a gate is removed.
    removed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    gates: HashMap<Key, Gate>,
    /// Detached leases that were lost, for the `release` by key that will ask for them.
    lost_detached: HashMap<Key, Loss>,
    /// Lost leases whose owner still has guards of them: it must not re-enter as if nothing was.
    wrecks: HashMap<Key, Vec<Wreck>>,
    closed: bool,
}

/// What is left of a lost lease.
#[derive(Debug)]
struct Wreck {
    serial: u64,
    owner: Owner,
    loss: Loss,
    guards: u32,
}

#[derive(Debug)]
struct Gate {
    phase: Phase,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
enum Phase {
    /// A [`Lead`] or [`Departure`] exists: one task is talking to the server, with this claim if it waits.
    Asking(Option<Arc<Claim>>),
    Held(Tenancy),
}

/// A lease and the local owner that has it now.
#[derive(Debug)]
struct Tenancy {
    lease: Arc<Lease>,
    serial: u64,
    ask: Arc<Ask>,
    depth: u32,
    detached: u32,
    fence: Fence,
    since: Time,
    at_least: Duration,
    granted_at: Time,
    contended: Option<Contended>,
    heeded: bool,
}

/// What has been handed over since another process was known to wait.
#[derive(Clone, Copy, Debug)]
struct Contended {
    since: Time,
    handoffs: u32,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    ask: Arc<Ask>,
    turn: oneshot::Sender<Turn>,
}

/// What a waiter is given.
#[derive(Debug)]
pub(crate) enum Turn {
    Hold(Hold),
    Lead(Lead),
    Refused(Error),
}

/// How an ask is met at the gate.
pub(crate) enum Entry {
    Hold(Hold),
    Lead(Lead),
    Wait(Ticket),
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
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Lets an ask in, or says why not.
    pub(crate) fn enter(
        &self,
        engine: &Arc<Engine>,
        ask: &Arc<Ask>,
        patience: Patience,
    ) -> Result<Entry, Error> {
        let mut table = self.table();
        table.refuse_wrecked(ask)?;
        let closed = table.closed;
        let gate = match table.gates.get_mut(&ask.key) {
            Some(gate) => gate,
            None if closed => return Err(Error::closed(Some(&ask.key))),
            None => {
                table.gates.insert(ask.key.clone(), Gate::asking());
                return Ok(Entry::Lead(Lead::new(engine, &ask.key)));
            }
        };
        if let Phase::Held(tenancy) = &mut gate.phase {
            if tenancy.is_of(ask) && tenancy.depth > 0 {
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
    ) -> Result<Hold, Error> {
        let serial = self.next_serial();
        let engine = &lead.engine;
        let mut table = self.table();
        if table.closed {
            return Err(Error::closed(Some(&ask.key)));
        }
        let Some(gate) = table.gates.get_mut(&ask.key) else {
            return Err(Error::closed(Some(&ask.key)));
        };
        let tenancy = Tenancy::new(engine, ask, lease, serial, fence);
        let hold = tenancy.hold(engine, 1);
        gate.phase = Phase::Held(tenancy);
        engine.observe.holding();
        let unheard = gate.admit_mates(engine);
        drop(table);
        drop(unheard);
        Ok(hold)
    }

    /// Ends one hold. What follows is up to the caller, outside the mutex.
    pub(crate) fn part(&self, hold: &Hold) -> Parting {
        let (lease, engine) = (&hold.lease, &hold.engine);
        let mut unheard = Vec::new();
        let mut table = self.table();
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
        engine.observe.held(&tenancy.ask, now.since(tenancy.since));
        let rest = tenancy.at_least.saturating_sub(now.since(tenancy.since));
        if rest.is_zero() && gate.hand_over(engine, self, now, &mut unheard) {
            drop(table);
            drop(unheard);
            return Parting::HandedOver;
        }
        let departure = gate.depart(engine, now, rest);
        drop(table);
        drop(unheard);
        departure.map_or_else(|| Parting::lost(lease), Parting::Depart)
    }

    /// Takes a lost lease out, so that the next local waiter can ask for a new one.
    pub(crate) fn evict(&self, engine: &Arc<Engine>, lease: &Arc<Lease>, loss: &Loss) {
        let key = lease.claim().key();
        let mut table = self.table();
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
        gate.phase = Phase::Asking(None);
        engine.observe.freed();
        let lead = Lead::new(engine, key);
        drop(table);
        drop(lead);
    }

    /// Takes a lease out that its holder carries away, without ending it at the server.
    pub(crate) fn carry_away(&self, hold: &Hold) -> Result<Lead, Error> {
        let key = hold.lease.claim().key();
        let mut table = self.table();
        let gate = table.gates.get_mut(key).ok_or_else(|| hold.lost_error())?;
        match &gate.phase {
            Phase::Held(tenancy) if tenancy.serial == hold.serial && tenancy.depth == 1 => {}
            Phase::Held(tenancy) if tenancy.serial == hold.serial => {
                let others = tenancy.depth - 1;
                return Err(Error::invalid(format!(
                    "lock `{key}` cannot be written down: held {others} times more in this process"
                )));
            }
            _ => return Err(hold.lost_error()),
        }
        gate.phase = Phase::Asking(None);
        hold.engine.observe.freed();
        Ok(Lead::new(&hold.engine, key))
    }

    /// Leaves a hold to be ended by key.
    pub(crate) fn detach(&self, hold: &Hold) {
        let key = hold.lease.claim().key();
        let mut table = self.table();
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
        let mut table = self.table();
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
        match self.table().gates.get(key).map(|gate| &gate.phase) {
            Some(Phase::Held(tenancy)) => Some((tenancy.depth, tenancy.lease.clone())),
            _ => None,
        }
    }

    /// The claim that this process has or waits with.
    pub(crate) fn claim(&self, key: &Key) -> Option<Arc<Claim>> {
        match &self.table().gates.get(key)?.phase {
            Phase::Held(tenancy) => Some(tenancy.lease.claim().clone()),
            Phase::Asking(claim) => claim.clone(),
        }
    }

    /// Who is in the way, as far as this process knows.
    pub(crate) fn holder(&self, key: &Key) -> Option<Holder> {
        self.table().gates.get(key).and_then(Gate::holder)
    }

    fn note_claim(&self, key: &Key, claim: &Arc<Claim>) {
        if let Some(gate) = self.table().gates.get_mut(key) {
            gate.phase = Phase::Asking(Some(claim.clone()));
        }
    }

    /// Lets nobody in any more; those who wait are told.
    pub(crate) fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        let gates = table.gates.values_mut();
        let waiters: Vec<Waiter> = gates.flat_map(|gate| gate.queue.drain(..)).collect();
        drop(table);
        for waiter in waiters {
            let error = Error::closed(Some(&waiter.ask.key));
            let _ = waiter.turn.send(Turn::Refused(error));
        }
    }

    /// Waits until every gate is gone.
    pub(crate) async fn emptied(&self) {
        loop {
            let removed = self.removed.notified();
            if self.table().gates.is_empty() {
                return;
            }
            removed.await;
        }
    }

    /// Every lease that is held.
    pub(crate) fn leases(&self) -> Vec<Arc<Lease>> {
        let table = self.table();
        let phases = table.gates.values().map(|gate| &gate.phase);
        phases
            .filter_map(|phase| match phase {
                Phase::Held(tenancy) => Some(tenancy.lease.clone()),
                Phase::Asking(_) => None,
            })
            .collect()
    }

    /// Gives the duty to ask to the next in the queue, with the claim if it fits; if nobody is
    /// left, the gate goes. The claim that nobody wants is returned, to be abandoned.
    fn pass_on(&self, lead: &mut Lead) -> Option<Arc<Claim>> {
        let mut claim = lead.claim.take();
        let mut unwanted = None;
        let mut table = self.table();
        let Some(gate) = table.gates.get_mut(&lead.key) else { return claim };
        gate.phase = Phase::Asking(None);
        while let Some(waiter) = gate.queue.pop_front() {
            if let Some(misfit) = claim.take_if(|claim| !claim.fits(&waiter.ask.terms())) {
                unwanted = Some(misfit);
            }
            let mut next = Lead::new(&lead.engine, &lead.key);
            (next.claim, next.not_before) = (claim.take(), lead.not_before);
            match waiter.turn.send(Turn::Lead(next)) {
                Ok(()) => return unwanted,
                // The waiter went away meanwhile. Its turn must not be dropped here, under the mutex.
                Err(Turn::Lead(mut next)) => (claim, next.armed) = (next.claim.take(), false),
                Err(Turn::Hold(_) | Turn::Refused(_)) => {}
            }
        }
        table.gates.remove(&lead.key);
        self.removed.notify_waiters();
        // At most one claim exists: the misfit, or the one that fitted everybody who has left.
        unwanted.or(claim)
    }

    /// Fails everyone who waits behind `lead` with the same error.
    fn fail_all(&self, key: &Key, error: &Error) {
        let mut table = self.table();
        let Some(gate) = table.gates.get_mut(key) else { return };
        let waiters = std::mem::take(&mut gate.queue);
        drop(table);
        for waiter in waiters {
            let _ = waiter.turn.send(Turn::Refused(error.clone()));
        }
    }

    fn leave(&self, key: &Key, number: u64) {
        let mut table = self.table();
        let Some(gate) = table.gates.get_mut(key) else { return };
        // Numbers rise from front to back.
        if let Ok(at) = gate.queue.binary_search_by_key(&number, |waiter| waiter.number) {
            gate.queue.remove(at);
        }
    }
}

impl Table {
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

impl Gate {
    fn asking() -> Self {
        Gate { phase: Phase::Asking(None), queue: VecDeque::new() }
    }

    /// Another owner has the lock or is asking for it.
    fn admit(
        &mut self,
        engine: &Arc<Engine>,
        ask: &Arc<Ask>,
        patience: Patience,
        number: u64,
    ) -> Result<Entry, Error> {
        if ask.options.within_process == WithinProcess::Fail {
            return Err(Error::already_held(&ask.key, HeldBy::ThisProcess));
        }
        if patience == Patience::Try {
            return Ok(Entry::Busy(self.holder()));
        }
        if let Phase::Held(tenancy) = &mut self.phase
            && !std::mem::replace(&mut tenancy.heeded, true)
        {
            engine.backend.heed(&tenancy.lease);
        }
        let (turn, told) = oneshot::channel();
        self.queue.push_back(Waiter { number, ask: ask.clone(), turn });
        Ok(Entry::Wait(Ticket {
            engine: engine.clone(),
            key: ask.key.clone(),
            number,
            queued: true,
            told,
        }))
    }

    fn holder(&self) -> Option<Holder> {
        let tenancy = match &self.phase {
            Phase::Held(tenancy) => tenancy,
            Phase::Asking(claim) => return claim.as_ref().and_then(|claim| claim.sight().holder),
        };
        let mut holder = Holder::of(tenancy.lease.claim(), tenancy.lease.wall_clock(tenancy.since));
        holder.lease_left = (!tenancy.lease.is_endless()).then(|| tenancy.lease.remaining());
        Some(holder)
    }

    /// Lets in those in the queue who share the owner that has just got the lock: it is theirs too.
    /// Turns that nobody takes are returned, to be dropped outside the mutex.
    fn admit_mates(&mut self, engine: &Arc<Engine>) -> Vec<Turn> {
        let Gate { phase: Phase::Held(tenancy), queue } = self else { return Vec::new() };
        if tenancy.ask.owner.is_none() || queue.is_empty() {
            return Vec::new();
        }
        let (mates, others): (Vec<_>, Vec<_>) =
            std::mem::take(queue).into_iter().partition(|waiter| tenancy.is_of(&waiter.ask));
        *queue = VecDeque::from(others);
        let give = |waiter: Waiter| {
            let turn = tenancy.reenter(engine, &waiter.ask).map_or_else(Turn::Refused, Turn::Hold);
            waiter.turn.send(turn).err()
        };
        mates.into_iter().filter_map(give).collect()
    }

    /// Gives the lease to the next local waiter, if the bounds allow and there is one.
    fn hand_over(
        &mut self,
        engine: &Arc<Engine>,
        gates: &Gates,
        now: Time,
        unheard: &mut Vec<Turn>,
    ) -> bool {
        let Phase::Held(tenancy) = &mut self.phase else { return false };
        while let Some(next) = self.queue.front() {
            let Some(fence) = tenancy.may_hand_over(&next.ask, &engine.can, now) else {
                return false;
            };
            let Some(Waiter { ask, turn, .. }) = self.queue.pop_front() else { return false };
            tenancy.pass_to(ask, gates.next_serial(), fence, now);
            match turn.send(Turn::Hold(tenancy.hold(engine, 1))) {
                Ok(()) => {
                    engine.reschedule_if_sooner(&tenancy.lease);
                    unheard.extend(self.admit_mates(engine));
                    return true;
                }
                Err(Turn::Hold(mut hold)) => hold.armed = false,
                Err(Turn::Lead(_) | Turn::Refused(_)) => {}
            }
        }
        false
    }

    /// Starts giving the lease back to the server.
    fn depart(&mut self, engine: &Arc<Engine>, now: Time, rest: Duration) -> Option<Departure> {
        let Phase::Held(tenancy) = std::mem::replace(&mut self.phase, Phase::Asking(None)) else {
            return None;
        };
        let lease = &tenancy.lease;
        lease.finish(Ended::Released);
        engine.observe.freed();
        let mut lead = Lead::new(engine, lease.claim().key());
        if tenancy.owes_a_turn(&engine.can, now) {
            lead.not_before = Some(now.after(tenancy.ask.options.retry_interval));
        }
        let then = if rest.is_zero() { Then::Free } else { Then::Closed(rest) };
        Some(Departure { lead: Some(lead), lease: tenancy.lease, then })
    }
}

impl Tenancy {
    fn new(engine: &Engine, ask: &Arc<Ask>, lease: Arc<Lease>, serial: u64, fence: Fence) -> Self {
        let now = engine.clock.now();
        lease.give_to(serial, &ask.options, now);
        Tenancy {
            lease,
            serial,
            ask: ask.clone(),
            depth: 1,
            detached: 0,
            fence,
            since: now,
            at_least: ask.options.at_least,
            granted_at: now,
            contended: None,
            heeded: false,
        }
    }

    fn is_of(&self, ask: &Ask) -> bool {
        self.ask.owner.is_some() && self.ask.owner == ask.owner
    }

    fn hold(&self, engine: &Arc<Engine>, depth: u32) -> Hold {
        let (engine, lease) = (engine.clone(), self.lease.clone());
        Hold { engine, lease, serial: self.serial, fence: self.fence, depth, armed: true }
    }

    /// What is left when the lease is lost: the guards of an owner that might come again.
    fn wreck(&self, loss: &Loss) -> Option<Wreck> {
        let (serial, owner, loss) = (self.serial, self.ask.owner.clone()?, loss.clone());
        let guards = self.depth.saturating_sub(self.detached);
        (guards > 0).then_some(Wreck { serial, owner, loss, guards })
    }

    /// The owner has it already: once more, unless it does not want that or has lost it.
    fn reenter(&mut self, engine: &Arc<Engine>, ask: &Ask) -> Result<Hold, Error> {
        if let Some(Ended::Lost(loss)) = self.lease.ended() {
            return Err(Error::lost(&ask.key, loss));
        }
        if ask.options.reentry == Reentry::Refuse {
            return Err(Error::already_held(&ask.key, HeldBy::ThisOwner));
        }
        self.depth += 1;
        self.at_least = self.at_least.max(ask.options.at_least);
        Ok(self.hold(engine, self.depth))
    }

    /// The fence for `next`, if the lease may be handed to it in memory.
    ///
    /// Never to or from a shared owner: the server would go on seeing the old owner and let its
    /// other processes in. Nor between one that renews and one that does not: the engine may have
    /// tied the lease to something that lives on.
    fn may_hand_over(&mut self, next: &Ask, can: &Capabilities, now: Time) -> Option<Fence> {
        let claim = self.lease.claim();
        let shared = claim.shared_owner().is_some() || next.shared_owner().is_some();
        let unlike = claim.renewed() != next.is_renewed();
        if shared
            || unlike
            || self.is_turn_of_pollers(can, now)
            || self.lease.ended_by(now).is_some()
        {
            return None;
        }
        if self.lease.is_contended() {
            let bound = self.contended.get_or_insert(Contended { since: now, handoffs: 0 });
            if bound.handoffs >= HANDOFFS_CONTENDED
                || now.since(bound.since) >= HANDOFF_TIME_CONTENDED
            {
                return None;
            }
            bound.handoffs += 1;
        }
        self.fence.next_local()
    }

    /// Those who poll cannot be seen waiting, so their turn comes by the clock.
    fn is_turn_of_pollers(&self, can: &Capabilities, now: Time) -> bool {
        can.unseen_waiters && now.since(self.granted_at) >= self.lease.ttl() / 3
    }

    /// Whether the lock should be left free for a moment after its release, since those who wait
    /// elsewhere must race for it.
    fn owes_a_turn(&self, can: &Capabilities, now: Time) -> bool {
        self.is_turn_of_pollers(can, now) || (!can.fifo && self.contended.is_some())
    }

    fn pass_to(&mut self, ask: Arc<Ask>, serial: u64, fence: Fence, now: Time) {
        self.lease.give_to(serial, &ask.options, now);
        (self.serial, self.fence, self.since) = (serial, fence, now);
        (self.depth, self.detached, self.at_least) = (1, 0, ask.options.at_least);
        self.ask = ask;
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

/// The right of one local holder. Dropped, it is given back in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) serial: u64,
    pub(crate) fence: Fence,
    pub(crate) depth: u32,
    armed: bool,
}

impl Hold {
    /// Ends this hold; the value's drop then does nothing.
    pub(crate) fn part(mut self) -> Parting {
        self.armed = false;
        self.engine.gates.part(&self)
    }

    /// Lets go of the value without ending the hold.
    pub(crate) fn forget(mut self) {
        self.armed = false;
    }

    /// Whether the lock may be relied on, by this holder.
    pub(crate) fn is_valid(&self) -> bool {
        self.lease.holder() == self.serial && self.lease.is_valid()
    }

    /// Why this hold ended, if by nothing better then by the server's forgetting.
    pub(crate) fn loss(&self) -> Loss {
        match self.lease.ended() {
            Some(Ended::Lost(loss)) => loss,
            _ => Loss::Gone,
        }
    }

    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(self.lease.claim().key(), self.loss())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.armed, false) || self.engine.is_forked() {
            return;
        }
        match self.engine.gates.part(self) {
            Parting::Depart(departure) => drop(departure),
            Parting::Lost(lease, _) => self.engine.deal_with_loss(&lease),
            Parting::StillHeld(_) | Parting::HandedOver => {}
        }
    }
}

/// The duty to ask the server for a gate. Dropped, the next in the queue has it.
#[derive(Debug)]
pub(crate) struct Lead {
    engine: Arc<Engine>,
    key: Key,
    claim: Option<Arc<Claim>>,
    not_before: Option<Time>,
    armed: bool,
}

impl Lead {
    fn new(engine: &Arc<Engine>, key: &Key) -> Self {
        Lead {
            engine: engine.clone(),
            key: key.clone(),
            claim: None,
            not_before: None,
            armed: true,
        }
    }

    /// When the server may be asked.
    pub(crate) fn not_before(&self) -> Option<Time> {
        self.not_before
    }

    /// The claim to ask with: the one taken over, or a new one. From now on it is abandoned unless
    /// it is granted, passed on, or [disowned](Self::disown).
    pub(crate) fn claim(&mut self, ask: &Ask) -> Result<Arc<Claim>, Error> {
        let claim = match self.claim.take() {
            Some(claim) => claim,
            None => Arc::new(self.engine.new_claim(&self.key, ask.terms())?),
        };
        self.claim = Some(claim.clone());
        self.engine.gates.note_claim(&self.key, &claim);
        Ok(claim)
    }

    /// The server has said that the claim is neither granted nor queued: there is nothing to undo.
    pub(crate) fn disown(&mut self) {
        self.claim = None;
    }

    /// The claim was granted: the leading task holds the lock.
    pub(crate) fn settle(
        mut self,
        ask: &Arc<Ask>,
        lease: Arc<Lease>,
        fence: Fence,
    ) -> Result<Hold, Error> {
        let hold = self.engine.gates.settle(&self, ask, lease, fence)?;
        self.armed = false;
        Ok(hold)
    }

    /// The claim was granted too late to be of use to anybody.
    pub(crate) fn give_up(mut self) {
        if let Some(claim) = self.claim.take() {
            self.engine.abandon(claim);
        }
    }

    /// The engine cannot be reached: nobody who waits here will fare better.
    pub(crate) fn fail_all(self, error: &Error) {
        self.engine.gates.fail_all(&self.key, error);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.armed, false) || self.engine.is_forked() {
            return;
        }
        let engine = self.engine.clone();
        if let Some(unwanted) = engine.gates.pass_on(self) {
            engine.abandon(unwanted);
        }
    }
}

/// A lease on its way back to the server. Dropped before that is done, it is done in the background.
#[derive(Debug)]
pub(crate) struct Departure {
    lead: Option<Lead>,
    lease: Arc<Lease>,
    then: Then,
}

impl Departure {
    /// What becomes of the lock.
    pub(crate) fn then(&self) -> Then {
        self.then
    }

    /// The server has been told: the next may ask.
    pub(crate) fn done(mut self) {
        self.lead = None;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(lead) = self.lead.take() {
            let engine = lead.engine.clone();
            engine.release_in_background(self.lease.clone(), self.then, Some(lead));
        }
    }
}

/// A place in the local queue. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct Ticket {
    engine: Arc<Engine>,
    key: Key,
    number: u64,
    queued: bool,
    told: oneshot::Receiver<Turn>,
}

impl Ticket {
    /// Waits for one's turn.
    pub(crate) async fn turn(&mut self) -> Turn {
        let turn = (&mut self.told).await;
        self.queued = false;
        turn.unwrap_or_else(|_| Turn::Refused(Error::closed(Some(&self.key))))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A turn that was given and not taken is dropped with the channel, and passes itself on.
        if self.queued && !self.engine.is_forked() {
            self.engine.gates.leave(&self.key, self.number);
        }
    }
}

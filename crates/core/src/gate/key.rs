//! One gate: the leases of a key in this process, and the tasks that wait for the key.
//!
//! In: requests that cannot be granted at once, and holds that end. Out: queue entries, turns, and leases to
//! release. Called with the mutex of [`Gates`] locked.
//!
//! While tasks wait, one of them leads: it asks the server. The exception is a key that this process holds
//! alone: its waiters get the lease in memory, or ask after its release.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::rights::{Hold, Lead, PendingRelease, Ticket};
use super::tenancy::Tenancy;
use super::wakeups::Wakeups;
use super::{Entry, Gates, Queueing, Turn};
use crate::claim::{Claim, no_answer_yet};
use crate::engine::Engine;
use crate::error::{Error, HeldBy};
use crate::fault::Fault;
use crate::holder::WaitStatus;
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::mode::{self, Mode};
use crate::options::WithinProcess;
use crate::request::Request;
use crate::time::Time;

#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The leases of this process: several only where the key is held together.
    pub(super) held: Vec<Tenancy>,
    /// Set while a [`Lead`] exists: one task is talking to the server on behalf of the gate.
    pub(super) asking: Option<Asking>,
    /// How many [side leads](Lead::side) exist. They keep the gate, and no other task from asking.
    pub(super) side: u32,
    /// The claims that side leads ask with.
    pub(super) tried: Vec<Arc<Claim>>,
    pub(super) queue: VecDeque<Waiter>,
    /// Requests that only try. They wait for the first news about the lock, not for the lock.
    pub(super) tries: VecDeque<Waiter>,
    /// Whether the server answered the last request of this gate.
    pub(super) heard: bool,
}

/// The task that asks the server for a gate.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// The request and the claim that it waits with; `None` before it asks, and while it releases.
    pub(super) with: Option<(Arc<Request>, Arc<Claim>)>,
    /// When the first request was sent that the server has not answered. A request that was given up counts too.
    pub(super) since: Option<Time>,
    /// A permit of this process that was handed to the waiting task. The task takes it and stops asking.
    pub(super) handed: Option<Hold>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) number: u64,
    pub(super) ask: Arc<Request>,
    pub(super) turn: oneshot::Sender<Turn>,
}

impl Gate {
    /// Whether nothing is left of the gate.
    pub(super) fn is_idle(&self) -> bool {
        let Gate { held, asking, side, queue, tries, .. } = self;
        held.is_empty() && asking.is_none() && *side == 0 && queue.is_empty() && tries.is_empty()
    }

    /// Whether this process holds the key alone, so that its tasks need not ask the server.
    pub(super) fn is_exclusive(&self) -> bool {
        self.held.iter().any(|tenancy| !tenancy.mode().is_together())
    }

    pub(super) fn tenancy(&mut self, hold: &Hold) -> Option<&mut Tenancy> {
        self.held.iter_mut().find(|tenancy| tenancy.is_under(hold))
    }

    /// Makes a task the one that asks. The server is silent since `since`, if it is.
    pub(super) fn lead(&mut self, engine: &Arc<Engine>, key: &Key, since: Option<Time>) -> Lead {
        self.asking = Some(Asking { since, ..Asking::default() });
        Lead::new(engine, key)
    }

    /// A lead beside the one of the queue.
    fn side_lead(&mut self, engine: &Arc<Engine>, key: &Key) -> Lead {
        self.side += 1;
        Lead::side(engine, key)
    }

    /// Ends the turn of `lead`. Returns what to drop after the mutex is unlocked.
    pub(super) fn end_lead(&mut self, lead: &Lead) -> Option<Hold> {
        if lead.side {
            self.side -= 1;
            self.tried.retain(|claim| lead.asked.as_ref() != Some(&claim.token()));
            return None;
        }
        self.asking.take().and_then(|asking| asking.handed)
    }

    /// A second request of an owner that holds the key already. `None` if the owner does not hold it, or if its
    /// permits are counted one by one.
    pub(super) fn reenter(
        &mut self,
        engine: &Arc<Engine>,
        ask: &Request,
    ) -> Option<Result<Hold, Error>> {
        let owner = ask.owner.as_ref()?;
        let tenancy = self.held.iter_mut().find(|tenancy| tenancy.depth_of(owner) > 0)?;
        tenancy.reenter(engine, ask)
    }

    /// Admits, queues or refuses a request of an owner that does not hold the key.
    pub(super) fn admit<'a>(
        &mut self,
        engine: &'a Arc<Engine>,
        ask: &'a Arc<Request>,
        patience: Queueing,
        number: u64,
        now: Time,
    ) -> Result<Entry<'a>, Error> {
        if let Some(joined) = self.join(engine, ask, now) {
            return joined.map(Entry::Hold);
        }
        if self.fails_within_process(ask) {
            self.refuse_without_answer(ask)?;
            return Err(Error::already_held(&ask.key, HeldBy::ThisProcess));
        }
        if patience == Queueing::Try
            && let Some(answer) = self.answer_try(engine, ask)?
        {
            return Ok(answer);
        }
        if self.asking.is_none() && self.queue.is_empty() && !self.is_exclusive() {
            return Ok(Entry::Lead(self.lead(engine, &ask.key, None)));
        }
        self.watch_contention(engine);
        let own = self.is_own(ask);
        let (turn, turn_sent) = oneshot::channel();
        let line = match patience {
            Queueing::Queue => &mut self.queue,
            Queueing::Try => &mut self.tries,
        };
        line.push_back(Waiter { number, ask: ask.clone(), turn });
        Ok(Entry::Wait(Ticket { engine, key: &ask.key, number, queued: true, own, turn_sent }))
    }

    /// Whether the request is to fail because of other tasks of this process.
    fn fails_within_process(&self, ask: &Request) -> bool {
        let free = self.held.is_empty() && self.asking.is_none();
        let ours = self.held.iter().map(|tenancy| tenancy.mode());
        let fits = ask.mode.is_together() && mode::admits(ours, &ask.mode);
        ask.options.within_process == WithinProcess::Fail && !free && !fits
    }

    /// Refuses a request at once if the server is known not to answer.
    fn refuse_without_answer(&self, ask: &Request) -> Result<Option<WaitStatus>, Error> {
        match self.known() {
            Some(WaitStatus { fault: Some(fault), .. }) => {
                Err(Error::backend(Some(&ask.key), fault))
            }
            known => Ok(known),
        }
    }

    /// Answers a try at once by what this process knows. `None` if it has to ask, or to wait for the task that asks.
    /// A try of a claim that others may hold too asks by itself, unless tasks of this process wait.
    fn answer_try<'a>(
        &mut self,
        engine: &'a Arc<Engine>,
        ask: &'a Request,
    ) -> Result<Option<Entry<'a>>, Error> {
        let (known, together) = (self.refuse_without_answer(ask)?, ask.mode.is_together());
        if together && !self.is_exclusive() && !self.has_waiters() {
            return Ok(Some(Entry::Lead(self.side_lead(engine, &ask.key))));
        }
        Ok(known.map(|status| Entry::Busy(status.holder)))
    }

    /// Whether tasks of this process are known to wait for the key.
    fn has_waiters(&self) -> bool {
        let waits = |(_, claim): &(_, Arc<Claim>)| claim.sees_a_holder();
        let asking = self.asking.as_ref().and_then(|asking| asking.with.as_ref());
        !self.queue.is_empty() || asking.is_some_and(waits)
    }

    /// Lets a new reader share a lease of this process, unless a task of this process or another process
    /// waits: readers that keep coming must not starve a writer.
    fn join(
        &mut self,
        engine: &Arc<Engine>,
        ask: &Arc<Request>,
        now: Time,
    ) -> Option<Result<Hold, Error>> {
        if self.asking.is_some() || !self.queue.is_empty() {
            return None;
        }
        let joins = |it: &&mut Tenancy| !it.lease.is_contended() && it.may_join(ask, now);
        let tenancy = self.held.iter_mut().find(joins)?;
        let joined = tenancy.join(engine, ask, now);
        self.watch_contention(engine);
        Some(joined)
    }

    /// Lets the readers at the front of the queue share the newest lease. They came before the other process
    /// that may be waiting now.
    pub(super) fn join_queued(&mut self, engine: &Arc<Engine>, wakeups: &mut Wakeups) {
        let Gate { held, queue, .. } = self;
        let (Some(tenancy), now) = (held.last_mut(), engine.clock.now()) else { return };
        while queue.front().is_some_and(|first| tenancy.may_join(&first.ask, now)) {
            let Some(first) = queue.pop_front() else { return };
            let joined = tenancy.join(engine, &first.ask, now);
            tenancy.watch_contention(engine);
            wakeups.add(first.turn, joined.map_or_else(Turn::Refused, Turn::Hold));
        }
    }

    /// Makes the first waiter ask the server, if no task asks and the key is not held alone.
    pub(super) fn ask_next(&mut self, engine: &Arc<Engine>, key: &Key, wakeups: &mut Wakeups) {
        if self.asking.is_some() || self.is_exclusive() {
            return;
        }
        if let Some(first) = self.queue.pop_front() {
            let lead = self.lead(engine, key, None);
            wakeups.add(first.turn, Turn::Lead(lead));
        }
    }

    /// Asks the backend, once per lease, to notify us when other processes wait too. Called when tasks wait
    /// behind a lease, and when a reader joins one: readers that keep coming must not starve a writer.
    pub(super) fn watch_contention(&mut self, engine: &Engine) {
        self.held.iter_mut().for_each(|tenancy| tenancy.watch_contention(engine));
    }

    /// Whether the requesting task acquired the lock itself, without an owner: it may be waiting for itself.
    pub(super) fn is_own(&self, ask: &Request) -> bool {
        self.held.iter().any(|Tenancy { ask: holder, .. }| {
            holder.owner.is_none()
                && holder.asker.get().is_some_and(|it| ask.asker.get() == Some(it))
        })
    }

    /// Whether the owner of the request holds the key already, or the task of a request without one.
    pub(super) fn is_held_by_asker(&self, ask: &Request) -> bool {
        let by = |owner| self.held.iter().any(|tenancy| tenancy.depth_of(owner) > 0);
        self.is_own(ask) || ask.owner.as_ref().is_some_and(by)
    }

    /// Every claim of this gate: held, waiting or tried.
    pub(super) fn claims(&self) -> impl Iterator<Item = &Arc<Claim>> {
        let held = self.held.iter().map(|tenancy| tenancy.lease.claim());
        held.chain(self.claim_asked_with()).chain(&self.tried)
    }

    /// The claim that a lead is asking the server with.
    pub(super) fn claim_asked_with(&self) -> Option<&Arc<Claim>> {
        self.asking.as_ref()?.with.as_ref().map(|(_, claim)| claim)
    }

    /// The last known state of the lock: its holder, or the fault that keeps the server from answering.
    /// `None` if the server has been asked and has not answered yet; the leader then answers the tries.
    fn known(&self) -> Option<WaitStatus> {
        let held = self.held.first().map(|tenancy| WaitStatus::of(tenancy.holder(), None));
        match (self.claim_asked_with(), &self.asking) {
            (Some(claim), _) => claim.await_status().or(held),
            // A task of this process is the next to ask, and may pause before it does.
            (None, Some(_)) => held.or_else(|| self.heard.then(WaitStatus::default)),
            (None, None) => held,
        }
    }

    /// The same, for a wait that ends now. If the current claim has no reply yet, the lock counts as busy if
    /// the server answered an earlier request, and as unanswered otherwise.
    pub(super) fn wait_status(&self) -> WaitStatus {
        self.known().unwrap_or_else(|| match self.heard {
            true => WaitStatus::default(),
            false => WaitStatus::nothing_heard(),
        })
    }

    /// Since when the server owes an answer to the task that asks it, and why the answer is missing. `None` if it
    /// answers, or if no task asks.
    pub(super) fn silence(&self) -> Option<(Time, Fault)> {
        let asking = self.asking.as_ref()?;
        let Some((_, claim)) = &asking.with else { return Some((asking.since?, no_answer_yet())) };
        let since = claim.unanswered_since(asking.since?)?;
        Some((since, claim.wait_status().fault.unwrap_or_else(no_answer_yet)))
    }

    /// Answers the tries, if the state of the lock is known by now.
    pub(super) fn answer_tries(&mut self, wakeups: &mut Wakeups) {
        if self.tries.is_empty() {
            return;
        }
        let Some(status) = self.known() else { return };
        for Waiter { ask, turn, .. } in self.tries.drain(..) {
            wakeups.add(turn, Turn::Refused(Error::at_once(&ask.key, status.clone())));
        }
    }

    /// Refuses queued waiters that will not wait any longer for an unavailable server. Returns the fault if
    /// `leader` is one of them too.
    pub(super) fn give_up(
        &mut self,
        engine: &Engine,
        leader: &Request,
        wakeups: &mut Wakeups,
    ) -> Option<Fault> {
        let status = self.claim_asked_with()?.wait_status();
        let (fault, now) = (status.fault.clone()?, engine.clock.now());
        let gives_up = |ask: &Request| ask.options.give_up(&status, &engine.can, now);
        self.refuse(&Error::backend(Some(&leader.key), fault.clone()), gives_up, wakeups);
        gives_up(leader).then_some(fault)
    }

    /// Refuses the queued waiters selected by `which`.
    pub(super) fn refuse(
        &mut self,
        error: &Error,
        which: impl Fn(&Request) -> bool,
        wakeups: &mut Wakeups,
    ) {
        for waiter in std::mem::take(&mut self.queue) {
            match which(&waiter.ask) {
                true => wakeups.add(waiter.turn, Turn::Refused(error.clone())),
                false => self.queue.push_back(waiter),
            }
        }
    }

    /// Admits waiters of the owner that has just acquired the newest lease: they re-enter.
    pub(super) fn admit_same_owner(&mut self, engine: &Arc<Engine>, wakeups: &mut Wakeups) {
        let Gate { held, queue, tries, .. } = self;
        let Some(tenancy) = held.last_mut() else { return };
        let Some(owner) = tenancy.ask.owner.clone().filter(|_| !tenancy.ask.alone) else { return };
        for line in [queue, tries] {
            for waiter in std::mem::take(line) {
                let same = waiter.ask.owner.as_ref() == Some(&owner);
                match same.then(|| tenancy.reenter(engine, &waiter.ask)).flatten() {
                    Some(again) => {
                        wakeups.add(waiter.turn, again.map_or_else(Turn::Refused, Turn::Hold));
                    }
                    None => line.push_back(waiter),
                }
            }
        }
    }

    /// Hands a lease that its last holder has released to a local waiter, if there is one and the bounds allow
    /// it: an exclusive lease to the first in the queue, a permit to the task that asks the server for one.
    pub(super) fn hand_over(
        &mut self,
        at: usize,
        engine: &Arc<Engine>,
        gates: &Gates,
        now: Time,
        wakeups: &mut Wakeups,
    ) -> bool {
        let Gate { held, asking, queue, .. } = self;
        let tenancy = &mut held[at];
        let leads = asking.as_mut().filter(|asking| asking.handed.is_none());
        let leads = leads.and_then(|asking| Some((asking.with.clone()?, asking)));
        let next = match (tenancy.mode(), &leads) {
            (Mode::Read, _) => None,
            (Mode::Permits { .. }, leads) => leads.as_ref().map(|((ask, _), _)| ask.clone()),
            _ => queue.front().map(|first| first.ask.clone()),
        };
        let Some(next) = next else { return false };
        let Some(fence) = tenancy.may_hand_over(&next, &engine.can, now) else { return false };
        engine.observe.passed(&tenancy.ask, &next);
        tenancy.pass_to(next, gates.next_serial(), fence, now);
        engine.reschedule_if_sooner(&tenancy.lease);
        let hold = tenancy.hold(engine, 1);
        match (tenancy.mode().is_together(), leads) {
            (true, Some(((_, claim), asking))) => {
                asking.handed = Some(hold);
                claim.wake();
            }
            _ => {
                if let Some(first) = queue.pop_front() {
                    wakeups.add(first.turn, Turn::Hold(hold));
                }
                self.admit_same_owner(engine, wakeups);
            }
        }
        true
    }

    /// Takes a lease out of the gate, to be released at the server. An exclusive one is released before the
    /// next task asks.
    pub(super) fn depart(&mut self, at: usize, engine: &Arc<Engine>, now: Time) -> PendingRelease {
        let tenancy = self.held.remove(at);
        let lease = &tenancy.lease;
        lease.finish(Ended::Released);
        tenancy.asks().for_each(|(ask, _)| engine.observe.freed(ask));
        let key = lease.claim().key();
        let mut lead = match tenancy.mode().is_together() {
            true => self.side_lead(engine, key),
            false => {
                self.heard = false;
                self.lead(engine, key, Some(now))
            }
        };
        if tenancy.must_yield(&engine.can, now) {
            lead.not_before = Some(now.after(tenancy.ask.options.retry_interval));
        }
        let then = tenancy.then(now);
        PendingRelease { lead: Some(lead), then, lease: tenancy.lease, ask: tenancy.ask }
    }

    /// Removes a lost lease. Returns the tenancy, and the lead that lets the next task ask.
    pub(super) fn evict(
        &mut self,
        engine: &Arc<Engine>,
        lease: &Arc<Lease>,
    ) -> Option<(Tenancy, Lead)> {
        let at = self.held.iter().position(|tenancy| Arc::ptr_eq(&tenancy.lease, lease))?;
        let (tenancy, key) = (self.held.remove(at), lease.claim().key());
        let lead = match tenancy.mode().is_together() || self.asking.is_some() {
            true => self.side_lead(engine, key),
            false => self.lead(engine, key, None),
        };
        Some((tenancy, lead))
    }
}

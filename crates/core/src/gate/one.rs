//! One gate: who has the key, and who waits for it, in this process.
//!
//! In: asks that cannot be met at once, and holds that end. Out: places in the queue, turns, and
//! leases on their way back. Called under the mutex of [`Gates`].

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::post::Post;
use super::rights::{Departure, Lead, Ticket};
use super::tenancy::Tenancy;
use super::{Entry, Gates, Patience, Turn};
use crate::claim::{Claim, Sight};
use crate::engine::Engine;
use crate::error::{Error, HeldBy};
use crate::lease::Ended;
use crate::options::WithinProcess;
use crate::request::Ask;
use crate::time::Time;

#[derive(Debug)]
pub(super) struct Gate {
    pub(super) phase: Phase,
    pub(super) queue: VecDeque<Waiter>,
    /// Those who only try. They wait for the first thing that is known of the lock, not for the lock.
    pub(super) tries: VecDeque<Waiter>,
    /// The server has answered the last time that it was asked here.
    pub(super) heard: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A [`Lead`] or [`Departure`] exists: one task is talking to the server, with this claim if it waits.
    Asking(Option<Arc<Claim>>),
    Held(Tenancy),
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) number: u64,
    pub(super) ask: Arc<Ask>,
    pub(super) turn: oneshot::Sender<Turn>,
}

impl Gate {
    pub(super) fn asking() -> Self {
        let (queue, tries) = Default::default();
        Gate { phase: Phase::Asking(None), queue, tries, heard: false }
    }

    /// Another owner has the lock or is asking for it.
    pub(super) fn admit<'a>(
        &mut self,
        engine: &'a Arc<Engine>,
        ask: &'a Arc<Ask>,
        patience: Patience,
        number: u64,
    ) -> Result<Entry<'a>, Error> {
        // Nobody would ever give a forked child its turn.
        if engine.is_forked() {
            return Err(Error::forked(&ask.key));
        }
        let fails = ask.options.within_process == WithinProcess::Fail;
        let known = if fails || patience == Patience::Try { self.known() } else { None };
        match known {
            Some(Sight { trouble: Some(fault), .. }) => {
                return Err(Error::backend(Some(&ask.key), fault));
            }
            _ if fails => return Err(Error::already_held(&ask.key, HeldBy::ThisProcess)),
            Some(sight) => return Ok(Entry::Busy(sight.holder)),
            None => self.heed(engine),
        }
        let (turn, told) = oneshot::channel();
        let line = match patience {
            Patience::Queue => &mut self.queue,
            Patience::Try => &mut self.tries,
        };
        line.push_back(Waiter { number, ask: ask.clone(), turn });
        Ok(Entry::Wait(Ticket { engine, key: &ask.key, number, queued: true, told }))
    }

    /// Tasks wait behind the lease: the backend is to tell if other processes do too. Once.
    pub(super) fn heed(&mut self, engine: &Engine) {
        if let Phase::Held(tenancy) = &mut self.phase
            && !std::mem::replace(&mut tenancy.heeded, true)
        {
            engine.backend.heed(&tenancy.lease);
        }
    }

    /// The claim that somebody asks the server with.
    pub(super) fn claim_asked_with(&self) -> Option<Arc<Claim>> {
        match &self.phase {
            Phase::Asking(claim) => claim.clone(),
            Phase::Held(_) => None,
        }
    }

    /// What the server last said of the lock: who holds it, or what keeps it from answering. `None` if
    /// it was asked and has said nothing yet; the leader then answers those who try.
    fn known(&self) -> Option<Sight> {
        match &self.phase {
            Phase::Held(tenancy) => Some(Sight::of(tenancy.holder(), None)),
            Phase::Asking(Some(claim)) => claim.await_sight(),
            // One of us is next in line, and may pause before it asks.
            Phase::Asking(None) => self.heard.then(Sight::default),
        }
    }

    /// The same for one whose wait ends now. Where the claim that asks has heard nothing, the lock was
    /// in the way if the server has answered to those before it.
    pub(super) fn sight(&self) -> Sight {
        self.known().unwrap_or_else(|| match self.heard {
            true => Sight::default(),
            false => Sight::nothing_heard(),
        })
    }

    /// Answers those who only try, if something is known by now.
    pub(super) fn answer_tries(&mut self, post: &mut Post) {
        if self.tries.is_empty() {
            return;
        }
        let Some(sight) = self.known() else { return };
        for Waiter { ask, turn, .. } in self.tries.drain(..) {
            post.add(turn, Turn::Refused(Error::at_once(&ask.key, sight.clone())));
        }
    }

    /// Lets in those who wait and share the owner that has just got the lock: it is theirs too.
    pub(super) fn admit_mates(&mut self, engine: &Arc<Engine>, post: &mut Post) {
        let Gate { phase: Phase::Held(tenancy), queue, tries, .. } = self else { return };
        if tenancy.ask.owner.is_none() || tenancy.ask.alone {
            return;
        }
        for line in [queue, tries] {
            if line.is_empty() {
                continue;
            }
            let (mates, others): (Vec<_>, Vec<_>) =
                std::mem::take(line).into_iter().partition(|waiter| tenancy.is_of(&waiter.ask));
            *line = VecDeque::from(others);
            for Waiter { ask, turn, .. } in mates {
                let again = tenancy.reenter(engine, &ask).map_or_else(Turn::Refused, Turn::Hold);
                post.add(turn, again);
            }
        }
    }

    /// Gives the lease to the next local waiter, if the bounds allow and there is one.
    pub(super) fn hand_over(
        &mut self,
        engine: &Arc<Engine>,
        gates: &Gates,
        now: Time,
        post: &mut Post,
    ) -> bool {
        let Phase::Held(tenancy) = &mut self.phase else { return false };
        let Some(next) = self.queue.front() else { return false };
        let Some(fence) = tenancy.may_hand_over(&next.ask, &engine.can, now) else { return false };
        let Some(next) = self.queue.pop_front() else { return false };
        tenancy.pass_to(next.ask, gates.next_serial(), fence, now);
        post.add(next.turn, Turn::Hold(tenancy.hold(engine, 1)));
        engine.reschedule_if_sooner(&tenancy.lease);
        self.admit_mates(engine, post);
        true
    }

    /// Starts giving the lease back to the server.
    pub(super) fn depart(&mut self, engine: &Arc<Engine>, now: Time) -> Option<Departure> {
        let Phase::Held(tenancy) = std::mem::replace(&mut self.phase, Phase::Asking(None)) else {
            return None;
        };
        self.heard = false;
        let lease = &tenancy.lease;
        lease.finish(Ended::Released);
        engine.observe.freed();
        let mut lead = Lead::new(engine, lease.claim().key());
        if tenancy.owes_a_turn(&engine.can, now) {
            lead.not_before = Some(now.after(tenancy.ask.options.retry_interval));
        }
        Some(Departure { lead: Some(lead), then: tenancy.then(now), lease: tenancy.lease })
    }
}

//! One gate: who has the key, and who waits for it, in this process.
//!
//! In: asks that cannot be met at once, and holds that end. Out: places in the queue, turns, and
//! leases on their way back. Called under the mutex of [`Gates`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::post::Post;
use super::rights::{Departure, Lead, Ticket};
use super::tenancy::Tenancy;
use super::{Entry, Gates, Patience, Turn};
use crate::backend::Then;
use crate::claim::{Claim, Holder};
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
        Gate { phase: Phase::Asking(None), queue: VecDeque::new() }
    }

    /// Another owner has the lock or is asking for it.
    pub(super) fn admit<'a>(
        &mut self,
        engine: &'a Arc<Engine>,
        ask: &'a Arc<Ask>,
        patience: Patience,
        number: u64,
    ) -> Result<Entry<'a>, Error> {
        if ask.options.within_process == WithinProcess::Fail {
            return Err(Error::already_held(&ask.key, HeldBy::ThisProcess));
        }
        if patience == Patience::Try {
            return Ok(Entry::Busy(self.holder()));
        }
        // Nobody would ever give a forked child its turn.
        if engine.is_forked() {
            return Err(Error::forked(&ask.key));
        }
        self.heed(engine);
        let (turn, told) = oneshot::channel();
        self.queue.push_back(Waiter { number, ask: ask.clone(), turn });
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

    pub(super) fn holder(&self) -> Option<Holder> {
        let tenancy = match &self.phase {
            Phase::Held(tenancy) => tenancy,
            Phase::Asking(claim) => return claim.as_ref().and_then(|claim| claim.sight().holder),
        };
        let mut holder = Holder::of(tenancy.lease.claim(), tenancy.lease.wall_clock(tenancy.since));
        holder.lease_left = (!tenancy.lease.is_endless()).then(|| tenancy.lease.remaining());
        Some(holder)
    }

    /// Lets in those in the queue who share the owner that has just got the lock: it is theirs too.
    pub(super) fn admit_mates(&mut self, engine: &Arc<Engine>, post: &mut Post) {
        let Gate { phase: Phase::Held(tenancy), queue } = self else { return };
        if tenancy.ask.owner.is_none() || queue.is_empty() {
            return;
        }
        let (mates, others): (Vec<_>, Vec<_>) =
            std::mem::take(queue).into_iter().partition(|waiter| tenancy.is_of(&waiter.ask));
        *queue = VecDeque::from(others);
        for Waiter { ask, turn, .. } in mates {
            let again = tenancy.reenter(engine, &ask).map_or_else(Turn::Refused, Turn::Hold);
            post.add(turn, again);
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
    pub(super) fn depart(
        &mut self,
        engine: &Arc<Engine>,
        now: Time,
        rest: Duration,
    ) -> Option<Departure> {
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

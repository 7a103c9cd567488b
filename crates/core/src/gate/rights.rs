//! The rights: to hold, to ask, to give back, to wait. The drop of each passes it on.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Parting, Patience, Turn};
use crate::backend::{Loss, Then};
use crate::claim::{Claim, Holder};
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::request::Ask;
use crate::time::Time;

/// The right of one local holder. Dropped, it is given back in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) serial: u64,
    pub(crate) fence: Fence,
    pub(crate) depth: u32,
    pub(super) armed: bool,
}

impl Hold {
    /// Ends this hold; the value's drop then does nothing.
    pub(crate) fn part(&mut self) -> Parting {
        self.armed = false;
        self.engine.gates.part(self)
    }

    /// The value without the right: its drop ends nothing.
    pub(crate) fn disarmed(mut self) -> Self {
        self.armed = false;
        self
    }

    /// Whether the lock may be relied on, by this holder.
    pub(crate) fn is_valid(&self) -> bool {
        !self.engine.is_forked() && self.lease.holder() == self.serial && self.lease.is_valid()
    }

    /// Refuses what a forked child must not do with its copy of the hold.
    pub(crate) fn must_be_ours(&self) -> Result<(), Error> {
        self.engine.must_not_be_forked(self.lease.claim().key())
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
    pub(super) engine: Arc<Engine>,
    pub(super) key: Key,
    pub(super) claim: Option<Arc<Claim>>,
    pub(super) not_before: Option<Time>,
    /// The server has answered.
    pub(super) heard: bool,
    pub(super) armed: bool,
}

impl Lead {
    pub(super) fn new(engine: &Arc<Engine>, key: &Key) -> Self {
        Lead {
            engine: engine.clone(),
            key: key.clone(),
            claim: None,
            not_before: None,
            heard: false,
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
        let claim = match &self.claim {
            Some(claim) => claim.clone(),
            None => Arc::new(self.engine.new_claim(&self.key, ask.terms())?),
        };
        // One that was taken over is to be undone all the same; a new one has not been sent yet.
        self.engine.gates.note_claim(&self.key, &claim)?;
        self.claim = Some(claim.clone());
        Ok(claim)
    }

    /// The server has said that another holds the lock, and that the claim is neither granted nor
    /// queued: there is nothing to undo, and those who only try have the same answer.
    pub(crate) fn busy(mut self, holder: &Holder) {
        (self.claim, self.heard) = (None, true);
        let busy = Error::busy(&self.key, Waited::Not, Some(holder.clone()));
        self.engine.gates.fail(&self.key, &busy, Patience::Try);
    }

    /// The server has not answered an attempt: those who only try would not fare better.
    pub(crate) fn fail_tries(self, error: &Error) {
        self.engine.gates.fail(&self.key, error, Patience::Try);
    }

    /// What was given back is free, if the server has `answered`: lets the next one ask.
    pub(crate) fn after_release(mut self, answered: bool) {
        self.heard = answered;
    }

    /// The claim was granted: the leading task holds the lock.
    pub(crate) fn settle(
        mut self,
        ask: &Arc<Ask>,
        lease: Arc<Lease>,
        fence: Fence,
        now: Time,
    ) -> Result<Hold, Error> {
        let hold = self.engine.gates.settle(&self, ask, lease, fence, now)?;
        self.armed = false;
        Ok(hold)
    }

    /// The claim was granted too late to be of use to anybody.
    pub(crate) fn give_up(mut self) {
        if let Some(claim) = self.claim.take() {
            self.engine.abandon(claim);
        }
    }

    /// Lets the next one ask, or the gate go. Not for a forked child.
    fn pass_on(&mut self) {
        self.armed = false;
        let claim = self.claim.take();
        if let Some(unwanted) = self.engine.gates.pass_on(self, claim) {
            self.engine.abandon(unwanted);
        }
    }

    /// The engine cannot be reached: nobody who waits here will fare better.
    pub(crate) fn fail_all(self, error: &Error) {
        self.engine.gates.fail(&self.key, error, Patience::Queue);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.armed && !self.engine.is_forked() {
            self.pass_on();
        }
    }
}

/// A lease on its way back to the server. Dropped before that is done, it is done in the background.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(super) lead: Option<Lead>,
    pub(super) lease: Arc<Lease>,
    pub(super) then: Then,
}

impl Departure {
    /// What becomes of the lock.
    pub(crate) fn then(&self) -> Then {
        self.then
    }

    /// The server has been told, by this process: the next may ask.
    pub(crate) fn done(mut self) {
        if let Some(mut lead) = self.lead.take() {
            lead.heard = true;
            lead.pass_on();
        }
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
pub(crate) struct Ticket<'a> {
    pub(super) engine: &'a Engine,
    pub(super) key: &'a Key,
    pub(super) number: u64,
    pub(super) queued: bool,
    pub(super) told: oneshot::Receiver<Turn>,
}

impl Ticket<'_> {
    /// Waits for one's turn.
    pub(crate) async fn turn(&mut self) -> Turn {
        let turn = (&mut self.told).await;
        self.queued = false;
        turn.unwrap_or_else(|_| Turn::Refused(Error::closed(Some(self.key))))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // A turn that was given and not taken is dropped with the channel, and passes itself on.
        if self.queued && !self.engine.is_forked() {
            self.engine.gates.leave(self.key, self.number);
        }
    }
}

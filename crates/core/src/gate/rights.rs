//! The rights: to hold, to ask, to release, to wait. Dropping one passes it on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{Notify, oneshot};

use super::{LocalRelease, Turn};
use crate::claim::Claim;
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::fault::Loss;
use crate::fence::Fence;
use crate::grant::AfterRelease;
use crate::holder::Holder;
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::request::Request;
use crate::sync::AtomicBool;
use crate::time::Time;
use crate::token::Token;

/// The right of one local holder. Dropping it releases the lock in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) serial: u64,
    pub(crate) fence: Fence,
    pub(crate) depth: u32,
    /// Set for a reader, whose lease others of this process may share.
    pub(crate) member: Option<Arc<Member>>,
    pub(super) armed: bool,
}

/// A reader that shares its lease with other readers of this process.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) ask: Arc<Request>,
    pub(super) since: Time,
    ended: AtomicBool,
    changed: Notify,
}

impl Member {
    pub(super) fn of(ask: &Arc<Request>, since: Time) -> Arc<Self> {
        let (ended, changed) = Default::default();
        Arc::new(Member { ask: ask.clone(), since, ended, changed })
    }

    /// The reader has released its last guard.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until the reader ends. Changes count from this call on, not from the first poll.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<'_> {
        self.changed.notified()
    }
}

impl Hold {
    /// Ends this hold. Dropping the value afterwards does nothing.
    pub(crate) fn release_local(&mut self) -> LocalRelease {
        self.armed = false;
        self.engine.gates.release_local(self)
    }

    /// The value without the right: dropping it ends nothing.
    pub(crate) fn disarmed(mut self) -> Self {
        self.armed = false;
        self
    }

    /// Whether this holder can rely on the lock.
    pub(crate) fn is_valid(&self) -> bool {
        !self.engine.is_forked() && self.lease.holder() == self.serial && self.lease.is_valid()
    }

    /// Refuses operations that a forked child must not do with its copy of the hold.
    pub(crate) fn must_be_ours(&self) -> Result<(), Error> {
        self.engine.must_not_be_forked(self.lease.claim().key())
    }

    /// Why this hold ended; `Gone` if no other reason is known.
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
        match self.engine.gates.release_local(self) {
            LocalRelease::Depart(departure) => drop(departure),
            LocalRelease::Lost(lease, _) => self.engine.handle_loss(&lease),
            LocalRelease::StillHeld(_) | LocalRelease::OthersRead | LocalRelease::HandedOver => {}
        }
    }
}

/// The duty to ask the server for a gate. Dropping it hands it to the next waiter.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(super) engine: Arc<Engine>,
    pub(super) key: Key,
    pub(super) claim: Option<Arc<Claim>>,
    pub(super) not_before: Option<Time>,
    /// Whether the server has answered.
    pub(super) heard: bool,
    /// The task talks to the server beside the one that leads the queue: it tries for a claim that others may
    /// hold too, or releases one.
    pub(super) side: bool,
    /// The token of the claim that a side lead asks with.
    pub(super) asked: Option<Token>,
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
            side: false,
            asked: None,
            armed: true,
        }
    }

    /// A lead beside the one of the queue.
    pub(super) fn side(engine: &Arc<Engine>, key: &Key) -> Self {
        let mut lead = Lead::new(engine, key);
        lead.side = true;
        lead
    }

    /// The earliest time to ask the server.
    pub(crate) fn not_before(&self) -> Option<Time> {
        self.not_before
    }

    /// Returns the claim to ask with: the one taken over from an earlier lead, or a new one. From now on
    /// dropping the lead passes the claim on to the next waiter, or abandons it.
    pub(crate) fn claim(&mut self, ask: &Arc<Request>) -> Result<Arc<Claim>, Error> {
        let claim = match &self.claim {
            Some(claim) => claim.clone(),
            None => Arc::new(self.engine.new_claim(&self.key, ask.claim_options())?),
        };
        // If this fails, a claim that was taken over stays in `self` and is abandoned. A new claim has not
        // been sent yet, so it needs no abandoning.
        self.engine.gates.set_asking(self, ask, &claim)?;
        (self.asked, self.claim) = (Some(claim.token()), Some(claim.clone()));
        Ok(claim)
    }

    /// The server replied that another claim holds the lock, and ours is neither granted nor queued. Nothing
    /// needs to be undone. The tries get the same reply.
    pub(crate) fn busy(mut self, holder: &Holder) {
        (self.claim, self.heard) = (None, true);
        let busy = Error::busy(&self.key, Waited::Not, Some(holder.clone()));
        self.fail_tries(&busy);
    }

    /// The server did not answer an attempt: the other tries fail with the same error.
    pub(crate) fn fail_tries(self, error: &Error) {
        if !self.side {
            self.engine.gates.fail(&self.key, error, |_| false);
        }
    }

    /// Lets the next waiter ask after a release. `answered` is whether the server confirmed the release.
    pub(crate) fn after_release(mut self, answered: bool) {
        self.heard = answered;
    }

    /// The claim was granted: the leading task becomes the holder.
    pub(crate) fn settle(
        mut self,
        ask: &Arc<Request>,
        lease: Arc<Lease>,
        fence: Fence,
        now: Time,
    ) -> Result<Hold, Error> {
        let hold = self.engine.gates.settle(&self, ask, lease, fence, now)?;
        self.armed = false;
        Ok(hold)
    }

    /// The claim was granted too late to be used: abandons it.
    pub(crate) fn give_up(mut self) {
        if let Some(claim) = self.claim.take() {
            self.engine.abandon(claim);
        }
    }

    /// Hands the lead to the next waiter, or removes the gate. Must not be called in a forked child.
    fn hand_to_next(&mut self) {
        self.armed = false;
        let claim = self.claim.take();
        if let Some(unwanted) = self.engine.gates.hand_to_next(self, claim) {
            self.engine.abandon(unwanted);
        }
    }

    /// The backend failed and the claim is unusable. Waiters that set neither a wait nor `unavailable_after`
    /// fail too; the others continue with a new claim.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.engine.gates.fail(&self.key, error, |ask| !ask.options.rides_out());
        if let Some(claim) = self.claim.take() {
            self.engine.abandon(claim);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.armed && !self.engine.is_forked() {
            self.hand_to_next();
        }
    }
}

/// A lease to be released at the server. If the value is dropped before the release is done, the release
/// happens in the background.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(super) lead: Option<Lead>,
    pub(super) lease: Arc<Lease>,
    pub(super) then: AfterRelease,
    pub(super) ask: Arc<Request>,
}

impl PendingRelease {
    /// The request that the lock was acquired with.
    pub(crate) fn ask(&self) -> &Arc<Request> {
        &self.ask
    }

    /// The state of the lock after the release.
    pub(crate) fn then(&self) -> AfterRelease {
        self.then
    }

    /// This process has released the lock at the server: the next waiter may ask.
    pub(crate) fn done(mut self) {
        if let Some(mut lead) = self.lead.take() {
            lead.heard = true;
            lead.hand_to_next();
        }
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        if let Some(lead) = self.lead.take() {
            let engine = lead.engine.clone();
            engine.clone().release_in_background(self.lease.clone(), self.then, Some(lead));
            engine.flush_if_last();
        }
    }
}

/// An entry in the local queue. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    pub(super) engine: &'a Engine,
    pub(super) key: &'a Key,
    pub(super) number: u64,
    pub(super) queued: bool,
    /// Whether the waiting task acquired the lock itself.
    pub(crate) own: bool,
    pub(super) turn_sent: oneshot::Receiver<Turn>,
}

impl Ticket<'_> {
    /// Waits for the turn.
    pub(crate) async fn turn(&mut self) -> Turn {
        let turn = (&mut self.turn_sent).await;
        self.queued = false;
        turn.unwrap_or_else(|_| Turn::Refused(Error::closed(Some(self.key))))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // A turn that was sent but not received is dropped with the channel, and passes itself on.
        if self.queued && !self.engine.is_forked() {
            self.engine.gates.leave(self.key, self.number);
        }
    }
}

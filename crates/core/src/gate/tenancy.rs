//! A tenancy: a lease, the local owner that has it now, and the bounds within which it goes from
//! one to the next.

use std::sync::Arc;
use std::time::Duration;

use super::rights::Hold;
use crate::backend::{Capabilities, Loss, Then};
use crate::claim::Holder;
use crate::engine::Engine;
use crate::error::{Error, HeldBy};
use crate::fence::Fence;
use crate::lease::{Ended, Lease};
use crate::options::Reentry;
use crate::owner::Owner;
use crate::request::Ask;
use crate::time::Time;

/// How many more local hand-offs once another process is known to wait: enough to drain a small
/// local queue, too few to starve a fleet.
const HANDOFFS_CONTENDED: u32 = 16;
/// And for how long.
const HANDOFF_TIME_CONTENDED: Duration = Duration::from_millis(100);

/// A lease and the local owner that has it now.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) lease: Arc<Lease>,
    pub(super) serial: u64,
    pub(super) ask: Arc<Ask>,
    pub(super) depth: u32,
    pub(super) detached: u32,
    pub(super) fence: Fence,
    pub(super) since: Time,
    pub(super) granted_at: Time,
    pub(super) contended: Option<Contended>,
    pub(super) heeded: bool,
}

/// What has been handed over since another process was known to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contended {
    since: Time,
    handoffs: u32,
}

/// What is left of a lost lease.
#[derive(Debug)]
pub(super) struct Wreck {
    pub(super) serial: u64,
    pub(super) owner: Owner,
    pub(super) loss: Loss,
    pub(super) guards: u32,
}

impl Tenancy {
    /// Of a new lease: nobody watches it yet.
    pub(super) fn new(
        ask: &Arc<Ask>,
        lease: Arc<Lease>,
        serial: u64,
        fence: Fence,
        now: Time,
    ) -> Self {
        lease.set_holder(serial, &ask.options, now);
        lease.set_owner(ask.owner.as_ref());
        Tenancy {
            lease,
            serial,
            ask: ask.clone(),
            depth: 1,
            detached: 0,
            fence,
            since: now,
            granted_at: now,
            contended: None,
            heeded: false,
        }
    }

    pub(super) fn is_of(&self, ask: &Ask) -> bool {
        self.ask.owner.is_some() && self.ask.owner == ask.owner
    }

    pub(super) fn hold(&self, engine: &Arc<Engine>, depth: u32) -> Hold {
        let (engine, lease) = (engine.clone(), self.lease.clone());
        Hold { engine, lease, serial: self.serial, fence: self.fence, depth, armed: true }
    }

    /// The present holder, as others see it.
    pub(super) fn holder(&self) -> Holder {
        let mut holder = Holder::of(self.lease.claim(), self.lease.wall_clock(self.since));
        holder.lease_left = (!self.lease.is_endless()).then(|| self.lease.remaining());
        holder
    }

    /// What becomes of the lock when its holder is done: closed for the rest of its `at_least`.
    pub(super) fn then(&self, now: Time) -> Then {
        match self.lease.at_least().saturating_sub(now.since(self.since)) {
            Duration::ZERO => Then::Free,
            rest => Then::Closed(rest),
        }
    }

    /// What is left when the lease is lost: the guards of an owner that might come again.
    pub(super) fn wreck(&self, loss: &Loss) -> Option<Wreck> {
        let (serial, owner, loss) = (self.serial, self.ask.owner.clone()?, loss.clone());
        let guards = self.depth.saturating_sub(self.detached);
        (guards > 0).then_some(Wreck { serial, owner, loss, guards })
    }

    /// The owner has it already: once more, unless it does not want that, has lost it, or wants a fence
    /// that there is not.
    pub(super) fn reenter(&mut self, engine: &Arc<Engine>, ask: &Ask) -> Result<Hold, Error> {
        if let Some(Ended::Lost(loss)) = self.lease.ended() {
            return Err(Error::lost(&ask.key, loss));
        }
        if ask.options.reentry == Reentry::Refuse {
            return Err(Error::already_held(&ask.key, HeldBy::ThisOwner));
        }
        if ask.options.fencing && self.fence == Fence::NONE {
            let key = &ask.key;
            return Err(Error::invalid(format!(
                "lock `{key}` is held by this owner without a fence, and asked for again with one; \
                 `fencing` must be the same for both"
            )));
        }
        self.depth += 1;
        Ok(self.hold(engine, self.depth))
    }

    /// The fence for `next`, if the lease may be handed to it in memory.
    ///
    /// Never to or from a shared owner: the server would go on seeing the old owner and let its
    /// other processes in. Nor to or from one that does not renew: it was promised its whole
    /// ttl, and no more. Nor to a shorter ttl: the server would keep the lock of a dead process for the
    /// longer one. Nor without a fence to one that wants it. Nor after a reconnect, before the server has
    /// confirmed that it still knows the lease.
    pub(super) fn may_hand_over(
        &mut self,
        next: &Ask,
        can: &Capabilities,
        now: Time,
    ) -> Option<Fence> {
        let claim = self.lease.claim();
        let shared = claim.shared_owner().is_some() || next.shared_owner().is_some();
        let renewed = claim.renewed() && next.is_renewed();
        let shorter = can.expires && next.options.ttl < self.lease.ttl();
        let fenced = self.fence != Fence::NONE || !next.options.fencing;
        if shared
            || !renewed
            || shorter
            || !fenced
            || self.is_turn_of_pollers(can, now)
            || self.lease.is_doubted()
            || self.lease.ended_by(now).is_some()
        {
            return None;
        }
        if let Some(known) = claim.contended_since() {
            let since = known.max(self.granted_at);
            let bound = self.contended.get_or_insert(Contended { since, handoffs: 0 });
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
    pub(super) fn is_turn_of_pollers(&self, can: &Capabilities, now: Time) -> bool {
        can.unseen_waiters && now.since(self.granted_at) >= self.lease.ttl() / 3
    }

    /// Whether the lock should be left free for a moment after its release, since those who wait
    /// elsewhere must race for it.
    pub(super) fn owes_a_turn(&self, can: &Capabilities, now: Time) -> bool {
        self.is_turn_of_pollers(can, now) || (!can.fifo && self.contended.is_some())
    }

    pub(super) fn pass_to(&mut self, ask: Arc<Ask>, serial: u64, fence: Fence, now: Time) {
        self.lease.give_to(serial, &ask.options, now);
        self.lease.set_owner(ask.owner.as_ref());
        (self.serial, self.fence, self.since) = (serial, fence, now);
        (self.depth, self.detached) = (1, 0);
        self.ask = ask;
    }
}

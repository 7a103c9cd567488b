//! A tenancy: a lease, the local owner that has it now, and the bounds within which it is handed from one
//! owner to the next. A reader's lease has several local owners at a time, its members.

use std::sync::Arc;
use std::time::Duration;

use super::rights::{Hold, Member};
use crate::engine::Engine;
use crate::error::{Error, HeldBy};
use crate::fault::Loss;
use crate::fence::Fence;
use crate::grant::{AfterRelease, Capabilities};
use crate::holder::Holder;
use crate::lease::{Ended, Lease};
use crate::mode::Mode;
use crate::options::Reentry;
use crate::owner::Owner;
use crate::request::Request;
use crate::time::Time;

/// The most local hand-overs after another process is known to wait: enough to drain a small local queue, too
/// few to starve other processes.
const HANDOFFS_CONTENDED: u32 = 16;
/// The longest time for local hand-overs after another process is known to wait.
const HANDOFF_TIME_CONTENDED: Duration = Duration::from_millis(100);

/// A lease and the local owner that has it now.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) lease: Arc<Lease>,
    pub(super) serial: u64,
    pub(super) ask: Arc<Request>,
    /// How many guards there are, of all members.
    pub(super) depth: u32,
    /// The readers that share the lease, with the number of their guards. Empty for every other mode.
    members: Vec<(Arc<Member>, u32)>,
    pub(super) detached: u32,
    pub(super) fence: Fence,
    pub(super) since: Time,
    pub(super) granted_at: Time,
    pub(super) contended: Option<Contended>,
    pub(super) watched: bool,
}

/// Counts the local hand-overs since another process is known to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contended {
    since: Time,
    handoffs: u32,
}

/// The rest of a lost lease: its owner still has guards.
#[derive(Debug)]
pub(super) struct LostTenancy {
    pub(super) serial: u64,
    pub(super) owner: Owner,
    pub(super) loss: Loss,
    pub(super) guards: u32,
}

impl Tenancy {
    /// A tenancy of a new lease. The backend does not watch the lease for contention yet.
    pub(super) fn new(
        ask: &Arc<Request>,
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
            members: match ask.mode {
                Mode::Read => vec![(Member::of(ask, now), 1)],
                _ => Vec::new(),
            },
            detached: 0,
            fence,
            since: now,
            granted_at: now,
            contended: None,
            watched: false,
        }
    }

    pub(super) fn mode(&self) -> &Mode {
        self.lease.claim().mode()
    }

    /// Whether `hold` is one of this tenancy.
    pub(super) fn is_under(&self, hold: &Hold) -> bool {
        self.serial == hold.serial && Arc::ptr_eq(&self.lease, &hold.lease)
    }

    /// How many guards `owner` has.
    pub(super) fn depth_of(&self, owner: &Owner) -> u32 {
        let ours = |(member, depth): &(Arc<Member>, u32)| {
            (member.ask.owner.as_ref() == Some(owner)).then_some(*depth)
        };
        match self.mode() {
            Mode::Read => self.members.iter().find_map(ours).unwrap_or(0),
            _ if self.ask.owner.as_ref() == Some(owner) => self.depth,
            _ => 0,
        }
    }

    pub(super) fn hold(&self, engine: &Arc<Engine>, depth: u32) -> Hold {
        let member = self.members.first().map(|(member, _)| member.clone());
        self.hold_of(member, engine, depth)
    }

    fn hold_of(&self, member: Option<Arc<Member>>, engine: &Arc<Engine>, depth: u32) -> Hold {
        let (engine, lease) = (engine.clone(), self.lease.clone());
        Hold { engine, lease, serial: self.serial, fence: self.fence, depth, member, armed: true }
    }

    /// Whether a reader may share this lease. It must want the same of it, both must renew (a reader that does not
    /// was promised its whole ttl), and neither may limit the time of the hold, which is a property of the lease.
    pub(super) fn may_join(&self, ask: &Request, now: Time) -> bool {
        let unlimited = |ask: &Request| {
            ask.options.max_hold.is_none() && ask.options.min_hold == Duration::ZERO
        };
        ask.mode == Mode::Read
            && ask.is_renewed()
            && self.lease.claim().is_compatible(&ask.claim_options())
            && self.ask.options.renew == ask.options.renew
            && unlimited(&self.ask)
            && unlimited(ask)
            && !self.lease.is_doubted()
            && self.lease.ended_by(now).is_none()
    }

    /// Adds a reader to this lease. An owner that shares it already re-enters.
    pub(super) fn join(
        &mut self,
        engine: &Arc<Engine>,
        ask: &Arc<Request>,
        now: Time,
    ) -> Result<Hold, Error> {
        if ask.owner.as_ref().is_some_and(|owner| self.depth_of(owner) > 0) {
            return self.reenter_same(engine, ask);
        }
        let member = Member::of(ask, now);
        self.members.push((member.clone(), 1));
        self.depth += 1;
        engine.observe.holding(ask);
        Ok(self.hold_of(Some(member), engine, 1))
    }

    /// Asks the backend, once, to notify us when other processes wait too.
    pub(super) fn watch_contention(&mut self, engine: &Engine) {
        if !std::mem::replace(&mut self.watched, true) {
            engine.backend.watch_contention(&self.lease);
        }
    }

    /// Ends one guard. Returns how many its owner has left.
    pub(super) fn leave(&mut self, engine: &Engine, hold: &Hold) -> u32 {
        self.depth -= 1;
        let Some(member) = &hold.member else { return self.depth };
        // From the end: readers that come and go are there, behind those that stay.
        let at = self.members.iter().rposition(|(other, _)| Arc::ptr_eq(other, member));
        let Some(at) = at else { return 0 };
        self.members[at].1 -= 1;
        let left = self.members[at].1;
        if left == 0 {
            self.members.swap_remove(at);
            member.end();
            engine.observe.freed(&member.ask);
        }
        left
    }

    /// The present holder, as reported to others.
    pub(super) fn holder(&self) -> Holder {
        let mut holder = Holder::of(self.lease.claim(), self.lease.wall_clock(self.since));
        holder.lease_left = (!self.lease.is_unbounded()).then(|| self.lease.remaining());
        holder
    }

    /// The state of the lock after its holder releases it: closed for the rest of `min_hold`, if any is left.
    pub(super) fn then(&self, now: Time) -> AfterRelease {
        match self.lease.min_hold().saturating_sub(now.since(self.since)) {
            Duration::ZERO => AfterRelease::Free,
            rest => AfterRelease::Cooldown(rest),
        }
    }

    /// The records to keep of a lost lease, for each owner that still has guards and might re-enter.
    pub(super) fn lost_tenancies(&self, loss: &Loss) -> impl Iterator<Item = LostTenancy> {
        let guards = self.depth.saturating_sub(self.detached);
        let alone = (*self.mode() != Mode::Read).then(|| (self.ask.owner.clone(), guards));
        let members = self.members.iter().map(|(member, depth)| (member.ask.owner.clone(), *depth));
        members.chain(alone).filter_map(|(owner, guards)| {
            let (serial, owner, loss) = (self.serial, owner?, loss.clone());
            (guards > 0).then_some(LostTenancy { serial, owner, loss, guards })
        })
    }

    /// The requests of all readers that are left, or of the only holder, and since when they hold the lock.
    pub(super) fn asks(&self) -> impl Iterator<Item = (&Arc<Request>, Time)> {
        let alone = (*self.mode() != Mode::Read).then_some((&self.ask, self.since));
        self.members.iter().map(|(member, _)| (&member.ask, member.since)).chain(alone)
    }

    /// Re-enters for an owner that already holds the key. Fails if the request refuses re-entry, if the lock
    /// is lost, if the request needs a fence and the lease has none, or if it asks in another mode. A reader
    /// may be inside a writer, but not the other way round. `None` for permits that are counted one by one.
    pub(super) fn reenter(
        &mut self,
        engine: &Arc<Engine>,
        ask: &Request,
    ) -> Option<Result<Hold, Error>> {
        let same = match (self.mode(), &ask.mode) {
            (Mode::Permits { .. }, Mode::Permits { .. }) if ask.separate => return None,
            (Mode::Permits { permits, .. }, Mode::Permits { permits: more, .. }) => more <= permits,
            (Mode::Read, Mode::Read) => true,
            (Mode::Exclusive | Mode::SharedOwner(_), other) => {
                !matches!(other, Mode::Permits { .. })
            }
            _ => false,
        };
        Some(match same {
            true => self.reenter_same(engine, ask),
            false => {
                let (held, wanted) = (self.mode().as_str(), ask.mode.as_str());
                Err(Error::already_held(&ask.key, HeldBy::OtherMode { held, wanted }))
            }
        })
    }

    fn reenter_same(&mut self, engine: &Arc<Engine>, ask: &Request) -> Result<Hold, Error> {
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
        let ours = self.members.iter_mut().find(|(member, _)| member.ask.owner == ask.owner);
        let (member, depth) = match ours {
            Some((member, depth)) => {
                *depth += 1;
                (Some(member.clone()), *depth)
            }
            None => (None, self.depth),
        };
        Ok(self.hold_of(member, engine, depth))
    }

    /// The fence for `next`, if the lease may be handed to it in memory.
    ///
    /// The lease is not handed over in these cases:
    /// - The modes differ: the server would admit or refuse others by the old one.
    /// - The lease belongs to one task, or the new holder wants one of its own: the server shows its label.
    /// - The owner is shared: the server would still see it and admit its other processes.
    /// - The new holder wants a numbered permit, and this one has no number.
    /// - The old or the new holder does not renew: it was promised its whole ttl, and no more.
    /// - The new ttl is shorter: the server would keep the lock of a dead process for the longer one.
    /// - The new holder wants a fence, and the lease has none.
    /// - After a reconnect, until the server has confirmed that it still has the lease.
    /// - Waiters in other processes are due: see [`must_yield_to_pollers`](Self::must_yield_to_pollers) and
    ///   the constants above.
    pub(super) fn may_hand_over(
        &mut self,
        next: &Request,
        can: &Capabilities,
        now: Time,
    ) -> Option<Fence> {
        let claim = self.lease.claim();
        let same_mode = *claim.mode() == next.mode && claim.shared_owner().is_none();
        let lone = claim.lone() || next.lone;
        let numbered = claim.numbered() || !next.numbered;
        let renewed = claim.renewed() && next.is_renewed();
        let shorter = can.expires && next.options.ttl < self.lease.ttl();
        let fenced = self.fence != Fence::NONE || !next.options.fencing;
        if !same_mode
            || lone
            || !numbered
            || !renewed
            || shorter
            || !fenced
            || self.must_yield_to_pollers(can, now)
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

    /// Other programs that poll with `SET NX` are in no queue, so this process leaves the lock free for them
    /// after a third of the ttl.
    pub(super) fn must_yield_to_pollers(&self, can: &Capabilities, now: Time) -> bool {
        can.polling_waiters && now.since(self.granted_at) >= self.lease.ttl() / 3
    }

    /// Whether the lock should stay free for a moment after its release, because waiters in other processes
    /// must race for it.
    pub(super) fn must_yield(&self, can: &Capabilities, now: Time) -> bool {
        self.must_yield_to_pollers(can, now) || (!can.fifo && self.contended.is_some())
    }

    pub(super) fn pass_to(&mut self, ask: Arc<Request>, serial: u64, fence: Fence, now: Time) {
        self.lease.give_to(serial, &ask.options, now);
        self.lease.set_owner(ask.owner.as_ref());
        (self.serial, self.fence, self.since) = (serial, fence, now);
        (self.depth, self.detached) = (1, 0);
        self.ask = ask;
    }
}

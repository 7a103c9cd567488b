//! A lease: a grant plus our clock.
//!
//! In: a [`Grant`], and the [`Term`]s of its renewals. Out: whether the lock may still be relied on.
//!
//! One lease lives as long as one grant of the server. When the lock is handed from task to task
//! within the process, the lease stays and its [`holder`](Lease::holder) changes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Grant, Loss, Term};
use crate::claim::Claim;
use crate::fence::Fence;
use crate::time::{self, Clock, Time};

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    Lost(Loss),
}

/// A grant as long as it lives: the claim, its fence, and until when it may be relied on.
#[derive(Debug)]
pub struct Lease {
    claim: Arc<Claim>,
    clock: Clock,
    fence: Fence,
    ttl: AtomicU64,
    /// What the server granted, less the margin. Only moves forward, and not once it has passed.
    valid_until: AtomicU64,
    /// When the present holder's `max_hold` is over.
    hold_until: AtomicU64,
    /// The serial number of the present local holder; see `gate.rs`.
    holder: AtomicU64,
    contended: AtomicBool,
    ended: OnceLock<Ended>,
    end: Notify,
    pub(crate) due: AtomicU64,
    pub(crate) renewing: AtomicBool,
}

impl Lease {
    /// The lease that `grant` makes of `claim`.
    pub fn new(claim: Arc<Claim>, grant: Grant, clock: Clock) -> Self {
        Lease {
            ttl: AtomicU64::new(nanos(claim.ttl())),
            claim,
            clock,
            fence: Fence::from_server(grant.fence),
            valid_until: AtomicU64::new(end_of(grant.term).as_nanos()),
            hold_until: AtomicU64::new(Time::NEVER.as_nanos()),
            holder: AtomicU64::new(0),
            contended: AtomicBool::new(grant.contended),
            ended: OnceLock::new(),
            end: Notify::new(),
            due: AtomicU64::new(Time::NEVER.as_nanos()),
            renewing: AtomicBool::new(false),
        }
    }

    /// The claim that was granted.
    pub fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// The fence of the grant; local hand-offs count up from here.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// How long a renewal is to last: the present holder's ttl.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Acquire))
    }

    /// Until when the lock may be relied on, if nothing else ends it.
    pub fn valid_until(&self) -> Time {
        let granted = self.valid_until.load(Ordering::Acquire);
        let allowed = self.hold_until.load(Ordering::Acquire);
        Time::from_nanos(granted.min(allowed))
    }

    /// Whether the lock may be relied on now. Asks the clock, not the server.
    pub fn is_valid(&self) -> bool {
        // The bound is read before the clock: a renewal that lands in between can only have been
        // accepted while the old bound still held.
        let until = self.valid_until();
        self.ended.get().is_none() && self.clock.now() < until
    }

    /// How much of the lease is left; zero when it has ended.
    pub fn remaining(&self) -> Duration {
        match self.ended.get() {
            Some(_) => Duration::ZERO,
            None => self.valid_until().since(self.clock.now()),
        }
    }

    /// Whether the grant has an end of its own.
    pub(crate) fn is_endless(&self) -> bool {
        self.valid_until.load(Ordering::Acquire) == Time::NEVER.as_nanos()
    }

    /// Takes a renewal's new term. Too late is too late: `false` if the lease had ended by our clock
    /// before, since somebody may already have been told so.
    pub(crate) fn extend(&self, term: Term) -> bool {
        let until = end_of(term).as_nanos();
        let update = |old| (self.clock.now().as_nanos() < old).then_some(until.max(old));
        let moved = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        moved.is_ok() && self.ended.get().is_none()
    }

    /// Ends the lease, once. `true` for the one caller whose reason counts.
    pub(crate) fn finish(&self, how: Ended) -> bool {
        let first = self.ended.set(how).is_ok();
        if first {
            self.end.notify_waiters();
        }
        first
    }

    /// How it ended: by a release, by a loss that was noticed, or just now by the clock.
    pub(crate) fn ended(&self) -> Option<Ended> {
        match self.ended.get() {
            Some(how) => Some(how.clone()),
            None => self.loss_by_clock().map(Ended::Lost),
        }
    }

    fn loss_by_clock(&self) -> Option<Loss> {
        let until = self.valid_until();
        let past = self.clock.now() >= until;
        let allowed = Time::from_nanos(self.hold_until.load(Ordering::Acquire));
        past.then_some(if until == allowed { Loss::MaxHold } else { Loss::Expired })
    }

    /// Waits until the lease has ended. Has its own timer and needs nobody else to be awake.
    pub(crate) async fn wait_ended(&self) -> Ended {
        loop {
            let notified = self.end.notified();
            if let Some(how) = self.ended() {
                return how;
            }
            let until = self.valid_until();
            tokio::select! {
                () = notified => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// Waits until less than `before` is left, or nothing.
    pub(crate) async fn wait_endangered(&self, before: Duration) {
        loop {
            let notified = self.end.notified();
            let at = self.valid_until().before(before);
            if self.ended().is_some() || self.clock.now() >= at {
                return;
            }
            tokio::select! {
                () = notified => {}
                () = self.clock.sleep_until(at) => {}
            }
        }
    }

    /// Another process waits.
    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Acquire)
    }

    /// Notes that another process waits.
    pub(crate) fn set_contended(&self) {
        self.contended.store(true, Ordering::Release);
    }

    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// Gives the lease to a local holder with its ttl and the end of its `max_hold`.
    pub(crate) fn give_to(&self, serial: u64, ttl: Duration, hold_until: Time) {
        self.ttl.store(nanos(ttl), Ordering::Release);
        self.hold_until.store(hold_until.as_nanos(), Ordering::Release);
        self.holder.store(serial, Ordering::Release);
    }
}

fn end_of(term: Term) -> Time {
    match term {
        Term::Lease { from, ttl } => time::valid_until(from, ttl),
        Term::Endless => Time::NEVER,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

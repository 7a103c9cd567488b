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
use crate::options::Options;
use crate::owner::Owner;
use crate::time::{self, Clock, Time, UnixMillis};

/// The pause after a renewal that brought no answer: a tenth of the interval, within these.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

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
    /// From when the present term counts, and what the server really gave.
    renewed_at: AtomicU64,
    granted_ttl: AtomicU64,
    /// The present holder's renewal interval; zero for none.
    renew_every: AtomicU64,
    /// When the present holder's `max_hold` is over.
    hold_until: AtomicU64,
    /// The longest `at_least` of the present holder's guards. A hold that never becomes a guard has none.
    at_least: AtomicU64,
    /// The serial number of the present local holder; see `gate.rs`.
    holder: AtomicU64,
    /// The number of the present holder's owner, for the log; zero for none, and for a shared one,
    /// who has the lease for good.
    owner: AtomicU64,
    ended: OnceLock<Ended>,
    /// The loss has been told to log and server.
    dealt_with: AtomicBool,
    end: Notify,
    /// When the renewal thread looks next; see `renewal.rs`, whose mutex guards it.
    pub(crate) due: AtomicU64,
    /// A renewal is under way.
    pub(crate) renewing: AtomicBool,
    /// The connection was lost meanwhile, and perhaps the server's data: no renewal was confirmed since.
    doubted: AtomicBool,
}

impl Lease {
    /// The lease that `grant` makes of `claim`.
    pub fn new(claim: Arc<Claim>, grant: Grant, clock: Clock) -> Self {
        if grant.contended {
            claim.set_contended(clock.now());
        }
        // Here for every engine: what an engine counts all the same is not shown.
        let fence = if claim.fenced() { Fence::from_server(grant.fence) } else { Fence::NONE };
        Lease::adopted(claim, fence, grant.term, clock)
    }

    /// The lease that is carried on under `claim` with the fence it had.
    pub fn adopted(claim: Arc<Claim>, fence: Fence, term: Term, clock: Clock) -> Self {
        Lease {
            ttl: AtomicU64::new(nanos(claim.ttl())),
            claim,
            fence,
            valid_until: AtomicU64::new(end_of(term).as_nanos()),
            granted_ttl: AtomicU64::new(ttl_of(term)),
            renewed_at: AtomicU64::new(start_of(term, &clock).as_nanos()),
            renew_every: AtomicU64::new(0),
            clock,
            hold_until: AtomicU64::new(Time::NEVER.as_nanos()),
            at_least: AtomicU64::new(0),
            holder: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            ended: OnceLock::new(),
            dealt_with: AtomicBool::new(false),
            end: Notify::new(),
            due: AtomicU64::new(Time::NEVER.as_nanos()),
            renewing: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
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

    /// Whether this process was forked from the one that the lease was granted to. Such a child has a copy
    /// of the lease and no part in it.
    pub(crate) fn is_forked(&self) -> bool {
        self.claim.process() != std::process::id()
    }

    /// Whether the lock may be relied on now. Asks the clock, not the server.
    pub fn is_valid(&self) -> bool {
        self.ended().is_none()
    }

    /// How much of the lease is left; zero when it has ended.
    pub fn remaining(&self) -> Duration {
        let now = self.clock.now();
        match self.ended_by(now) {
            Some(_) => Duration::ZERO,
            None => self.valid_until().since(now),
        }
    }

    /// How much is left of what the server granted, whatever the present holder's `max_hold` allows.
    pub(crate) fn granted_left(&self) -> Duration {
        Time::from_nanos(self.valid_until.load(Ordering::Acquire)).since(self.clock.now())
    }

    /// Until when the server may keep the lock if nobody gives it back. An earlier local holder may
    /// have had a longer ttl than the present one. A lease without an end is not kept by a server.
    pub(crate) fn kept_until(&self) -> Time {
        let granted = Time::from_nanos(self.valid_until.load(Ordering::Acquire));
        match self.is_endless() {
            true => self.clock.now(),
            false => granted.after(time::margin(Duration::from_nanos(
                self.granted_ttl.load(Ordering::Acquire),
            ))),
        }
    }

    /// What the wall clock showed at `then`, for people.
    pub(crate) fn wall_clock(&self, then: Time) -> UnixMillis {
        UnixMillis::now().before(self.clock.now().since(then))
    }

    /// Whether the grant has an end of its own.
    pub(crate) fn is_endless(&self) -> bool {
        self.valid_until.load(Ordering::Acquire) == Time::NEVER.as_nanos()
    }

    /// Says whose it is, for the log.
    pub(crate) fn set_owner(&self, owner: Option<&Owner>) {
        self.owner.store(owner.map_or(0, Owner::number), Ordering::Relaxed);
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match self.owner.load(Ordering::Relaxed) {
            0 => self.claim.shared_owner().map(Owner::shared),
            number => Some(Owner::numbered(number)),
        }
    }

    /// Takes a renewal's new term. Too late is too late: `false` if the lease had ended by our clock
    /// before, since somebody may already have been told so.
    pub(crate) fn extend(&self, term: Term) -> bool {
        let until = end_of(term).as_nanos();
        let update = |old| (self.clock.now().as_nanos() < old).then_some(until.max(old));
        let moved = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        self.renewed_at.fetch_max(start_of(term, &self.clock).as_nanos(), Ordering::AcqRel);
        self.granted_ttl.store(ttl_of(term), Ordering::Release);
        self.doubted.store(false, Ordering::Release);
        moved.is_ok() && self.ended.get().is_none()
    }

    /// The server may have lost it: from now until the next confirmed renewal it stays with its holder.
    pub(crate) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire)
    }

    /// Ends the lease. The first reason counts.
    pub(crate) fn finish(&self, how: Ended) {
        if self.ended.set(how).is_ok() {
            self.end.notify_waiters();
        }
    }

    /// Whether its loss has still to be told to log and server; `true` for one caller.
    pub(crate) fn mark_dealt_with(&self) -> bool {
        !self.dealt_with.swap(true, Ordering::AcqRel)
    }

    /// Whether it was released, or its loss has been dealt with: nobody need look at it again.
    pub(crate) fn is_over(&self) -> bool {
        match self.ended.get() {
            None => false,
            Some(Ended::Released) => true,
            Some(Ended::Lost(_)) => self.dealt_with.load(Ordering::Acquire),
        }
    }

    /// How it ended: by a release, by a loss that was noticed, or just now by the clock. Whoever
    /// sees it past its time ends it: a renewal that is being taken in at this moment must not
    /// bring back what somebody has been told is lost.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended_by(self.clock.now())
    }

    /// The same for who has just read the clock.
    pub(crate) fn ended_by(&self, now: Time) -> Option<Ended> {
        if self.ended.get().is_none()
            && let Some(loss) = self.loss_by(now)
        {
            self.finish(Ended::Lost(loss));
        }
        self.ended.get().cloned()
    }

    fn loss_by(&self, now: Time) -> Option<Loss> {
        let until = self.valid_until();
        let past = now >= until;
        let allowed = Time::from_nanos(self.hold_until.load(Ordering::Acquire));
        past.then_some(if until == allowed { Loss::MaxHold } else { Loss::Expired })
    }

    /// Waits until the lease ends, by whatever cause, or changes hands. Has its own timer and needs
    /// nobody else to be awake. Counts from this call, not from the first poll.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<'_> {
        let notified = self.end.notified();
        async move {
            tokio::select! {
                () = notified => {}
                () = self.clock.sleep_until(self.valid_until()) => {}
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
        self.claim.is_contended()
    }

    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// Gives the lease to another local holder, and tells whoever watches it.
    pub(crate) fn give_to(&self, serial: u64, options: &Options, now: Time) {
        self.set_holder(serial, options, now);
        self.end.notify_waiters();
    }

    /// A guard of the present holder keeps others out for at least so long.
    pub(crate) fn keep_at_least(&self, shortest: Duration) {
        if !shortest.is_zero() {
            self.at_least.fetch_max(nanos(shortest), Ordering::AcqRel);
        }
    }

    /// For how long the present holder keeps others out at least.
    pub(crate) fn at_least(&self) -> Duration {
        Duration::from_nanos(self.at_least.load(Ordering::Acquire))
    }

    /// Makes a local holder the present one, whose options it adopts.
    pub(crate) fn set_holder(&self, serial: u64, options: &Options, now: Time) {
        let hold_until = options.max_hold.map_or(Time::NEVER, |longest| now.after(longest));
        let renew_every = options.renew.interval(options.ttl).unwrap_or(Duration::ZERO);
        self.ttl.store(nanos(options.ttl), Ordering::Release);
        self.renew_every.store(nanos(renew_every), Ordering::Release);
        self.hold_until.store(hold_until.as_nanos(), Ordering::Release);
        self.at_least.store(0, Ordering::Release);
        self.holder.store(serial, Ordering::Release);
    }

    /// When the renewal thread must look at this lease: to renew it, or to see it end.
    pub(crate) fn next_look(&self) -> Time {
        self.valid_until().min(self.next_renewal())
    }

    /// When to renew it. Leases that were granted together are spread over a tenth of the interval.
    pub(crate) fn next_renewal(&self) -> Time {
        let asked = self.renew_every.load(Ordering::Acquire);
        if asked == 0 {
            return Time::NEVER;
        }
        // A server that gave less than was asked for is visited more often.
        let granted = self.granted_ttl.load(Ordering::Acquire);
        let every =
            if granted < self.ttl.load(Ordering::Acquire) { asked.min(granted / 3) } else { asked };
        let spread = every / 10 / 256 * u64::from(self.claim.token().spread());
        let renewed_at = Time::from_nanos(self.renewed_at.load(Ordering::Acquire));
        renewed_at.after(Duration::from_nanos(every - spread))
    }

    /// When to try again after a renewal that brought no answer.
    pub(crate) fn next_retry(&self) -> Time {
        let every = Duration::from_nanos(self.renew_every.load(Ordering::Acquire));
        let pause = (every / 10).clamp(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        self.valid_until().min(self.clock.now().after(pause))
    }
}

fn end_of(term: Term) -> Time {
    match term {
        Term::Lease { from, ttl } => time::valid_until(from, ttl),
        Term::Endless => Time::NEVER,
    }
}

fn start_of(term: Term, clock: &Clock) -> Time {
    match term {
        Term::Lease { from, .. } => from,
        Term::Endless => clock.now(),
    }
}

fn ttl_of(term: Term) -> u64 {
    match term {
        Term::Lease { ttl, .. } => nanos(ttl),
        Term::Endless => u64::MAX,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

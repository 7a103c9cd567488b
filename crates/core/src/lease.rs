//! A lease: a grant plus our clock.
//!
//! In: a [`Grant`], and the [`Validity`] of each renewal. Out: whether the lock can still be relied on.
//!
//! One lease exists per grant of the server. When the lock is handed from task to task within the process,
//! the lease stays and its [`holder`](Lease::holder) changes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::Claim;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::grant::{Grant, Validity};
use crate::options::Options;
use crate::owner::Owner;
use crate::sync::{AtomicBool, AtomicU64};
use crate::time::{self, Clock, Time, UnixMillis};

/// The pause after an unanswered renewal is a tenth of the renewal interval, within these limits.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    Lost(Loss),
}

/// A granted lock: the claim, its fence, and until when it can be relied on.
#[derive(Debug)]
pub struct Lease {
    claim: Arc<Claim>,
    clock: Clock,
    fence: Fence,
    slot: Option<u32>,
    ttl: AtomicU64,
    /// The end of the granted period, less the margin. It only moves forward, and not after it has passed.
    valid_until: AtomicU64,
    /// The start of the current validity period, and the ttl that the server really granted.
    renewed_at: AtomicU64,
    granted_ttl: AtomicU64,
    /// The renewal interval of the current holder; zero for none.
    renew_every: AtomicU64,
    /// When the `max_hold` of the current holder ends.
    hold_until: AtomicU64,
    /// The longest `min_hold` of the current holder's guards. A hold that never becomes a guard does not
    /// count.
    min_hold: AtomicU64,
    /// The serial number of the current local holder; see `gate/mod.rs`.
    holder: AtomicU64,
    /// The number of the current holder's owner, for the log. Zero for none, and for a shared owner, whose
    /// lease is never handed over.
    owner: AtomicU64,
    ended: OnceLock<Ended>,
    /// The loss has been logged, and cleaned up at the server.
    dealt_with: AtomicBool,
    end: Notify,
    /// When the renewal thread processes this lease next; protected by the mutex in `renewal.rs`.
    pub(crate) due: AtomicU64,
    /// A renewal is under way.
    pub(crate) renewing: AtomicBool,
    /// When the connection was lost, and perhaps the server's data; zero if a renewal was confirmed since.
    doubted: AtomicU64,
}

impl Lease {
    /// Makes the lease of a granted claim.
    pub fn new(claim: Arc<Claim>, grant: Grant, clock: Clock) -> Self {
        if grant.contended {
            claim.set_contended(clock.now());
        }
        // Checked here for all engines: some count fences even for claims without fencing.
        let fence = if claim.fenced() { Fence::from_server(grant.fence) } else { Fence::NONE };
        Lease { slot: grant.slot, ..Lease::adopted(claim, fence, grant.validity, clock) }
    }

    /// Makes the lease of an adopted claim, with the fence that it had.
    pub fn adopted(claim: Arc<Claim>, fence: Fence, validity: Validity, clock: Clock) -> Self {
        Lease {
            ttl: AtomicU64::new(nanos(claim.ttl())),
            claim,
            fence,
            slot: None,
            valid_until: AtomicU64::new(end_of(validity).as_nanos()),
            granted_ttl: AtomicU64::new(ttl_of(validity)),
            renewed_at: AtomicU64::new(start_of(validity, &clock).as_nanos()),
            renew_every: AtomicU64::new(0),
            clock,
            hold_until: AtomicU64::new(Time::NEVER.as_nanos()),
            min_hold: AtomicU64::new(0),
            holder: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            ended: OnceLock::new(),
            dealt_with: AtomicBool::new(false),
            end: Notify::new(),
            due: AtomicU64::new(Time::NEVER.as_nanos()),
            renewing: AtomicBool::new(false),
            doubted: AtomicU64::new(0),
        }
    }

    /// The claim that was granted.
    pub fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    /// The fence of the server's grant. Later local holders have higher ones: `Hold::fence`.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The slot of a numbered permit. It stays when the permit is handed to another task.
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// The ttl to renew with: that of the current holder.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Acquire))
    }

    /// Until when the lock can be relied on, if nothing else ends it.
    pub fn valid_until(&self) -> Time {
        let granted = self.valid_until.load(Ordering::Acquire);
        let allowed = self.hold_until.load(Ordering::Acquire);
        Time::from_nanos(granted.min(allowed))
    }

    /// Whether this process was forked after the lease was granted to its parent. The child has only a copy
    /// and must not use it.
    pub(crate) fn is_forked(&self) -> bool {
        self.claim.process() != std::process::id()
    }

    /// Whether the lock can be relied on now. Reads the clock and sends no request.
    pub fn is_valid(&self) -> bool {
        self.ended().is_none()
    }

    /// How much of the lease remains; zero after its end.
    pub fn remaining(&self) -> Duration {
        let now = self.clock.now();
        match self.ended_by(now) {
            Some(_) => Duration::ZERO,
            None => self.valid_until().since(now),
        }
    }

    /// How much remains of the time that the server granted, regardless of the current holder's `max_hold`.
    pub(crate) fn granted_left(&self, now: Time) -> Duration {
        Time::from_nanos(self.valid_until.load(Ordering::Acquire)).since(now)
    }

    /// Until when the server may keep the lock if it is not released. An earlier local holder may have had a
    /// longer ttl than the current one. For a lease that does not expire this is now: no server keeps it.
    pub(crate) fn kept_until(&self) -> Time {
        let granted = Time::from_nanos(self.valid_until.load(Ordering::Acquire));
        match self.is_unbounded() {
            true => self.clock.now(),
            false => granted.after(time::margin(Duration::from_nanos(
                self.granted_ttl.load(Ordering::Acquire),
            ))),
        }
    }

    /// The wall-clock time of `then`, for people.
    pub(crate) fn wall_clock(&self, then: Time) -> UnixMillis {
        UnixMillis::now().before(self.clock.now().since(then))
    }

    /// Whether the grant does not expire.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.valid_until.load(Ordering::Acquire) == Time::NEVER.as_nanos()
    }

    /// Sets the owner of the current holder, for the log.
    pub(crate) fn set_owner(&self, owner: Option<&Owner>) {
        self.owner.store(owner.map_or(0, Owner::number), Ordering::Relaxed);
    }

    /// The owner of the current holder.
    pub(crate) fn owner(&self) -> Option<Owner> {
        match self.owner.load(Ordering::Relaxed) {
            0 => self.claim.shared_owner().map(Owner::shared),
            number => Some(Owner::numbered(number)),
        }
    }

    /// Applies the validity period of a renewal. `false` if the lease had already ended by our clock: its
    /// loss may have been reported, so it must not come back.
    pub(crate) fn extend(&self, validity: Validity) -> bool {
        let until = end_of(validity).as_nanos();
        let update = |old| (self.clock.now().as_nanos() < old).then_some(until.max(old));
        let moved = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        let sent = start_of(validity, &self.clock).as_nanos();
        self.renewed_at.fetch_max(sent, Ordering::AcqRel);
        self.granted_ttl.store(ttl_of(validity), Ordering::Release);
        // The reply to a renewal that was sent before the connection was lost confirms nothing.
        let confirmed = |doubted| (doubted <= sent).then_some(0);
        let _ = self.doubted.fetch_update(Ordering::AcqRel, Ordering::Acquire, confirmed);
        moved.is_ok() && self.ended.get().is_none()
    }

    /// The server may have lost the lock: until the next confirmed renewal the lease is not handed over.
    pub(crate) fn doubt(&self) {
        self.doubted.store(self.clock.now().as_nanos().max(1), Ordering::Release);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted.load(Ordering::Acquire) != 0
    }

    /// Ends the lease. Only the first call has an effect.
    pub(crate) fn finish(&self, how: Ended) {
        if self.ended.set(how).is_ok() {
            self.end.notify_waiters();
        }
    }

    /// Returns `true` for the first caller, which must then log the loss and clean up at the server.
    pub(crate) fn begin_loss_handling(&self) -> bool {
        !self.dealt_with.swap(true, Ordering::AcqRel)
    }

    /// Whether the lease was released, or its loss has been handled: no further processing is due.
    pub(crate) fn is_over(&self) -> bool {
        match self.ended.get() {
            None => false,
            Some(Ended::Released) => true,
            Some(Ended::Lost(_)) => self.dealt_with.load(Ordering::Acquire),
        }
    }

    /// How the lease ended: by a release, by a known loss, or just now by the clock. A caller that sees it
    /// past its time ends it: a renewal that is applied at this moment must not bring back a lease that was
    /// reported lost.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended_by(self.clock.now())
    }

    /// As [`ended`](Self::ended), for a caller that has just read the clock.
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

    /// Waits until the lease ends for any reason, or is handed to another holder. It has its own timer and
    /// depends on no other task. Changes count from this call on, not from the first poll.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<'_> {
        let notified = self.end.notified();
        async move {
            tokio::select! {
                () = notified => {}
                () = self.clock.sleep_until(self.valid_until()) => {}
            }
        }
    }

    /// Waits until less than `before` remains, or the lease has ended.
    pub(crate) async fn wait_expiring(&self, before: Duration) {
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

    /// Whether another process is known to wait for the lock.
    pub fn is_contended(&self) -> bool {
        self.claim.is_contended()
    }

    pub(crate) fn holder(&self) -> u64 {
        self.holder.load(Ordering::Acquire)
    }

    /// Hands the lease to another local holder, and wakes the tasks that watch it.
    pub(crate) fn give_to(&self, serial: u64, options: &Options, now: Time) {
        self.set_holder(serial, options, now);
        self.end.notify_waiters();
    }

    /// Raises the `min_hold` of the current holder to at least `shortest`.
    pub(crate) fn keep_min_hold(&self, shortest: Duration) {
        if !shortest.is_zero() {
            self.min_hold.fetch_max(nanos(shortest), Ordering::AcqRel);
        }
    }

    /// Sets when the `max_hold` of the current holder ends.
    pub(crate) fn set_hold_until(&self, until: Time) {
        self.hold_until.store(until.as_nanos(), Ordering::Release);
    }

    /// The shortest time for which the current holder keeps others out.
    pub(crate) fn min_hold(&self) -> Duration {
        Duration::from_nanos(self.min_hold.load(Ordering::Acquire))
    }

    /// Makes a local holder the current one, with its options.
    pub(crate) fn set_holder(&self, serial: u64, options: &Options, now: Time) {
        let hold_until = options.max_hold.map_or(Time::NEVER, |longest| now.after(longest));
        let renew_every = options.renew.interval(options.ttl).unwrap_or(Duration::ZERO);
        self.ttl.store(nanos(options.ttl), Ordering::Release);
        self.renew_every.store(nanos(renew_every), Ordering::Release);
        self.hold_until.store(hold_until.as_nanos(), Ordering::Release);
        self.min_hold.store(0, Ordering::Release);
        self.holder.store(serial, Ordering::Release);
    }

    /// When the renewal thread must process this lease: to renew it, or to detect its end.
    pub(crate) fn next_due(&self) -> Time {
        self.valid_until().min(self.next_renewal())
    }

    /// When to renew the lease. Leases that were granted together are spread over a tenth of the interval.
    pub(crate) fn next_renewal(&self) -> Time {
        let asked = self.renew_every.load(Ordering::Acquire);
        if asked == 0 {
            return Time::NEVER;
        }
        // If the server granted less than was asked for, the lease is renewed more often.
        let granted = self.granted_ttl.load(Ordering::Acquire);
        let every =
            if granted < self.ttl.load(Ordering::Acquire) { asked.min(granted / 3) } else { asked };
        let spread = every / 10 / 256 * u64::from(self.claim.token().spread());
        let renewed_at = Time::from_nanos(self.renewed_at.load(Ordering::Acquire));
        renewed_at.after(Duration::from_nanos(every - spread))
    }

    /// When to retry after a renewal without an answer.
    pub(crate) fn next_retry(&self) -> Time {
        let every = Duration::from_nanos(self.renew_every.load(Ordering::Acquire));
        let pause = (every / 10).clamp(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        self.valid_until().min(self.clock.now().after(pause))
    }
}

fn end_of(validity: Validity) -> Time {
    match validity {
        Validity::Lease { from, ttl } => time::valid_until(from, ttl),
        Validity::Unbounded => Time::NEVER,
    }
}

fn start_of(validity: Validity, clock: &Clock) -> Time {
    match validity {
        Validity::Lease { from, .. } => from,
        Validity::Unbounded => clock.now(),
    }
}

fn ttl_of(validity: Validity) -> u64 {
    match validity {
        Validity::Lease { ttl, .. } => nanos(ttl),
        Validity::Unbounded => u64::MAX,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::ClaimOptions;
    use crate::key::Key;
    use crate::token::Tokens;

    /// A reply to a renewal that was sent before the connection was lost does not confirm the lease.
    #[test]
    fn an_old_reply_does_not_end_a_doubt() {
        let (clock, ttl) = (Clock::manual(), Duration::from_secs(10));
        let token = Tokens::default().next().unwrap();
        let claim = Claim::new(Key::new("k").unwrap(), token, ClaimOptions::new(ttl));
        let granted = Validity::Lease { from: clock.now(), ttl };
        let lease = Lease::new(Arc::new(claim), Grant::new(1, granted), clock.clone());
        let before = clock.now();
        clock.advance(Duration::from_secs(1));
        lease.doubt();
        assert!(lease.extend(Validity::Lease { from: before, ttl }) && lease.is_doubted());
        clock.advance(Duration::from_secs(1));
        assert!(lease.extend(Validity::Lease { from: clock.now(), ttl }) && !lease.is_doubted());
    }
}

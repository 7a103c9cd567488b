//! The base of fences: what makes them rise on when the cluster's data is lost, or the locks come from another engine.
//!
//! The number of a grant is the *base* plus the revision at which its claim's key was created. The base is kept at the
//! server, in one key, and is such that numbers are on the scale of the wall clock ([`next_server_fence`]), as those of
//! all engines are. In: the base as it was found. Out: the base to count with, written anew where the one that was found
//! is missing or behind.
//!
//! - Every request that creates a claim is bound to the value of that key. So a claim's base is the one that was in
//!   force at the claim's revision, and its value says which one that was. Bases only rise, and claims are granted in
//!   the order of their revisions: fences rise.
//! - A cluster that lost its data has no base, or another one: no request that is bound to the old base creates a claim.
//! - A base is never above the clock when it is written, and revisions rise more slowly than the clock's scale. So
//!   numbers stay below the clock, and a fleet can move to another engine.
//! - Revisions rise far more slowly than the clock, so a base that is old is behind. A session that begins writes it anew
//!   then: a fleet that comes from another engine, or a backup that was put back, begins sessions.

use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use tenure_core::fence::{PER_MILLI, SERVER_FENCE_MAX, next_server_fence};
use tenure_core::time::UnixMillis;

use crate::backend::Shared;
use crate::proto::{Compare, KeyValue, Op, RangeRequest, RangeResponse, TxnRequest};
use crate::seat::{Now, Seat};
use crate::trouble::{Cause, Trouble};
use crate::wait::Stop;

/// How far numbers may be behind the clock when a session begins: one second. Every change costs each process that asks
/// for a lock meanwhile a few requests, so there is at most one in that time.
const BEHIND_MAX: i64 = 1_000 * PER_MILLI as i64;
/// How often writing a base is tried that others write at the same time.
const TRIES: u32 = 16;

/// What this process knows of the base.
#[derive(Debug, Default)]
pub(crate) struct Epoch {
    /// The base that was last seen; zero before that.
    base: AtomicI64,
    /// The highest number that is known to have been possible: nothing below it is granted again.
    highest: AtomicI64,
}

impl Epoch {
    pub(crate) fn base(&self) -> i64 {
        self.base.load(Ordering::Acquire)
    }

    pub(crate) fn highest(&self) -> i64 {
        self.highest.load(Ordering::Acquire)
    }

    /// Takes note of a number that was granted, or could have been.
    pub(crate) fn saw(&self, number: i64) {
        self.highest.fetch_max(number, Ordering::AcqRel);
    }

    /// The base has to be looked at again before it is counted with.
    pub(crate) fn forget(&self) {
        self.base.store(0, Ordering::Release);
    }

    /// Another process has written this base. What was read since may be newer.
    pub(crate) fn told(&self, value: &[u8]) {
        if let Some(base) = read(value) {
            self.base.fetch_max(base, Ordering::AcqRel);
        }
    }

    fn learn(&self, base: i64, revision: i64) -> i64 {
        self.base.store(base, Ordering::Release);
        self.saw(base.saturating_add(revision));
        base
    }

    /// The base to write, if the one that was found at `revision` is missing or behind.
    fn next(&self, found: Option<i64>, revision: i64, now: UnixMillis) -> Option<i64> {
        let highest = self.highest();
        let number = next_server_fence(u64::try_from(highest).unwrap_or(0), now);
        let number = number.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
        let next = number.saturating_sub(revision).max(1);
        let is_good = |found: i64| {
            found.saturating_add(BEHIND_MAX) >= next && found.saturating_add(revision) >= highest
        };
        (!found.is_some_and(is_good)).then_some(next)
    }
}

/// The value of the key that says `base`.
pub(crate) fn text(base: i64) -> Bytes {
    base.to_string().into()
}

fn read(value: &[u8]) -> Option<i64> {
    let base: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    i64::try_from(base).ok().filter(|_| (1..=SERVER_FENCE_MAX).contains(&base))
}

impl Shared {
    /// Reads the base, if this process has not seen it yet.
    pub(crate) async fn need_epoch(&self) -> Result<(), Trouble> {
        if self.epoch.base() == 0 {
            let found = self.calls.call(RangeRequest::one(self.keys.epoch())).await?;
            let revision = found.header.map_or(0, |header| header.revision);
            self.see_epoch(Some(found), revision).await?;
        }
        Ok(())
    }

    /// Takes note of the base as it was found at `revision`, and writes it anew where it is missing or behind. The base
    /// that is in force.
    pub(crate) async fn see_epoch(
        &self,
        found: Option<RangeResponse>,
        revision: i64,
    ) -> Result<i64, Trouble> {
        let (mut found, mut revision) = (first(found), revision);
        for _ in 0..TRIES {
            let known = found.as_ref().and_then(|kv| read(&kv.value));
            let Some(next) = self.epoch.next(known, revision, UnixMillis::now()) else {
                return Ok(self.epoch.learn(known.unwrap_or_default(), revision));
            };
            let (key, written) = (self.keys.epoch(), found.map_or(0, |kv| kv.mod_revision));
            let answer = self.calls.call(TxnRequest {
                compare: vec![Compare::modified(key.clone(), written)],
                success: vec![Op::put(key.clone(), text(next), 0)],
                failure: vec![Op::range(RangeRequest::one(key))],
            });
            let answer = answer.await?;
            revision = answer.revision();
            if answer.succeeded {
                return Ok(self.epoch.learn(next, revision));
            }
            found = first(answer.ranges().next());
        }
        Err(self.trouble(Cause::NotNow, "others write the base of fences all the time", ""))
    }

    /// An attempt was void: the session's own key or the base has changed since we last looked, as they were found to
    /// have at `revision`. Where the session is gone altogether, so is the seat.
    pub(crate) async fn see_void(
        &self,
        seat: &Seat,
        now: &Now,
        found: (Option<RangeResponse>, Option<RangeResponse>),
        revision: i64,
    ) -> Result<(), Stop> {
        match self.catch_up(seat, now, found, revision).await {
            Err(trouble) if trouble.cause() == Cause::NoLease => Err(self.without_lease(seat)),
            seen => Ok(seen?),
        }
    }

    async fn catch_up(
        &self,
        seat: &Seat,
        now: &Now,
        (guard, epoch): (Option<RangeResponse>, Option<RangeResponse>),
        revision: i64,
    ) -> Result<(), Trouble> {
        self.see_guard(&now.session, guard).await?;
        let base = self.see_epoch(epoch, revision).await?;
        if base == now.base {
            return Ok(());
        }
        // A request that may have created the key said the old base. It is shut out first, and what it did is then seen.
        if now.stray {
            self.renew_guard(&now.session).await?;
            seat.no_strays();
        } else {
            seat.rebase(base);
        }
        Ok(())
    }
}

fn first(found: Option<RangeResponse>) -> Option<KeyValue> {
    found.and_then(|found| found.kvs.into_iter().next())
}

#[cfg(test)]
mod tests {
    use tenure_core::fence::EPOCH;

    use super::*;

    fn at(millis: u64) -> UnixMillis {
        UnixMillis(EPOCH.0 + millis)
    }

    fn clock(millis: i64) -> i64 {
        millis * PER_MILLI as i64
    }

    /// Where there is none, the number at the present revision is what the clock says.
    #[test]
    fn a_first_base_is_the_clock() {
        let epoch = Epoch::default();
        assert_eq!(epoch.next(None, 700, at(5_000)), Some(clock(5_000) - 700));
        assert_eq!(epoch.next(None, 700, UnixMillis(0)), Some(1), "a clock before all fences");
    }

    /// One that is behind the clock is raised, one that is near it or ahead of it is left alone.
    #[test]
    fn a_base_that_is_behind() {
        let epoch = Epoch::default();
        let next = |base| epoch.next(Some(base), 700, at(5_000));
        assert_eq!(next(clock(3_999) - 700), Some(clock(5_000) - 700));
        assert_eq!((next(clock(4_000) - 700), next(clock(9_000))), (None, None));
    }

    /// A cluster that went back, with or without its base, goes on above all that is known, whatever the clock says.
    #[test]
    fn nothing_is_granted_again() {
        let epoch = Epoch::default();
        epoch.learn(clock(5_000), 900);
        assert_eq!(epoch.next(Some(clock(5_000)), 900, at(5_000)), None);
        let above = Some(clock(5_000) + 900 + 1 - 700);
        assert_eq!(epoch.next(Some(clock(5_000)), 700, at(5_000)), above, "a lower revision");
        assert_eq!(epoch.next(None, 700, at(1)), above, "a clock that was set back");
    }

    /// What is no base is none, and is written over.
    #[test]
    fn other_values() {
        assert_eq!(read(&text(7)), Some(7));
        assert_eq!([&b""[..], b"0", b"-7", b"x", b"\xff"].map(read), [None; 5]);
        assert_eq!(read(&text(i64::MAX)), None, "no clock could have reached it");
    }
}

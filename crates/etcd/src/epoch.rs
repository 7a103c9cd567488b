//! The base of fences: fences keep rising when the cluster's data is lost, or when the locks come from
//! another engine.
//!
//! The number of a grant is the *base* plus the revision at which its claim's key was created. The base is
//! stored at the server, in one key. It is chosen so that numbers are on the scale of the wall clock
//! ([`next_server_fence`]), like those of all engines. In: the base as it was found. Out: the base to use,
//! written again if the one that was found is missing or behind.
//!
//! - Every request that creates a claim is bound to the value of that key. So a claim's base is the one that
//!   was in force at the claim's revision, and the claim's value contains it. Bases only rise, and claims are
//!   granted in the order of their revisions: fences rise.
//! - A cluster that lost its data has no base, or another one: no request that is bound to the old base
//!   creates a claim.
//! - A base is never above the clock when it is written, and revisions rise more slowly than the clock's
//!   scale. So numbers stay below the clock, and a fleet can move to another engine.
//! - A value that is no base is refused, and never overwritten: the numbers under the former base may have been
//!   above the clock.
//! - Revisions rise far more slowly than the clock, so an old base is behind. A new session then writes the
//!   base again. A fleet that comes from another engine, or whose backup was restored, begins new sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use tenure_core::fence::{PER_MILLI, SERVER_FENCE_MAX, next_server_fence};
use tenure_core::time::UnixMillis;

use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::Link;
use crate::proto::{Compare, Op, RangeRequest, RangeResponse, TxnRequest};

/// How far numbers may be behind the clock when a session begins: one second. Every change costs each process
/// that acquires a lock meanwhile a few requests, so there is at most one change in that time.
const BEHIND_MAX: i64 = 1_000 * PER_MILLI as i64;
/// How often to try to write a base while others write it at the same time.
const TRIES: u32 = 16;

/// The numbers that this process knows.
#[derive(Debug, Default)]
struct Numbers {
    /// The base that was last seen; zero before that.
    base: AtomicI64,
    /// The highest number that may have been granted: no lower number is granted again.
    highest: AtomicI64,
}

impl Numbers {
    fn accept(&self, base: i64, revision: i64) -> i64 {
        self.base.store(base, Ordering::Release);
        self.highest.fetch_max(base.saturating_add(revision), Ordering::AcqRel);
        base
    }

    /// The base to write, if the one that was found at `revision` is missing or behind.
    fn next(&self, found: Option<i64>, revision: i64, now: UnixMillis) -> Option<i64> {
        let highest = self.highest.load(Ordering::Acquire);
        let number = next_server_fence(u64::try_from(highest).unwrap_or(0), now);
        let number = number.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
        let next = number.saturating_sub(revision).max(1);
        let is_good = |found: i64| {
            found.saturating_add(BEHIND_MAX) >= next && found.saturating_add(revision) >= highest
        };
        (!found.is_some_and(is_good)).then_some(next)
    }
}

/// The base of fences at the server, and what this process knows about it.
#[derive(Debug)]
pub(crate) struct Epoch {
    calls: Arc<Link>,
    key: Bytes,
    numbers: Numbers,
}

impl Epoch {
    pub(crate) fn new(calls: Arc<Link>, keys: &Keys) -> Self {
        Epoch { calls, key: keys.epoch(), numbers: Numbers::default() }
    }

    pub(crate) fn base(&self) -> i64 {
        self.numbers.base.load(Ordering::Acquire)
    }

    pub(crate) fn highest(&self) -> i64 {
        self.numbers.highest.load(Ordering::Acquire)
    }

    /// Records a number that was granted, or could have been.
    pub(crate) fn record_number(&self, number: i64) {
        self.numbers.highest.fetch_max(number, Ordering::AcqRel);
    }

    /// Forgets the base, so that it is read again before it is used.
    pub(crate) fn reset(&self) {
        self.numbers.base.store(0, Ordering::Release);
    }

    /// Records a base that another process has written. A base that was read since may be newer.
    pub(crate) fn record_base(&self, value: &[u8]) {
        if let Some(base) = parse(value) {
            self.numbers.base.fetch_max(base, Ordering::AcqRel);
        }
    }

    /// Reads the base, if this process has not seen it yet.
    pub(crate) async fn ensure_known(&self) -> Result<(), EngineError> {
        if self.base() == 0 {
            let found = self.calls.call(RangeRequest::one(self.key.clone())).await?;
            let revision = found.header.map_or(0, |header| header.revision);
            self.ensure_base(Some(found), revision).await?;
        }
        Ok(())
    }

    /// Records the base as it was found at `revision`, and writes it again if it is missing or behind.
    /// Returns the base that is in force.
    pub(crate) async fn ensure_base(
        &self,
        found: Option<RangeResponse>,
        revision: i64,
    ) -> Result<i64, EngineError> {
        let (mut found, mut revision) = (found.and_then(RangeResponse::first), revision);
        for _ in 0..TRIES {
            let known = match &found {
                Some(kv) => Some(parse(&kv.value).ok_or_else(|| self.unreadable())?),
                None => None,
            };
            let Some(next) = self.numbers.next(known, revision, UnixMillis::now()) else {
                return Ok(self.numbers.accept(known.unwrap_or_default(), revision));
            };
            let written = found.map_or(0, |kv| kv.mod_revision);
            let answer = self.calls.call(TxnRequest {
                compare: vec![Compare::modified(self.key.clone(), written)],
                success: vec![Op::put(self.key.clone(), text(next), 0)],
                failure: vec![Op::range(RangeRequest::one(self.key.clone()))],
            });
            let answer = answer.await?;
            revision = answer.revision();
            if answer.succeeded {
                return Ok(self.numbers.accept(next, revision));
            }
            found = answer.ranges().next().and_then(RangeResponse::first);
        }
        Err(self.calls.error(ErrorKind::Busy, "others write the base of fences all the time"))
    }

    /// The former base is unknown, and numbers may have been above the clock. A new base at the clock could let
    /// fences fall, so an operator has to decide.
    fn unreadable(&self) -> EngineError {
        let key = String::from_utf8_lossy(&self.key);
        let what = format_args!(
            "the value of `{key}` is no base of fences: put back the former value, or delete the key if no fence \
             was ahead of the clocks"
        );
        self.calls.error(ErrorKind::Refused, what)
    }
}

/// The value of the key for `base`.
pub(crate) fn text(base: i64) -> Bytes {
    base.to_string().into()
}

fn parse(value: &[u8]) -> Option<i64> {
    let base: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    i64::try_from(base).ok().filter(|_| (1..=SERVER_FENCE_MAX).contains(&base))
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

    /// Without a base, the number at the present revision is that of the clock.
    #[test]
    fn a_first_base_is_the_clock() {
        let numbers = Numbers::default();
        assert_eq!(numbers.next(None, 700, at(5_000)), Some(clock(5_000) - 700));
        assert_eq!(numbers.next(None, 700, UnixMillis(0)), Some(1), "a clock before all fences");
    }

    /// A base that is behind the clock is raised; a base near the clock or ahead of it stays.
    #[test]
    fn a_base_behind_the_clock() {
        let numbers = Numbers::default();
        let next = |base| numbers.next(Some(base), 700, at(5_000));
        assert_eq!(next(clock(3_999) - 700), Some(clock(5_000) - 700));
        assert_eq!((next(clock(4_000) - 700), next(clock(9_000))), (None, None));
    }

    /// After a cluster lost data, with or without its base, numbers continue above all known ones, whatever
    /// the clock shows.
    #[test]
    fn nothing_is_granted_again() {
        let numbers = Numbers::default();
        numbers.accept(clock(5_000), 900);
        assert_eq!(numbers.next(Some(clock(5_000)), 900, at(5_000)), None);
        let above = Some(clock(5_000) + 900 + 1 - 700);
        assert_eq!(numbers.next(Some(clock(5_000)), 700, at(5_000)), above, "a lower revision");
        assert_eq!(numbers.next(None, 700, at(1)), above, "a clock that was set back");
    }

    /// Only a value that a clock could have reached is a base.
    #[test]
    fn values_that_are_no_base() {
        assert_eq!(parse(&text(7)), Some(7));
        assert_eq!([&b""[..], b"0", b"-7", b"x", b"\xff"].map(parse), [None; 5]);
        assert_eq!(parse(&text(i64::MAX)), None, "no clock could have reached it");
    }
}

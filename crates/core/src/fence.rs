//! The fence: a number that only rises, and the check a resource makes with it.

use std::collections::HashMap;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::UnixMillis;

/// How many low bits of a fence count local hand-offs within one grant of the server.
const LOCAL_BITS: u32 = 13;
/// The most hand-offs that one grant can number; then the server must be asked again.
pub(crate) const LOCAL_MAX: u64 = (1 << LOCAL_BITS) - 1;
/// The largest number a server may give: what is left of a positive `i64`.
pub const SERVER_FENCE_MAX: u64 = (1 << (63 - LOCAL_BITS)) - 1;
/// 2025-01-01, where the clock of the fences starts.
pub const EPOCH: UnixMillis = UnixMillis(1_735_689_600_000);
/// Fences per millisecond that a clock-driven counter may give without running ahead of its clock.
pub const PER_MILLI: u64 = 256;

/// How far ahead of our clock a server's clock may be: more than any clock that is merely wrong.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How many resources a [`FenceCheck`] remembers: about 10 MB.
const RESOURCES_MAX: usize = 100_000;

/// A number that comes with every grant, larger than that of every earlier grant of the same key.
///
/// Give it to the resource that the lock protects, and let the resource refuse a smaller one than
/// it has seen ([`FenceCheck`]): then a holder that was paused past its lease can do no harm.
/// Positive as an `i64`, so any database can store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// What a lock without fencing carries. A [`FenceCheck`] never accepts it.
    pub const NONE: Fence = Fence(0);

    /// The first fence of a grant with the server's `number`.
    pub fn from_server(number: u64) -> Self {
        Fence(number << LOCAL_BITS)
    }

    /// The server's number, without local hand-offs.
    pub fn server(self) -> u64 {
        self.0 >> LOCAL_BITS
    }

    /// The fence of the next local holder within the same grant, while there is one to give.
    pub(crate) fn next_local(self) -> Option<Self> {
        if self == Fence::NONE {
            return Some(self);
        }
        (self.0 & LOCAL_MAX < LOCAL_MAX).then_some(Fence(self.0 + 1))
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The fence with this number, as it was written down by [`get`](Self::get).
    pub const fn from_raw(number: u64) -> Self {
        Fence(number)
    }

    /// Whether an engine can have granted this fence by `now`.
    ///
    /// Fences keep pace with the clock, so a number that is more than a year ahead of it is a mistake, and so is
    /// [`Fence::NONE`]. Ask this of a fence that comes from outside, before a [`FenceCheck`] remembers it: a number
    /// that is too high would refuse every holder to come.
    pub fn is_plausible(self, now: UnixMillis) -> bool {
        let ahead = u64::try_from(CLOCK_AHEAD_MAX.as_millis()).unwrap_or(u64::MAX);
        let highest = by_clock(UnixMillis(now.0.saturating_add(ahead))).min(SERVER_FENCE_MAX);
        self != Fence::NONE && self.server() <= highest
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Fence {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Fence)
    }
}

/// The number after `last` for an engine that counts by itself: one more, or what the wall clock
/// says if that is further on. So it goes on rising when the count is lost, as long as the clock
/// was not set back beyond the loss.
///
/// `None` if `last` is no number that a count could have reached.
pub fn next_server_fence(last: u64, now: UnixMillis) -> Option<u64> {
    let next = last.checked_add(1)?.max(by_clock(now)).max(1);
    (next <= SERVER_FENCE_MAX).then_some(next)
}

fn by_clock(now: UnixMillis) -> u64 {
    now.0.saturating_sub(EPOCH.0).saturating_mul(PER_MILLI)
}

/// Remembers the highest fence seen for each resource, and refuses older ones.
///
/// This is the check for resources that live in this process's memory. A resource in a database
/// makes the same comparison in its own statement:
/// `UPDATE t SET …, fence = $1 WHERE id = $2 AND fence <= $1`.
///
/// ```
/// use tenure::{Fence, FenceCheck};
///
/// let check = FenceCheck::new();
/// let (older, newer) = (Fence::from_raw(7), Fence::from_raw(8));
/// assert!(check.accept("account:1", older).is_ok());
/// assert!(check.accept("account:1", newer).is_ok());
/// let stale = check.accept("account:1", older).unwrap_err();
/// assert_eq!(stale.to_string(), "stale fence 7 for `account:1`: 8 has been seen");
/// ```
///
/// It remembers a limited number of resources ([`with_limit`](Self::with_limit)). When there are more, it forgets the half
/// with the oldest fences, and from then on refuses every fence older than a forgotten one for each resource that it
/// does not know. So it never accepts an older fence than it has seen. It may refuse a holder that is not stale, if that
/// one took its lock before the forgotten ones and shows up for the first time now; a new lock has a new fence, which
/// is accepted. So all resources of one check should be locked at one engine, or at servers whose clocks agree.
#[derive(Debug)]
pub struct FenceCheck {
    limit: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    fences: HashMap<String, Fence>,
    /// The highest fence that was forgotten.
    forgotten: Fence,
}

impl Default for FenceCheck {
    fn default() -> Self {
        Self::with_limit(RESOURCES_MAX)
    }
}

impl FenceCheck {
    /// A check that has seen nothing, and remembers at most 100,000 resources.
    pub fn new() -> Self {
        Self::default()
    }

    /// A check that has seen nothing, and remembers at most `resources` of them.
    pub fn with_limit(resources: usize) -> Self {
        let seen = Seen { fences: HashMap::new(), forgotten: Fence::NONE };
        FenceCheck { limit: resources, seen: Mutex::new(seen) }
    }

    /// Accepts `fence` for `resource` if no higher one has been seen, and remembers it.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] if a higher fence has been seen, or if `fence` is [`Fence::NONE`].
    pub fn accept(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        let mut seen = self.seen();
        seen.check(resource, fence)?;
        seen.fences.insert(resource.into(), fence);
        if seen.fences.len() > self.limit {
            seen.forget_older_half();
        }
        Ok(())
    }

    /// Whether [`accept`](Self::accept) would accept `fence` now. Remembers nothing.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] as for [`accept`](Self::accept).
    pub fn check(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        self.seen().check(resource, fence)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn check(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        let seen = self.fences.get(resource).copied().unwrap_or(self.forgotten);
        if fence < seen || fence == Fence::NONE {
            return Err(StaleFence { resource: resource.into(), fence, seen });
        }
        Ok(())
    }

    /// Half at a time, so that the work of finding the oldest is spread over many requests.
    fn forget_older_half(&mut self) {
        let mut fences: Vec<Fence> = self.fences.values().copied().collect();
        let middle = fences.len() / 2;
        let (_, median, _) = fences.select_nth_unstable(middle);
        self.forgotten = *median;
        self.fences.retain(|_, fence| *fence > *median);
    }
}

/// A fence was refused: a newer holder has been here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stale fence {fence} for `{resource}`: {seen} has been seen")]
pub struct StaleFence {
    resource: String,
    fence: Fence,
    seen: Fence,
}

impl StaleFence {
    /// The fence that was refused.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The highest fence that the resource has seen, or that the [`FenceCheck`] has forgotten.
    pub fn seen(&self) -> Fence {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's number and all hand-offs within it stay below the next number, and positive.
    #[test]
    fn local_fences_fit_between_two_grants() {
        let mut fence = Fence::from_server(7);
        let mut given = 0;
        while let Some(next) = fence.next_local() {
            assert!(next > fence);
            (fence, given) = (next, given + 1);
        }
        assert_eq!(given, LOCAL_MAX);
        assert!(fence < Fence::from_server(8));
        assert!(i64::try_from(Fence::from_server(SERVER_FENCE_MAX).get() | LOCAL_MAX).is_ok());
    }

    /// The count rises by itself, catches up with the clock, and survives its own loss.
    #[test]
    fn server_fences_rise_with_count_and_clock() {
        let now = UnixMillis(EPOCH.0 + 1_000);
        assert_eq!(next_server_fence(0, now), Some(256_000));
        assert_eq!(next_server_fence(256_000, now), Some(256_001));
        assert_eq!(next_server_fence(0, UnixMillis(0)), Some(1));
    }

    /// A count that no clock could have reached is refused, not wrapped.
    #[test]
    fn t26_a_corrupt_count_gives_no_fence() {
        assert_eq!(next_server_fence(u64::MAX, UnixMillis::now()), None);
        assert_eq!(next_server_fence(SERVER_FENCE_MAX, UnixMillis::now()), None);
    }

    /// What a clock can have given by now is plausible, also by one that is wrong by months. Nothing else is.
    #[test]
    fn fences_are_plausible_up_to_a_year_ahead() {
        let (now, day) = (UnixMillis::now(), 24 * 60 * 60 * 1000);
        let at = |days: u64| Fence::from_server(by_clock(UnixMillis(now.0 + days * day)));
        assert!(at(0).is_plausible(now) && at(364).is_plausible(now));
        assert!(Fence::from_raw(1).is_plausible(now));
        assert!(!at(367).is_plausible(now));
        for number in [0, i64::MAX.cast_unsigned(), i64::MAX.cast_unsigned() + 1, u64::MAX] {
            assert!(!Fence::from_raw(number).is_plausible(now), "{number}");
        }
        let last_day = UnixMillis(EPOCH.0 + SERVER_FENCE_MAX / PER_MILLI);
        assert!(!Fence::from_raw(i64::MAX.cast_unsigned() + 1).is_plausible(last_day));
    }

    /// A check remembers no more resources than its limit, and never accepts an older fence than it has
    /// accepted before, whatever it has forgotten meanwhile. A new fence is always accepted.
    #[test]
    fn a_full_check_stays_small_and_strict() {
        let (check, mut highest) = (FenceCheck::with_limit(16), HashMap::new());
        let mut number = 7_u64;
        for turn in 1..20_000_u64 {
            // Any numbers will do, if they are the same in each run.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let resource = (number >> 33) % 100;
            let fence = Fence::from_raw(turn - ((number >> 40) % 40).min(turn - 1));
            let before = highest.get(&resource).copied().unwrap_or(Fence::NONE);
            if check.accept(&resource.to_string(), fence).is_ok() {
                assert!(fence >= before, "{fence} accepted after {before}");
                highest.insert(resource, fence);
            }
            assert!(check.seen().fences.len() <= 16);
            check.accept("new", Fence::from_raw(turn)).unwrap();
        }
        assert!(highest.len() == 100 && check.accept("unknown", Fence::from_raw(1)).is_err());
    }

    /// Asking whether a fence would be accepted changes nothing.
    #[test]
    fn a_check_remembers_nothing() {
        let check = FenceCheck::new();
        check.check("r", Fence::from_raw(9)).unwrap();
        check.accept("r", Fence::from_raw(8)).unwrap();
        assert!(check.check("r", Fence::from_raw(7)).is_err());
    }

    /// A lock without fencing never passes a check, and local hand-offs leave it so.
    #[test]
    fn no_fence_is_never_accepted() {
        assert!(FenceCheck::new().accept("r", Fence::NONE).is_err());
        assert_eq!(Fence::NONE.next_local(), Some(Fence::NONE));
    }
}

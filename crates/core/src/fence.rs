//! Fences: numbers that only rise, and the check that a resource makes with them.

use std::collections::HashMap;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::UnixMillis;

/// The number of low bits of a fence that count local hand-overs within one grant of the server.
const LOCAL_BITS: u32 = 13;
/// The most local hand-overs of one grant; then the server must grant again.
pub(crate) const LOCAL_MAX: u64 = (1 << LOCAL_BITS) - 1;
/// The largest fence number of a server: the remaining bits of a positive `i64`.
pub const SERVER_FENCE_MAX: u64 = (1 << (63 - LOCAL_BITS)) - 1;
/// 2025-01-01, the origin of fences that follow the wall clock.
pub const EPOCH: UnixMillis = UnixMillis(1_735_689_600_000);
/// Fence numbers per millisecond that a clock-driven counter can use without running ahead of its clock.
pub const PER_MILLI: u64 = 256;

/// The most that a server's clock may be ahead of ours. A clock that is set to the time of another place is
/// wrong by up to 26 hours. More would only prolong the harm that an accepted number can do.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// How many resources a [`FenceCheck`] remembers by default: about 10 MB.
const RESOURCES_MAX: usize = 100_000;

/// The number of a grant, higher than that of every earlier grant of the same key.
///
/// Pass it to the resource that the lock protects, and let the resource reject a number lower than the
/// highest it has seen ([`FenceCheck`]). Then a holder that was paused past the end of its lease can do no
/// harm. It is positive as an `i64`, so any database can store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// The fence of a lock without fencing. A [`FenceCheck`] never accepts it.
    pub const NONE: Fence = Fence(0);

    /// The first fence of a grant with the server's `number`.
    pub fn from_server(number: u64) -> Self {
        Fence(number << LOCAL_BITS)
    }

    /// The server's number, without local hand-overs.
    pub fn server(self) -> u64 {
        self.0 >> LOCAL_BITS
    }

    /// The fence of the next local holder within the same grant; `None` if all numbers of the grant are used.
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

    /// The number as a parameter of a database statement. Every fence that an engine grants fits; a larger
    /// number, which only [`from_raw`](Self::from_raw) can make, becomes `i64::MAX`.
    pub const fn as_i64(self) -> i64 {
        if self.0 > i64::MAX.cast_unsigned() { i64::MAX } else { self.0.cast_signed() }
    }

    /// The fence with this number, as stored from [`get`](Self::get).
    pub const fn from_raw(number: u64) -> Self {
        Fence(number)
    }

    /// How far the server's number is ahead of the clock `now`.
    pub(crate) fn ahead_of(self, now: UnixMillis) -> Duration {
        Duration::from_millis(self.server().saturating_sub(by_clock(now)) / PER_MILLI)
    }

    /// Whether an engine can have granted this fence by `now`.
    ///
    /// Fences follow the clock, so a number more than two days ahead of it is a mistake, and so is
    /// [`Fence::NONE`]. Check a fence from an untrusted source with this before a [`FenceCheck`] remembers
    /// it: a number that is too high would reject all later holders, until the clock has reached it.
    ///
    /// A server whose clock was ahead by more than that has a count which stays ahead: its fences are not
    /// plausible until the clock has caught up.
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

/// The number after `last`, for an engine with its own counter: one more, or the number of the wall clock if
/// that is higher. So fences keep rising after the counter is lost, unless the clock is set back too.
///
/// `None` if `last` is not a possible counter value.
pub fn next_server_fence(last: u64, now: UnixMillis) -> Option<u64> {
    let next = last.checked_add(1)?.max(by_clock(now)).max(1);
    (next <= SERVER_FENCE_MAX).then_some(next)
}

fn by_clock(now: UnixMillis) -> u64 {
    now.0.saturating_sub(EPOCH.0).saturating_mul(PER_MILLI)
}

/// Remembers the highest fence of each resource, and rejects lower ones.
///
/// This is the check for resources in the memory of this process. For a resource in a database, make the same
/// comparison in the statement: `UPDATE t SET …, fence = $1 WHERE id = $2 AND fence <= $1`.
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
/// It remembers a limited number of resources ([`with_limit`](Self::with_limit)). Above that, it forgets the
/// half with the lowest fences. From then on it rejects, for each resource that it does not know, every fence
/// lower than the highest forgotten one. So it never accepts a fence lower than one it has accepted before
/// for the resource. It may reject a holder that is not stale, if it acquired its lock before the forgotten
/// ones and uses a resource that the check does not know. A new lock has a new fence, which is accepted. So
/// all resources of one check should be locked on one engine, or on servers whose clocks agree. And a caller
/// that can choose fences freely can make it reject all of them: see [`Fence::is_plausible`].
#[derive(Debug)]
pub struct FenceCheck {
    limit: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    fences: HashMap<String, Marks>,
    /// The highest fence that was forgotten.
    forgotten: Fence,
}

/// The highest fences of one resource.
#[derive(Clone, Copy, Debug)]
struct Marks {
    written: Fence,
    read: Fence,
}

impl Marks {
    fn highest(self) -> Fence {
        self.written.max(self.read)
    }
}

impl Default for FenceCheck {
    fn default() -> Self {
        Self::with_limit(RESOURCES_MAX)
    }
}

impl FenceCheck {
    /// An empty check that remembers at most 100,000 resources.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty check that remembers at most `resources` resources.
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
        refuse_below(seen.marks(resource).highest(), resource, fence)?;
        seen.remember(resource, Marks { written: fence, read: Fence::NONE }, self.limit);
        Ok(())
    }

    /// Accepts the `fence` of a reader for `resource` if no writer with a higher one has been seen, and remembers
    /// it. From then on [`accept`](Self::accept) rejects a writer with a lower fence: readers that came after it
    /// have seen the resource as it was. Readers do not reject each other.
    ///
    /// A resource that only checks its writers loses no update either; its readers may read a value that a stale
    /// writer has not written yet.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] if a writer with a higher fence has been seen, or if `fence` is [`Fence::NONE`].
    ///
    /// ```
    /// use tenure::{Fence, FenceCheck};
    ///
    /// let (check, [writer, reader, other]) = (FenceCheck::new(), [7, 8, 9].map(Fence::from_raw));
    /// assert!(check.accept_read("catalog", other).is_ok());
    /// assert!(check.accept_read("catalog", reader).is_ok(), "no writer came in between");
    /// assert!(check.accept("catalog", writer).is_err(), "it was paused, and readers came after it");
    /// ```
    pub fn accept_read(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        let mut seen = self.seen();
        let marks = seen.marks(resource);
        refuse_below(marks.written, resource, fence)?;
        seen.remember(resource, Marks { read: marks.read.max(fence), ..marks }, self.limit);
        Ok(())
    }

    /// Whether [`accept`](Self::accept) would accept `fence` now. Does not remember it.
    ///
    /// # Errors
    ///
    /// [`StaleFence`], as for [`accept`](Self::accept).
    pub fn check(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        refuse_below(self.seen().marks(resource).highest(), resource, fence)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// The fences of a resource. A forgotten one may have been a writer's.
    fn marks(&self, resource: &str) -> Marks {
        let forgotten = Marks { written: self.forgotten, read: Fence::NONE };
        self.fences.get(resource).copied().unwrap_or(forgotten)
    }

    fn remember(&mut self, resource: &str, marks: Marks, limit: usize) {
        self.fences.insert(resource.into(), marks);
        if self.fences.len() > limit {
            self.forget_older_half();
        }
    }

    /// Forgets half at once, so that the cost of finding the lowest fences is spread over many calls.
    fn forget_older_half(&mut self) {
        let mut fences: Vec<Fence> = self.fences.values().map(|marks| marks.highest()).collect();
        let middle = fences.len() / 2;
        let (_, median, _) = fences.select_nth_unstable(middle);
        self.forgotten = *median;
        self.fences.retain(|_, marks| marks.highest() > *median);
    }
}

fn refuse_below(seen: Fence, resource: &str, fence: Fence) -> Result<(), StaleFence> {
    match fence < seen || fence == Fence::NONE {
        true => Err(StaleFence { resource: resource.into(), fence, seen }),
        false => Ok(()),
    }
}

/// A fence was rejected: a newer holder has used the resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stale fence {fence} for `{resource}`: {seen} has been seen")]
pub struct StaleFence {
    resource: String,
    fence: Fence,
    seen: Fence,
}

impl StaleFence {
    /// The fence that was rejected.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The highest fence of the resource, or the highest one that the [`FenceCheck`] has forgotten.
    pub fn seen(&self) -> Fence {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's number and all its local hand-overs stay below the next number, and positive.
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
        let highest = Fence(Fence::from_server(SERVER_FENCE_MAX).get() | LOCAL_MAX);
        assert_eq!((highest.as_i64(), highest.next_local()), (i64::MAX, None));
    }

    /// The counter rises by one, catches up with the clock, and keeps rising after it was lost.
    #[test]
    fn server_fences_rise_with_count_and_clock() {
        let now = UnixMillis(EPOCH.0 + 1_000);
        assert_eq!(next_server_fence(0, now), Some(256_000));
        assert_eq!(next_server_fence(256_000, now), Some(256_001));
        assert_eq!(next_server_fence(0, UnixMillis(0)), Some(1));
    }

    /// An impossible counter value is refused and does not wrap around.
    #[test]
    fn t26_a_corrupt_count_gives_no_fence() {
        assert_eq!(next_server_fence(u64::MAX, UnixMillis::now()), None);
        assert_eq!(next_server_fence(SERVER_FENCE_MAX, UnixMillis::now()), None);
    }

    /// The first fence of the time `hours` after `now`.
    fn fence_in(hours: u64, now: UnixMillis) -> Fence {
        Fence::from_server(by_clock(UnixMillis(now.0 + hours * 60 * 60 * 1000)))
    }

    /// A fence is plausible if a clock can have reached it, also a clock with the time of another place.
    #[test]
    fn fences_are_plausible_up_to_two_days_ahead() {
        let now = UnixMillis::now();
        assert!([0, 26, 47].iter().all(|hours| fence_in(*hours, now).is_plausible(now)));
        assert!(Fence::from_raw(1).is_plausible(now));
        assert!(!fence_in(49, now).is_plausible(now));
        for number in [0, i64::MAX.cast_unsigned(), i64::MAX.cast_unsigned() + 1, u64::MAX] {
            assert!(!Fence::from_raw(number).is_plausible(now), "{number}");
        }
        let last_day = UnixMillis(EPOCH.0 + SERVER_FENCE_MAX / PER_MILLI);
        assert!(!Fence::from_raw(i64::MAX.cast_unsigned() + 1).is_plausible(last_day));
    }

    /// A check remembers no more resources than its limit. It never accepts a fence lower than one it has
    /// accepted before, whatever it has forgotten meanwhile. A new fence is always accepted.
    #[test]
    fn a_full_check_stays_small_and_strict() {
        let (check, mut highest) = (FenceCheck::with_limit(16), HashMap::new());
        let mut number = 7_u64;
        for turn in 1..20_000_u64 {
            // Pseudo-random numbers, the same in each run.
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

    /// Plausible fences that fill a check block the resources that it has forgotten, and those that it never
    /// saw, for two days at most.
    #[test]
    fn what_a_plausible_fence_blocks() {
        let (check, now) = (FenceCheck::with_limit(4), UnixMillis::now());
        let mut ahead = (0..1_000).rev().map(|hours| fence_in(hours, now));
        let highest = ahead.find(|fence| fence.is_plausible(now)).unwrap();
        (0..5).for_each(|n| check.accept(&n.to_string(), highest).unwrap());
        for resource in ["0", "never seen"] {
            assert!(check.check(resource, fence_in(0, now)).is_err(), "{resource}");
            check.check(resource, fence_in(48, now)).unwrap();
        }
    }

    /// `check` remembers nothing.
    #[test]
    fn a_check_remembers_nothing() {
        let check = FenceCheck::new();
        check.check("r", Fence::from_raw(9)).unwrap();
        check.accept("r", Fence::from_raw(8)).unwrap();
        assert!(check.check("r", Fence::from_raw(7)).is_err());
    }

    /// A lock without fencing never passes a check, also after local hand-overs.
    #[test]
    fn no_fence_is_never_accepted() {
        assert!(FenceCheck::new().accept("r", Fence::NONE).is_err());
        assert_eq!(Fence::NONE.next_local(), Some(Fence::NONE));
    }
}

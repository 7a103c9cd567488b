//! The fence: a number that only rises, and the check a resource makes with it.

use std::collections::HashMap;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

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
    let by_clock = now.0.saturating_sub(EPOCH.0).saturating_mul(PER_MILLI);
    let next = last.checked_add(1)?.max(by_clock).max(1);
    (next <= SERVER_FENCE_MAX).then_some(next)
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
#[derive(Debug, Default)]
pub struct FenceCheck {
    seen: Mutex<HashMap<String, Fence>>,
}

impl FenceCheck {
    /// A check that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts `fence` for `resource` if no higher one has been seen, and remembers it.
    ///
    /// # Errors
    ///
    /// [`StaleFence`] if a higher fence has been seen, or if `fence` is [`Fence::NONE`].
    pub fn accept(&self, resource: &str, fence: Fence) -> Result<(), StaleFence> {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.get(resource).copied().unwrap_or(Fence::NONE);
        if fence < seen || fence == Fence::NONE {
            return Err(StaleFence { resource: resource.into(), fence, seen });
        }
        all.insert(resource.into(), fence);
        Ok(())
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

    /// The highest fence that the resource has seen.
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

    /// A lock without fencing never passes a check, and local hand-offs leave it so.
    #[test]
    fn no_fence_is_never_accepted() {
        assert!(FenceCheck::new().accept("r", Fence::NONE).is_err());
        assert_eq!(Fence::NONE.next_local(), Some(Fence::NONE));
    }
}

//! The times that the scripts and all clients agree on.

use std::time::Duration;

/// How long after the end of a lease to ask: the server removes it in the next whole millisecond.
pub(crate) const AFTER_END: Duration = Duration::from_millis(2);
/// A waiter sends a heartbeat at least this often.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// A waiter counts as alive for this many heartbeats: one may be late, and one may be lost. The time is also
/// long enough to notice a lost one, which takes the response time-out.
pub(crate) const HEARTBEATS_GOOD: u32 = 3;

/// A waiter sends its first heartbeat after this; before that its ticket's timestamp proves it is alive. The
/// scripts get it as a constant.
pub(crate) const FIRST_HEARTBEAT_AFTER: Duration = Duration::from_millis(500);

/// How long a subscribed waiter counts as alive after a heartbeat.
pub(crate) fn waiter_lifetime(response_timeout: Duration) -> Duration {
    (HEARTBEAT * HEARTBEATS_GOOD).max(HEARTBEAT * 2 + response_timeout)
}

/// How long a waiter counts as alive after its ticket.
pub(crate) fn lifetime_at_first(response_timeout: Duration) -> Duration {
    waiter_lifetime(response_timeout) + FIRST_HEARTBEAT_AFTER
}

/// Whole milliseconds, rounded up: a ttl is never shorter than the time that we count with.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

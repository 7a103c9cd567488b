//! The clock, and the arithmetic of leases. Nothing else in the project reads a clock.
//!
//! In: a request's send time and a ttl. Out: the moment until which a lease may be relied on.
//!
//! Our clock counts the time a machine sleeps (`CLOCK_BOOTTIME`), since a server's does too:
//! `std::time::Instant` stands still through a suspend on Linux and would call a lease alive that
//! ended hours ago. Timers do sleep through a suspend, so every sleep here looks at the clock at
//! least once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use crate::bound::Bounds;

/// How long a sleep may go without a look at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A moment on a [`Clock`]. Comparable only with moments of the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// A moment that never comes.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment and `by` more; a sum that does not fit is [`Time::NEVER`].
    pub fn after(self, by: Duration) -> Self {
        Time(self.0.saturating_add(nanos(by)))
    }

    /// This moment less `by`, not before the clock's origin.
    /// A moment that never comes does not come earlier either.
    pub fn before(self, by: Duration) -> Self {
        match self {
            Time::NEVER => Time::NEVER,
            Time(at) => Time(at.saturating_sub(nanos(by))),
        }
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a lease must not be relied on for at its end: one per cent of the ttl for clocks that run
/// at different speeds, and two milliseconds for servers that count in whole ones.
pub fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a lease of `ttl` may be relied on that was asked for, or renewed, at `sent_at`.
///
/// The server's ttl starts somewhere between our sending and its reply, so counting from before the
/// request left can only make our view too short.
pub fn valid_until(sent_at: Time, ttl: Duration) -> Time {
    sent_at.after(ttl.saturating_sub(margin(ttl)))
}

/// Where the time comes from: the system, or a test.
///
/// ```
/// use std::time::Duration;
/// use tenure::time::Clock;
///
/// let clock = Clock::manual();
/// let start = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().since(start), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual: Option<Arc<Manual>>,
}

/// A clock that stands still until it is told to move.
#[derive(Debug)]
struct Manual {
    now: Mutex<u64>,
    moved: watch::Sender<()>,
}

impl Clock {
    /// The machine's clock, which counts suspend.
    pub fn system() -> Self {
        Clock { manual: None }
    }

    /// A clock for tests: it moves only by [`advance`](Self::advance), and so do all sleeps on it.
    pub fn manual() -> Self {
        let manual = Manual {
            now: Mutex::new(nanos(Duration::from_secs(1))),
            moved: watch::Sender::new(()),
        };
        Clock { manual: Some(Arc::new(manual)) }
    }

    /// Moves a manual clock forward and wakes whoever sleeps on it. Does nothing to the system's.
    pub fn advance(&self, by: Duration) {
        let Some(manual) = &self.manual else { return };
        *manual.now.lock().unwrap_or_else(PoisonError::into_inner) += nanos(by);
        manual.moved.send_replace(());
    }

    /// Whether it moves by hand only.
    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        match &self.manual {
            Some(manual) => Time(*manual.now.lock().unwrap_or_else(PoisonError::into_inner)),
            None => boot_time(),
        }
    }

    /// Sleeps until `at`, also through a suspend of the machine (it then wakes within a second of the resume).
    pub async fn sleep_until(&self, at: Time) {
        match &self.manual {
            Some(manual) => manual.sleep_until(at).await,
            None => sleep_until_system(at).await,
        }
    }

    /// Sleeps for `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now().after(duration)).await;
    }
}

impl Manual {
    async fn sleep_until(&self, at: Time) {
        let mut moved = self.moved.subscribe();
        // The sender lives as long as `self`, so `changed` cannot fail.
        while Time(*self.now.lock().unwrap_or_else(PoisonError::into_inner)) < at {
            if moved.changed().await.is_err() {
                return;
            }
        }
    }
}

async fn sleep_until_system(at: Time) {
    loop {
        let left = at.since(boot_time());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

#[cfg(unix)]
fn boot_time() -> Time {
    let now = rustix::time::clock_gettime(COUNTS_SUSPEND);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let subsec = u64::try_from(now.tv_nsec).unwrap_or(0);
    Time(secs.saturating_mul(1_000_000_000).saturating_add(subsec))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const COUNTS_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// Elsewhere the monotonic clock runs on while the machine sleeps.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const COUNTS_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// Windows' `Instant` counts suspend.
#[cfg(not(unix))]
fn boot_time() -> Time {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    Time(nanos(origin.elapsed()).saturating_add(1_000_000_000))
}

/// The wall clock, in milliseconds since 1970. For people and for fences; no lease depends on it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// What the wall clock shows.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UnixMillis(since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
    }

    /// This moment less `by`.
    pub fn before(self, by: Duration) -> Self {
        UnixMillis(self.0.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long ago this was by the wall clock; zero if it lies ahead.
    pub fn elapsed(self) -> Duration {
        Duration::from_millis(UnixMillis::now().0.saturating_sub(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease may be relied on for a little less than its ttl, counted from the send.
    #[test]
    fn validity_is_short_of_the_ttl_by_the_margin() {
        let sent = Time::from_nanos(1_000);
        let until = valid_until(sent, Duration::from_secs(30));
        assert_eq!(until.since(sent), Duration::from_millis(30_000 - 300 - 2));
    }

    /// A ttl that the margin eats up is valid for no time at all.
    #[test]
    fn a_tiny_ttl_is_never_valid() {
        let sent = Time::from_nanos(1_000);
        assert_eq!(valid_until(sent, Duration::from_millis(2)), sent);
    }

    /// Sums that do not fit mean "never", and never stays never.
    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::from_nanos(5).after(Duration::MAX), Time::NEVER);
        assert_eq!(Time::NEVER.before(Duration::from_secs(1)), Time::NEVER);
    }

    /// A sleep on a manual clock ends when the clock is moved past it, and not before.
    #[tokio::test]
    async fn manual_sleep_follows_the_clock() {
        let clock = Clock::manual();
        let other = clock.clone();
        let sleep = tokio::spawn(async move { other.sleep(Duration::from_secs(10)).await });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        sleep.await.unwrap();
    }
}

//! The clock, and the arithmetic of leases. No other module reads the monotonic or the wall clock directly.
//!
//! In: the send time of a request, and a ttl. Out: the moment until which a lease can be relied on.
//!
//! Our clock includes the time that the machine is suspended (`CLOCK_BOOTTIME`), as a server's clock does.
//! `std::time::Instant` stops during a suspend on Linux, and would show a lease as valid that ended hours
//! ago. Timers stop during a suspend too, so every sleep here checks the clock at least once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use crate::timeout::TimeoutWheel;

/// The longest time that a sleep does not check the clock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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

    /// This moment plus `by`; [`Time::NEVER`] if the sum overflows.
    pub fn after(self, by: Duration) -> Self {
        Time(self.0.saturating_add(nanos(by)))
    }

    /// This moment minus `by`, not before the clock's origin. [`Time::NEVER`] stays `NEVER`.
    pub fn before(self, by: Duration) -> Self {
        match self {
            Time::NEVER => Time::NEVER,
            Time(at) => Time(at.saturating_sub(nanos(by))),
        }
    }

    /// The time from `earlier` to this moment; zero if this moment is not later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The part at the end of a lease that must not be relied on: one per cent of the ttl for clocks that run at
/// different speeds, and two milliseconds for servers that count whole milliseconds.
pub fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a lease of `ttl` can be relied on, if its request or renewal was sent at `sent_at`.
///
/// The server's ttl starts between our request and its reply. So counting from before the request was sent
/// can only make our time too short.
pub fn valid_until(sent_at: Time, ttl: Duration) -> Time {
    sent_at.after(ttl.saturating_sub(margin(ttl)))
}

/// The source of time: the system, or a test. Clones share the same clock.
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

/// A clock that moves only by `advance`.
#[derive(Debug)]
struct Manual {
    now: Mutex<u64>,
    moved: watch::Sender<()>,
}

impl Clock {
    /// The clock of the machine, which includes the time that it is suspended.
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

    /// Moves a manual clock forward, and wakes all sleeps that end by then. No effect on the system clock.
    pub fn advance(&self, by: Duration) {
        let Some(manual) = &self.manual else { return };
        *manual.now.lock().unwrap_or_else(PoisonError::into_inner) += nanos(by);
        manual.moved.send_replace(());
    }

    /// Whether this is a manual clock.
    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// The current time.
    pub fn now(&self) -> Time {
        match &self.manual {
            Some(manual) => Time(*manual.now.lock().unwrap_or_else(PoisonError::into_inner)),
            None => boot_time(),
        }
    }

    /// Sleeps until `at`. After a suspend of the machine it wakes within a second of the resume. Dropping the
    /// future has no effect.
    pub async fn sleep_until(&self, at: Time) {
        match &self.manual {
            Some(manual) => manual.sleep_until(at).await,
            None => sleep_until_system(at).await,
        }
    }

    /// The result of `work`, or `None` if it takes longer than `longest`.
    pub(crate) async fn at_most<T>(
        &self,
        longest: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.sleep(longest) => None,
        }
    }

    /// Sleeps for `duration`, counted from the first poll.
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
        tokio::time::sleep(left.min(POLL_INTERVAL)).await;
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
/// On other Unix systems the monotonic clock runs on during a suspend.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const COUNTS_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// On Windows `Instant` includes the time that the machine is suspended.
#[cfg(not(unix))]
fn boot_time() -> Time {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let origin = ORIGIN.get_or_init(std::time::Instant::now);
    Time(nanos(origin.elapsed()).saturating_add(1_000_000_000))
}

/// A wall-clock time, in milliseconds since 1970. For people and for fences; no lease depends on it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// The current wall-clock time.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        UnixMillis(since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
    }

    /// This moment minus `by`.
    pub fn before(self, by: Duration) -> Self {
        UnixMillis(self.0.saturating_sub(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time since this moment by the wall clock; zero if it is in the future.
    pub fn elapsed(self) -> Duration {
        Duration::from_millis(UnixMillis::now().0.saturating_sub(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease can be relied on for a little less than its ttl, counted from the send.
    #[test]
    fn validity_is_short_of_the_ttl_by_the_margin() {
        let sent = Time::from_nanos(1_000);
        let until = valid_until(sent, Duration::from_secs(30));
        assert_eq!(until.since(sent), Duration::from_millis(30_000 - 300 - 2));
    }

    /// A ttl that is not longer than the margin is never valid.
    #[test]
    fn a_tiny_ttl_is_never_valid() {
        let sent = Time::from_nanos(1_000);
        assert_eq!(valid_until(sent, Duration::from_millis(2)), sent);
    }

    /// Sums that overflow are "never", and "never" stays so.
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

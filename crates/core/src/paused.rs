//! Refuses tokio's paused time, which leases cannot follow.

use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::error::Error;
use crate::time::Clock;

/// Longer than the resolution of any machine's clock: a running clock has moved after this time.
const CLOCK_STEP: Duration = Duration::from_micros(50);

const PAUSED: &str = "tokio's time is paused here, and leases run by the machine's clock: in a test use \
    `Memory::with_clock(Clock::manual())`, or do not pause";

impl Clock {
    /// Refuses to measure leases while tokio's time is paused (`tokio::time::pause`, `start_paused`). Timers
    /// of tokio then fire at once while this clock runs on, so a wait would neither be skipped nor take its
    /// time.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if tokio's time is paused. A manual clock needs no timers and is
    /// never refused.
    pub fn must_run(&self) -> Result<(), Error> {
        match !self.is_manual() && is_tokio_paused() {
            true => Err(Error::invalid(PAUSED)),
            false => Ok(()),
        }
    }
}

/// Whether tokio's time is paused. tokio has no function for that. It pauses only the time of a runtime with one
/// thread, so the clocks need not be compared in any other.
fn is_tokio_paused() -> bool {
    let one_thread = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
    if !Handle::try_current().is_ok_and(one_thread) {
        return false;
    }
    let now = || tokio::time::Instant::now().into_std();
    let (before, real, after) = (now(), Instant::now(), now());
    // The common case: time was never paused, and both clocks are the same.
    if before <= real && real <= after {
        return false;
    }
    // After a pause it may run again, with an offset.
    while real.elapsed() < CLOCK_STEP {
        std::hint::spin_loop();
    }
    now() == after
}

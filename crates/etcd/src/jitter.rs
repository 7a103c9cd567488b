//! Chance, so that processes that fail together do not come back in step.

use std::time::Duration;

/// `around`, give or take a quarter.
pub(crate) fn jittered(around: Duration) -> Duration {
    // Without randomness there is no jitter, which is a pity and no more.
    let byte = getrandom::u32().map_or(128, |random| random.to_le_bytes()[0]);
    around.mul_f64(0.75 + f64::from(byte) / 512.0)
}

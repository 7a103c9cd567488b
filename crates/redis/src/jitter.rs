//! Chance, so that processes that fail together do not come back in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// `around`, give or take a quarter.
pub(crate) fn jittered(around: Duration) -> Duration {
    // Keys of a hasher: another at each call, and the system is asked for chance once per thread.
    let byte = RandomState::new().hash_one(()).to_le_bytes()[0];
    around.mul_f64(0.75 + f64::from(byte) / 512.0)
}

/// Anything up to `longest`.
pub(crate) fn up_to(longest: Duration) -> Duration {
    let bytes = RandomState::new().hash_one(()).to_le_bytes();
    let random = u16::from_le_bytes([bytes[0], bytes[1]]);
    longest.mul_f64(f64::from(random) / f64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jitter stays within a quarter of what was asked for.
    #[test]
    fn jitter_is_bounded() {
        let around = Duration::from_millis(100);
        for _ in 0..1_000 {
            let got = jittered(around);
            assert!(got >= Duration::from_millis(75) && got <= Duration::from_millis(125));
        }
    }
}

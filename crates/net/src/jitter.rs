//! Random pauses, so that processes that fail together do not return in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// `around`, plus or minus a quarter.
pub fn jittered(around: Duration) -> Duration {
    // The keys of a hasher differ at each call, and the system's random source is used once per thread.
    let byte = RandomState::new().hash_one(()).to_le_bytes()[0];
    around.mul_f64(0.75 + f64::from(byte) / 512.0)
}

/// A random time up to `longest`.
pub fn up_to(longest: Duration) -> Duration {
    let bytes = RandomState::new().hash_one(()).to_le_bytes();
    let random = u16::from_le_bytes([bytes[0], bytes[1]]);
    longest.mul_f64(f64::from(random) / f64::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jitter stays within a quarter of the given time.
    #[test]
    fn jitter_is_bounded() {
        let around = Duration::from_millis(100);
        for _ in 0..1_000 {
            let got = jittered(around);
            assert!(got >= Duration::from_millis(75) && got <= Duration::from_millis(125));
        }
    }
}

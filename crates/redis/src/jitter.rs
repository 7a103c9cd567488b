//! Chance, so that processes that fail together do not come back in step.

use std::time::Duration;

/// `around`, give or take a quarter.
pub(crate) fn jittered(around: Duration) -> Duration {
    // Without randomness there is no jitter, which is a pity and no more.
    let byte = getrandom::u32().map_or(128, |random| random.to_le_bytes()[0]);
    around.mul_f64(0.75 + f64::from(byte) / 512.0)
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

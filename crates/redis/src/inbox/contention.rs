//! Which keys are contended: another process was seen to want them lately.
//!
//! In: signs that several processes want a key. Out: whether to send the scripts for a lock that no other
//! process wants (`acquire_fast.lua`, `release_fast.lua`) first, or those for a contended one.
//!
//! It is a hint: a wrong one costs a round trip, or a little of the server's time. So it is a table of fixed
//! size, and keys in the same bucket share their contention.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::Key;
use tenure_core::time::Time;

/// How long a sign counts: longer than most waits, so that a key that several processes acquire alternately
/// stays known as contended.
const CONTENTION_TTL: Duration = Duration::from_secs(10);
/// The number of buckets: a small table, but large against the number of contended keys of a process.
const BUCKETS: usize = 1 << 8;

#[derive(Debug)]
pub(crate) struct ContentionHints {
    /// Until when the keys of each bucket are contended.
    until: [AtomicU64; BUCKETS],
}

impl ContentionHints {
    pub(crate) fn new() -> Self {
        ContentionHints { until: array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub(crate) fn is_uncontended(&self, key: &Key, now: Time) -> bool {
        self.bucket(key).load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Other processes want the key.
    pub(crate) fn mark_contended(&self, key: &Key, now: Time) {
        self.bucket(key).store(now.after(CONTENTION_TTL).as_nanos(), Ordering::Relaxed);
    }

    fn bucket(&self, key: &Key) -> &AtomicU64 {
        // FNV-1a, folded: keys that collide here do no harm.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = key.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        &self.until[(hash ^ (hash >> 32)) as usize % BUCKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contention is noted for one key, and ends.
    #[test]
    fn contention_expires() {
        let (hints, now) = (ContentionHints::new(), Time::from_nanos(1_000));
        let (one, other) = (Key::new("one").unwrap(), Key::new("other").unwrap());
        assert!(hints.is_uncontended(&one, now));
        hints.mark_contended(&one, now);
        assert!(!hints.is_uncontended(&one, now) && hints.is_uncontended(&other, now));
        assert!(hints.is_uncontended(&one, now.after(CONTENTION_TTL)));
    }
}

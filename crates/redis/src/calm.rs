//! Which keys are calm: nobody else has been seen to want them lately.
//!
//! In: signs that a key is wanted by several. Out: whether to ask for it by the short forms, which
//! cost less and leave it to the full ones where there is more to it, or by the full ones at once.
//!
//! A hint: a wrong one costs a round trip, or a little of the server's time. So it is a table of fixed
//! size, and keys that share a place share its unrest.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::Key;
use tenure_core::time::Time;

/// For how long a sign counts: longer than most waits, so that a key at which several processes take
/// turns stays known as such.
const UNREST: Duration = Duration::from_secs(10);
/// How many places there are: few to look at, many against the number of contended keys of a process.
const PLACES: usize = 1 << 8;

#[derive(Debug)]
pub(crate) struct Calm {
    /// Until when the keys of each place are not calm.
    until: [AtomicU64; PLACES],
}

impl Calm {
    pub(crate) fn new() -> Self {
        Calm { until: array::from_fn(|_| AtomicU64::new(0)) }
    }

    pub(crate) fn is_calm(&self, key: &Key, now: Time) -> bool {
        self.place(key).load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Others want it.
    pub(crate) fn disturb(&self, key: &Key, now: Time) {
        self.place(key).store(now.after(UNREST).as_nanos(), Ordering::Relaxed);
    }

    fn place(&self, key: &Key) -> &AtomicU64 {
        // FNV-1a, folded: nobody gains by keys that meet here.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = key.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        &self.until[(hash ^ (hash >> 32)) as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unrest is of one key, and passes.
    #[test]
    fn unrest_passes() {
        let (calm, now) = (Calm::new(), Time::from_nanos(1_000));
        let (one, other) = (Key::new("one").unwrap(), Key::new("other").unwrap());
        assert!(calm.is_calm(&one, now));
        calm.disturb(&one, now);
        assert!(!calm.is_calm(&one, now) && calm.is_calm(&other, now));
        assert!(calm.is_calm(&one, now.after(UNREST)));
    }
}

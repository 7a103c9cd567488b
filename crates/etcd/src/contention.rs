//! Hints about which locks other processes want.
//!
//! In: the queue of a lock, as it was last seen. Out: which request is probably enough to acquire the lock. A wrong
//! hint costs one request.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of hints. Locks that share a hint sometimes cost each other a request.
const HINTS: usize = 1024;

/// Whether other processes wanted a lock when it was last seen. Several locks may share a hint.
#[derive(Debug)]
pub(crate) struct ContentionHints {
    hints: Box<[AtomicBool]>,
    hasher: RandomState,
}

impl Default for ContentionHints {
    fn default() -> Self {
        let hints = (0..HINTS).map(|_| AtomicBool::new(false)).collect();
        ContentionHints { hints, hasher: RandomState::new() }
    }
}

impl ContentionHints {
    /// Whether other processes wanted the lock with this queue.
    pub(crate) fn is_contended(&self, queue: &[u8]) -> bool {
        self.hint(queue).load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, queue: &[u8], contended: bool) {
        self.hint(queue).store(contended, Ordering::Relaxed);
    }

    fn hint(&self, queue: &[u8]) -> &AtomicBool {
        &self.hints[(self.hasher.hash_one(queue) % HINTS as u64) as usize]
    }
}

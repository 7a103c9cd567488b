//! The primitives that order the threads of this process: those of std, or those of `shuttle`.
//!
//! `cargo xtask shuttle` sets `cfg(shuttle)`. Then, in the unit tests of this crate, every lock of such a mutex and
//! every access to such an atomic is a point at which another thread may go on. The modules that the gate locks or
//! reads use this module. A mutex of std must not be held across such a point: shuttle runs all its threads on one.
//!
//! Absent on purpose: `OnceLock`, which shuttle does not have.

use tokio::runtime::Handle;
use tokio_util::task::task_tracker::TrackedFuture;

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{Mutex, MutexGuard},
    thread::{self, ThreadId},
};

#[cfg(all(test, shuttle))]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64},
    sync::{Mutex, MutexGuard},
    thread::{self, ThreadId},
};

/// Whether shuttle runs the threads. It knows no other threads, and no time.
pub(crate) const SHUTTLE: bool = cfg!(all(test, shuttle));

/// Runs background work on a runtime.
#[cfg(not(all(test, shuttle)))]
pub(crate) fn spawn_on<F: Future<Output = ()> + Send + 'static>(
    work: TrackedFuture<F>,
    runtime: &Handle,
) {
    drop(runtime.spawn(work));
}

/// Runs background work as a task of shuttle, which interleaves it with the threads.
#[cfg(all(test, shuttle))]
pub(crate) fn spawn_on<F: Future<Output = ()> + Send + 'static>(
    work: TrackedFuture<F>,
    _: &Handle,
) {
    drop(shuttle::future::spawn(work));
}

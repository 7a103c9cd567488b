//! Shared by these tests: stores in memory and in a directory, a server whose clock the test moves, interceptors for
//! several modules, and waits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tenure_core::backend::{Answers, Backend, BoxFuture};
use tenure_core::time::Clock;
use tenure_core::{FileLocks, Lease, Locker, Memory};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::{DEADLINE, eventually};

/// A store that any number of processes can use.
pub(crate) trait Store {
    fn locker(&self) -> Locker;
}

impl Store for Memory {
    fn locker(&self) -> Locker {
        Locker::new(self.clone())
    }
}

/// A directory of locks that is deleted after the test.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn fresh() -> Self {
        Dir(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Store for Dir {
    fn locker(&self) -> Locker {
        Locker::new(FileLocks::open(self.path("locks")).unwrap())
    }
}

/// A server on a clock that the test moves: nothing there expires by itself.
pub(crate) fn still() -> (Clock, Memory) {
    let clock = Clock::manual();
    (clock.clone(), Memory::with_clock(clock))
}

/// A locker whose calls to `memory` go through `meddler`.
pub(crate) fn meddled<M: Interceptor>(memory: &Memory, meddler: &Arc<M>) -> Locker {
    Locker::new(Intercepted::new(Arc::new(memory.clone()), meddler.clone()))
}

/// Waits until `rival` can acquire `key`; it is released before this returns.
pub(crate) async fn becomes_free(rival: &Locker, key: &str) {
    let had = || async {
        match rival.try_lock(key).await.unwrap() {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    };
    eventually("the lock to be free", had).await;
}

/// Waits until `rival` sees `count` claims in the server's queue for `key`.
pub(crate) async fn queue_is(rival: &Locker, key: &str, count: usize) {
    let queued = || async {
        let info = rival.inspect(key).await.unwrap();
        info.and_then(|info| info.waiters).is_some_and(|waiters| waiters.len() == count)
    };
    eventually("the server's queue", queued).await;
}

/// Counts renewals; while `swallow` is set, they never return.
#[derive(Default)]
pub(crate) struct Renewals {
    pub(crate) begun: AtomicU64,
    pub(crate) swallow: AtomicBool,
}

impl Interceptor for Renewals {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        match self.swallow.load(Ordering::Acquire) {
            true => Box::pin(std::future::pending()),
            false => inner.renew(leases, answers),
        }
    }
}

/// Stalls the engine's own thread in its next renewal, until the sender is dropped. Meanwhile that thread
/// notices no end of a lease.
pub(crate) struct Stall {
    stalled: AtomicBool,
    go_on: Mutex<Receiver<()>>,
}

impl Stall {
    pub(crate) fn new() -> (Sender<()>, Stall) {
        let (sender, go_on) = channel();
        (sender, Stall { stalled: AtomicBool::new(false), go_on: Mutex::new(go_on) })
    }

    pub(crate) async fn has_come(&self) {
        eventually("the thread to stall", || async { self.stalled.load(Ordering::Acquire) }).await;
    }
}

impl Interceptor for Stall {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.stalled.store(true, Ordering::Release);
        // Nothing is ever sent: the wait ends when the sender is dropped.
        let _ = self.go_on.lock().unwrap().recv_timeout(DEADLINE);
        inner.renew(leases, answers)
    }
}

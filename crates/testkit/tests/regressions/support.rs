//! A server whose time stands still, meddlers that several modules need, and what they wait for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tenure_core::backend::{Answers, Backend, BoxFuture};
use tenure_core::time::Clock;
use tenure_core::{Lease, Locker, Memory};
use tenure_testkit::meddle::{Meddled, Meddler};
use tenure_testkit::wait::{DEADLINE, eventually};

/// A server on a clock that the test moves: nothing there ends by itself.
pub(crate) fn still() -> (Clock, Memory) {
    let clock = Clock::manual();
    (clock.clone(), Memory::with_clock(clock))
}

/// A process whose calls to `memory` go through `meddler`.
pub(crate) fn meddled<M: Meddler>(memory: &Memory, meddler: &Arc<M>) -> Locker {
    Locker::new(Meddled::new(Arc::new(memory.clone()), meddler.clone()))
}

/// Waits until `key` can be had by `rival`; it is given back before this returns.
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

/// Counts renewals; once told to, it swallows them: they never come back.
#[derive(Default)]
pub(crate) struct Renewals {
    pub(crate) begun: AtomicU64,
    pub(crate) swallow: AtomicBool,
}

impl Meddler for Renewals {
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

/// Stalls the engine's own thread in its next renewal, until the other end is dropped: meanwhile
/// that thread sees no lease end.
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

impl Meddler for Stall {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.stalled.store(true, Ordering::Release);
        // Nothing is ever sent: it ends with the sender.
        let _ = self.go_on.lock().unwrap().recv_timeout(DEADLINE);
        inner.renew(leases, answers)
    }
}

//! The first claim starts the background work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use tenure_core::backend::{Backend, BoxFuture, Notices};
use tenure_core::blocking;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::eventually_blocking;

use crate::support::{meddled, still};

const ROUNDS: usize = 50;
const THREADS: usize = 4;

/// Counts starts: each subscribes to notices, and then runs the backend's background work.
#[derive(Default)]
struct Starts {
    subscribed: AtomicU64,
    ran: AtomicU64,
}

impl Interceptor for Starts {
    fn run<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        self.ran.fetch_add(1, Ordering::AcqRel);
        inner.run()
    }

    fn subscribe(&self, inner: &dyn Backend, default_ttl: Duration) -> Notices {
        self.subscribed.fetch_add(1, Ordering::AcqRel);
        // Gives the other threads a chance to start it as well.
        (0..10).for_each(|_| std::thread::yield_now());
        inner.subscribe(default_ttl)
    }
}

/// All threads acquire their first lock at the same time.
fn race(locker: &blocking::Locker) {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (locker, barrier) = (locker.clone(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                locker.lock(format!("k{number}")).acquire().unwrap().release().unwrap();
            });
        }
    });
}

/// However many threads come first, the background work of the backend is started once.
#[test]
fn the_background_work_starts_once() {
    for _ in 0..ROUNDS {
        let starts = Arc::new(Starts::default());
        let locker = blocking::Locker::new(meddled(&still().1, &starts));
        race(&locker);
        let ran = || starts.ran.load(Ordering::Acquire);
        eventually_blocking("the background work", || ran() > 0);
        assert_eq!((starts.subscribed.load(Ordering::Acquire), ran()), (1, 1));
    }
}

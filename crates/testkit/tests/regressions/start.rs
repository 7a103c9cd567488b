//! The first claim starts the background.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use tenure_core::backend::{Backend, BoxFuture, Notices};
use tenure_core::blocking;
use tenure_testkit::meddle::Meddler;
use tenure_testkit::wait::eventually_blocking;

use crate::support::{meddled, still};

const ROUNDS: usize = 50;
const THREADS: usize = 4;

/// Counts starts: each begins to listen, and then tends.
#[derive(Default)]
struct Starts {
    listened: AtomicU64,
    tended: AtomicU64,
}

impl Meddler for Starts {
    fn tend<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        self.tended.fetch_add(1, Ordering::AcqRel);
        inner.tend()
    }

    fn notices(&self, inner: &dyn Backend) -> Notices {
        self.listened.fetch_add(1, Ordering::AcqRel);
        // The other threads' chance to start one as well.
        (0..10).for_each(|_| std::thread::yield_now());
        inner.notices()
    }
}

/// All threads ask for their first lock at once.
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

/// However many threads come first, one background is started: the backend is tended once.
#[test]
fn the_backend_is_tended_once() {
    for _ in 0..ROUNDS {
        let starts = Arc::new(Starts::default());
        let locker = blocking::Locker::new(meddled(&still().1, &starts));
        race(&locker);
        let tended = || starts.tended.load(Ordering::Acquire);
        eventually_blocking("the backend to be tended", || tended() > 0);
        assert_eq!((starts.listened.load(Ordering::Acquire), tended()), (1, 1));
    }
}

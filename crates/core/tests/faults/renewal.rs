//! Renewals that are late, lost, or many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Answers, Backend, BoxFuture, Loss};
use tenure_core::time::Clock;
use tenure_core::{Guard, Lease, Locker, Memory, Renew, Token};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::register::Register;
use tenure_testkit::wait::{eventually, nothing_is_left, within};
use tokio::sync::Semaphore;

use crate::support::{Store, still};

/// What happens to renewals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They wait until they are let through.
    HeldBack,
    /// They never return.
    Swallowed,
    /// They return without an answer for any lease.
    Unanswered,
    /// The backend panics.
    Panics,
}

/// Counts renewals and applies the `fate` to them.
struct Renewals {
    fate: Fate,
    well: AtomicBool,
    begun: AtomicU64,
    let_through: Semaphore,
}

impl Renewals {
    fn new(fate: Fate) -> Arc<Self> {
        let (well, begun) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Renewals { fate, well, begun, let_through: Semaphore::new(0) })
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }
}

impl Interceptor for Renewals {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        if self.well.load(Ordering::Acquire) {
            return inner.renew(leases, answers);
        }
        match self.fate {
            Fate::HeldBack => Box::pin(async move {
                let _permit = self.let_through.acquire().await;
                inner.renew(leases, answers).await;
            }),
            Fate::Swallowed => Box::pin(std::future::pending()),
            Fate::Unanswered => Box::pin(async {}),
            Fate::Panics => Box::pin(async { panic!("on purpose: the renewal of a test") }),
        }
    }
}

/// t22: if a release overtakes a renewal that is under way, the key is deleted and stays deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t22_release_overtakes_the_renewal() {
    let (memory, renewals) = (Memory::space("t22"), Renewals::new(Fate::HeldBack));
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), renewals.clone()));
    let rival = memory.locker();
    let ttl = Duration::from_secs(3);
    let every = Renew::Every(Duration::from_millis(50));
    let guard = locker.lock("k").ttl(ttl).renew(every).await.unwrap();
    eventually("a renewal to be under way", || async { renewals.begun() > 0 }).await;
    guard.release().await.unwrap();
    assert!(rival.inspect("k").await.unwrap().is_none());
    let before = renewals.begun();
    renewals.let_through.add_permits(100);
    let clock = rival.clock();
    let until = clock.now().after(ttl + ttl / 10);
    let absent = || async {
        assert!(rival.inspect("k").await.unwrap().is_none(), "a renewal brought it back");
        clock.now() >= until
    };
    eventually("a ttl to pass", absent).await;
    assert_eq!(renewals.begun(), before, "no renewal after the release");
}

/// How late a loss may be reported on a busy machine. A loss that waited for a reply would be later.
const LATE: Duration = Duration::from_millis(700);

/// t23: whatever happens to the renewals, the loss is reported on time, and the locker continues to work.
async fn lost_on_time(fate: Fate, space: &str) {
    let (memory, renewals) = (Memory::space(space), Renewals::new(fate));
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), renewals.clone()));
    let rival = memory.locker();
    let ttl = Duration::from_millis(1_500);
    let guard = locker.lock("k").ttl(ttl).await.unwrap();
    let valid_until = guard.valid_until();
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    let now = locker.clock().now();
    assert!(!guard.is_held() && now >= valid_until);
    assert!(now < valid_until.after(LATE), "{:?} after its end", now.since(valid_until));
    assert!(renewals.begun() > 0, "no renewal was tried");
    assert_eq!(guard.valid_until(), valid_until, "what is unknown extends nothing");
    assert!(guard.release().await.unwrap_err().is_lost());
    nothing_is_left(&rival, "k").await;
    renewals.well.store(true, Ordering::Release);
    works_again(&locker, &renewals).await;
}

/// Checks that the thread that renews is alive: a lock is renewed again.
async fn works_again(locker: &Locker, renewals: &Renewals) {
    let guard = locker.lock("again").ttl(Duration::from_secs(2)).await.unwrap();
    let (granted, before) = (guard.valid_until(), renewals.begun());
    eventually("a renewal to succeed", || async { guard.valid_until() > granted }).await;
    assert!(guard.is_held() && renewals.begun() > before);
    guard.release().await.unwrap();
}

/// t23: a renewal that never returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_that_hangs() {
    lost_on_time(Fate::Swallowed, "t23-hangs").await;
}

/// t23: a renewal that returns without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_without_an_answer() {
    lost_on_time(Fate::Unanswered, "t23-unanswered").await;
}

/// t23: a renewal that panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_that_panics() {
    lost_on_time(Fate::Panics, "t23-panics").await;
}

/// t23: the loss is visible by the clock alone, even if the renewal hangs and the caller's runtime does not run.
#[test]
fn t23_the_view_needs_nobody() {
    let (memory, renewals) = (Memory::space("t23-view"), Renewals::new(Fate::Swallowed));
    let locker = Locker::new(Intercepted::new(Arc::new(memory), renewals));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ttl = Duration::from_millis(400);
    let guard = runtime.block_on(async { locker.lock("k").ttl(ttl).await.unwrap() });
    let (clock, valid_until) = (locker.clock(), guard.valid_until());
    // The runtime does not run; only the clock does. It is read first, so the view may not be a moment late.
    tenure_testkit::wait::eventually_blocking("the loss by the clock", || {
        let (before, is_held) = (clock.now(), guard.is_held());
        assert!(!is_held || before < valid_until, "{:?} late", before.since(valid_until));
        !is_held
    });
    assert_eq!(runtime.block_on(guard.lost()), Loss::Expired);
}

/// t25: an old holder that writes after the new one has read is refused; only the register without a fence
/// loses an update.
#[tokio::test]
async fn t25_the_register_refuses_the_stale_holder() {
    let memory = Memory::space("t25");
    let (a, b, register) = (memory.locker(), memory.locker(), Register::new());
    let short = a.lock("k").ttl(Duration::from_millis(200)).renew(Renew::Off);
    let old = short.await.unwrap();
    let stale = register.read("k", old.fence());
    within("the loss", old.lost()).await;
    let new = within("the new holder", b.lock("k").into_future()).await.unwrap();
    let fresh = register.read("k", new.fence());
    assert!(register.write("k", fresh));
    assert!(!register.write("k", stale), "refused");
    let tally = register.tally();
    assert_eq!((tally.fenced_lost(), tally.plain_lost()), (0, 1));
}

/// How often each claim was renewed, and the largest number of leases in one call.
#[derive(Default)]
struct Counts {
    renewed: Mutex<HashMap<Token, u64>>,
    largest: AtomicUsize,
}

impl Interceptor for Counts {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.largest.fetch_max(leases.len(), Ordering::AcqRel);
        let mut renewed = self.renewed.lock().unwrap();
        for lease in leases {
            *renewed.entry(lease.claim().token()).or_default() += 1;
        }
        inner.renew(leases, answers)
    }
}

impl Counts {
    /// How many claims have been renewed at least `times` times.
    fn renewed(&self, times: u64) -> usize {
        self.renewed.lock().unwrap().values().filter(|count| **count >= times).count()
    }
}

const LOCKS: usize = 10_000;

async fn ten_thousand(locker: &Locker, ttl: Duration) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(LOCKS);
    for number in 0..LOCKS {
        guards.push(locker.lock(format!("k{number}")).ttl(ttl).await.unwrap());
    }
    guards
}

/// t49: 10 000 locks are held at once; each is renewed, none is lost, and no call contains more than 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t49_ten_thousand_locks_are_kept() {
    let counts = Arc::new(Counts::default());
    let locker = Locker::new(Intercepted::new(Arc::new(Memory::space("t49")), counts.clone()));
    let guards = ten_thousand(&locker, Duration::from_secs(6)).await;
    eventually("every lock to be renewed twice", || async { counts.renewed(2) == LOCKS }).await;
    assert!(guards.iter().all(Guard::is_held));
    let largest = counts.largest.load(Ordering::Acquire);
    assert!(largest <= 64, "{largest} leases in one call");
    let report = locker.shutdown(Duration::ZERO).await;
    assert_eq!((report.released, report.unreleased.len()), (LOCKS, 0));
}

/// t49: locks that were granted at the same instant are not all renewed at the same instant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t49_renewals_are_spread() {
    let (counts, clock) = (Arc::new(Counts::default()), Clock::manual());
    let memory = Arc::new(Memory::with_clock(clock.clone()));
    let locker = Locker::new(Intercepted::new(memory, counts.clone()));
    // A third of the ttl is ten seconds; the renewals are spread over the last of them.
    let _guards = ten_thousand(&locker, Duration::from_secs(30)).await;
    clock.advance(Duration::from_millis(8_900));
    clock.advance(Duration::from_millis(600));
    eventually("the first ones to be renewed", || async { counts.renewed(1) > LOCKS / 4 }).await;
    // The clock stands still, so no more renewals can become due, however slow the machine is.
    let first = counts.renewed(1);
    assert!(first < LOCKS * 3 / 4, "{first} renewed half-way");
    clock.advance(Duration::from_millis(600));
    eventually("all to be renewed", || async { counts.renewed(1) == LOCKS }).await;
    assert_eq!(counts.renewed(2), 0, "none of them twice");
}

/// B2, A15: if the lease of a process is not renewed, all its readers are notified of the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_lease_are_lost_together() {
    let (memory, renewals) = (Memory::space("lost-together"), Renewals::new(Fate::Swallowed));
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), renewals.clone()));
    let read = || locker.read("k").ttl(Duration::from_millis(500)).into_future();
    let readers = [read().await.unwrap(), read().await.unwrap()];
    assert_eq!(readers[0].fence(), readers[1].fence(), "they share a lease");
    for reader in readers {
        assert_eq!(within("the loss", reader.lost()).await, Loss::Expired);
        assert!(!reader.is_held() && reader.release().await.unwrap_err().is_lost());
    }
    nothing_is_left(&memory.locker(), "k").await;
}

/// A reader that does not renew was promised its whole ttl: it does not join a lease that ends sooner.
#[tokio::test]
async fn a_reader_without_renewal_has_its_whole_ttl() {
    let (clock, memory) = still();
    let (locker, ttl) = (memory.locker(), Duration::from_secs(10));
    let read = || locker.read("k").ttl(ttl).renew(Renew::Off).into_future();
    let first = read().await.unwrap();
    clock.advance(ttl * 9 / 10);
    let second = read().await.unwrap();
    assert!(second.remaining() > ttl * 9 / 10, "{:?}", second.remaining());
    drop((first, second));
}

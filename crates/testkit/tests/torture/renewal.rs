//! Renewals that are late, lost, or many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Answers, Backend, BoxFuture, Loss};
use tenure_core::{Guard, Lease, Locker, Memory, Renew, Token};
use tenure_testkit::meddle::{Meddled, Meddler};
use tenure_testkit::register::Register;
use tenure_testkit::wait::{eventually, within};
use tokio::sync::Semaphore;

use crate::support::{Store, nothing_is_left};

/// What becomes of renewals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They wait until they are let through.
    HeldBack,
    /// They are never answered.
    Swallowed,
    /// They answer for nobody.
    Unanswered,
    /// The backend panics.
    Panics,
}

/// Counts renewals and lets them meet their fate.
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

impl Meddler for Renewals {
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

/// t22: a renewal under way when the release is called loses: the key is gone and stays gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t22_release_overtakes_the_renewal() {
    let (memory, renewals) = (Memory::space("t22"), Renewals::new(Fate::HeldBack));
    let locker = Locker::new(Meddled::new(Arc::new(memory.clone()), renewals.clone()));
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

/// t23: whatever befalls the renewals, the loss comes on time, and the locker goes on working.
async fn lost_on_time(fate: Fate, space: &str) {
    let (memory, renewals) = (Memory::space(space), Renewals::new(fate));
    let locker = Locker::new(Meddled::new(Arc::new(memory.clone()), renewals.clone()));
    let rival = memory.locker();
    let guard = locker.lock("k").ttl(Duration::from_millis(600)).await.unwrap();
    let valid_until = guard.valid_until();
    eventually("a renewal to begin", || async { renewals.begun() > 0 || !guard.is_held() }).await;
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    assert!(!guard.is_held() && locker.clock().now() >= valid_until);
    assert_eq!(guard.valid_until(), valid_until, "what is unknown extends nothing");
    assert!(guard.release().await.unwrap_err().is_lost());
    nothing_is_left(&rival, "k").await;
    renewals.well.store(true, Ordering::Release);
    works_again(&locker, &renewals).await;
}

/// The thread that renews is alive: a lock is renewed again.
async fn works_again(locker: &Locker, renewals: &Renewals) {
    let guard = locker.lock("again").ttl(Duration::from_secs(2)).await.unwrap();
    let (granted, before) = (guard.valid_until(), renewals.begun());
    eventually("a renewal to succeed", || async { guard.valid_until() > granted }).await;
    assert!(guard.is_held() && renewals.begun() > before);
    guard.release().await.unwrap();
}

/// t23: a renewal that never comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_that_hangs() {
    lost_on_time(Fate::Swallowed, "t23-hangs").await;
}

/// t23: a renewal that comes back without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_without_an_answer() {
    lost_on_time(Fate::Unanswered, "t23-unanswered").await;
}

/// t23: a renewal that panics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t23_a_renewal_that_panics() {
    lost_on_time(Fate::Panics, "t23-panics").await;
}

/// t23: the loss fires by its own timer when the renewal hangs and nobody polls anything else.
#[test]
fn t23_the_view_needs_nobody() {
    let (memory, renewals) = (Memory::space("t23-view"), Renewals::new(Fate::Swallowed));
    let locker = Locker::new(Meddled::new(Arc::new(memory), renewals));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ttl = Duration::from_millis(400);
    let guard = runtime.block_on(async { locker.lock("k").ttl(ttl).await.unwrap() });
    // The runtime does not run; only the clock does.
    tenure_testkit::wait::eventually_blocking("the loss by the clock", || !guard.is_held());
    assert_eq!(runtime.block_on(guard.lost()), Loss::Expired);
}

/// t25: an old holder that writes after the new one has read is refused; only the twin loses.
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

/// When each claim was renewed.
#[derive(Default)]
struct Times {
    renewed: Mutex<HashMap<Token, u64>>,
    /// When, and how many leases at once.
    calls: Mutex<Vec<(u64, usize)>>,
}

impl Meddler for Times {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        let now = inner.clock().now().as_nanos();
        self.calls.lock().unwrap().push((now, leases.len()));
        let mut renewed = self.renewed.lock().unwrap();
        for lease in leases {
            *renewed.entry(lease.claim().token()).or_default() += 1;
        }
        inner.renew(leases, answers)
    }
}

impl Times {
    /// The most renewals that began within any `window`.
    fn largest_burst(&self, window: Duration) -> usize {
        let calls = self.calls.lock().unwrap();
        let within = |start: u64| {
            let end = start + u64::try_from(window.as_nanos()).unwrap();
            calls.iter().filter(|(at, _)| (start..end).contains(at)).map(|(_, n)| n).sum()
        };
        calls.iter().map(|(at, _)| within(*at)).max().unwrap_or(0)
    }
}

/// t49: 10 000 locks are held at once; each is renewed, none is lost, and no call carries them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t49_ten_thousand_locks() {
    const LOCKS: usize = 10_000;
    let times = Arc::new(Times::default());
    let locker = Locker::new(Meddled::new(Arc::new(Memory::space("t49")), times.clone()));
    let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
    for number in 0..LOCKS {
        let request = locker.lock(format!("k{number}")).ttl(Duration::from_secs(6));
        guards.push(request.await.unwrap());
    }
    let twice = || async {
        let renewed = times.renewed.lock().unwrap();
        renewed.len() == LOCKS && renewed.values().all(|count| *count >= 2)
    };
    eventually("every lock to be renewed twice", twice).await;
    assert!(guards.iter().all(Guard::is_held));
    let largest = times.calls.lock().unwrap().iter().map(|(_, n)| *n).max().unwrap_or(0);
    assert!(largest <= 256, "{largest} leases in one call");
    let burst = times.largest_burst(Duration::from_millis(50));
    assert!(burst < LOCKS / 2, "{burst} renewals within 50 ms");
    let report = locker.shutdown(Duration::ZERO).await;
    assert_eq!((report.released, report.unreleased.len()), (LOCKS, 0));
}

//! An engine that cannot keep a claim in its queue, or does not answer the task that asks for others.

use std::future::{IntoFuture, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, BoxFuture, Fault, FaultKind, Grant, Release,
};
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Guard, Holder, Lease, Locker, Memory, Token, WaitStatus};
use tenure_testkit::conformance::{Started, start};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::unavailable::{LONG, is_away};
use tenure_testkit::wait::within;

use crate::support::{meddled, still};

/// An engine that abandons each of its first claims, as etcd does with a claim whose session has ended.
#[derive(Default)]
struct GivesUp {
    times: AtomicU64,
    claims: Mutex<Vec<Token>>,
}

impl Interceptor for GivesUp {
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        self.claims.lock().unwrap().push(claim.token());
        let left =
            self.times.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        match left {
            Ok(_) => {
                let fault = Fault::new(FaultKind::Unavailable, "the place in the queue is lost");
                Box::pin(async { Err(fault) })
            }
            Err(_) => inner.acquire(claim),
        }
    }
}

/// If the engine abandons a claim, a wait without a limit ends. A wait with a limit continues, with a new
/// claim each time.
#[tokio::test]
async fn a_bounded_wait_outlives_its_claim() {
    let gives_up = Arc::new(GivesUp::default());
    let memory = Arc::new(Memory::space("a_bounded_wait_outlives_its_claim"));
    let locker = Locker::new(Intercepted::new(memory, gives_up.clone()));
    gives_up.times.store(1, Ordering::Release);
    assert!(is_away(&locker.lock("k").await.unwrap_err()));
    gives_up.times.store(3, Ordering::Release);
    gives_up.claims.lock().unwrap().clear();
    let guard = within("the lock", locker.lock("k").wait(LONG).into_future()).await.unwrap();
    guard.release().await.unwrap();
    let mut claims = gives_up.claims.lock().unwrap().clone();
    claims.sort_by_key(|token| token.expose().to_string());
    claims.dedup();
    assert_eq!(claims.len(), 4);
    gives_up.times.store(u64::MAX, Ordering::Release);
    let soon = locker.lock("k").wait(LONG).unavailable_after(Duration::from_millis(300));
    let error = within("an end of the wait", soon.into_future()).await.unwrap_err();
    assert!(is_away(&error), "{error:?}");
}

/// An engine that answers no request while it is silent. `held` is what it reports to claims that wait.
#[derive(Default)]
struct Silent {
    is: AtomicBool,
    held: AtomicBool,
    waiting: Mutex<Vec<Arc<Claim>>>,
}

impl Silent {
    fn or<'a, T: Send + 'a>(&self, call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        match self.is.load(Ordering::Acquire) {
            true => Box::pin(pending()),
            false => call,
        }
    }
}

impl Interceptor for Silent {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.or(inner.try_acquire(claim))
    }

    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        if self.held.load(Ordering::Acquire) {
            claim.report_wait(WaitStatus::of(Holder::unknown(), None));
        }
        self.waiting.lock().unwrap().push(claim.clone());
        self.or(inner.acquire(claim))
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.or(inner.release(lease, then))
    }
}

const SOON: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(100);

/// A task that queues behind another task of its process, on a clock that the test moves.
struct Behind {
    clock: Clock,
    engine: Arc<Silent>,
    locker: Locker,
}

impl Behind {
    fn new() -> Self {
        let ((clock, memory), engine) = (still(), Arc::new(Silent::default()));
        let locker = meddled(&memory, &engine);
        Behind { clock, engine, locker }
    }

    async fn waits(&self) -> Started<Result<Guard, Error>> {
        start(self.locker.lock("k").wait(LONG).unavailable_after(SOON)).await
    }

    /// How long `wait` lasts from now on. `other` goes on meanwhile.
    async fn ends<G, T>(
        &self,
        wait: impl Future<Output = Result<G, Error>>,
        other: impl Future<Output = T>,
    ) -> (Error, Duration) {
        let (mut wait, mut other) = (pin!(wait), pin!(other));
        let (begin, mut done) = (self.clock.now(), false);
        let passing = async {
            loop {
                tokio::select! {
                    biased;
                    ended = &mut wait => return ended.map(drop).unwrap_err(),
                    _ = &mut other, if !done => done = true,
                    () = tokio::time::sleep(Duration::from_millis(1)) => self.clock.advance(STEP),
                }
            }
        };
        let error = within("the end of the wait", passing).await;
        (error, self.clock.now().since(begin))
    }
}

fn on_time(took: Duration, due: Duration) -> bool {
    (due..=due + STEP).contains(&took)
}

/// G6: a task that waits behind another task of its process is told in time that the server does not answer, whatever
/// that task asks for: an attempt, a wait without a limit, or a release.
#[tokio::test]
async fn a_queued_wait_gives_up_a_silent_server_in_time() {
    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    let attempt = start(behind.locker.try_lock("k")).await;
    let (error, took) = behind.ends(behind.waits().await, attempt).await;
    assert!(is_away(&error) && on_time(took, SOON), "an attempt: {took:?}, {error:?}");

    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    let wait = start(behind.locker.lock("k").wait_forever()).await;
    let (error, took) = behind.ends(behind.waits().await, wait).await;
    assert!(is_away(&error) && on_time(took, SOON), "a wait: {took:?}, {error:?}");

    let behind = Behind::new();
    // A lease that is not renewed, and lasts longer than the test.
    let guard = behind.locker.lock("k").ttl(LONG).await.unwrap();
    behind.engine.is.store(true, Ordering::Release);
    let release = start(async move { guard.release().await }).await;
    let (error, took) = behind.ends(behind.waits().await, release).await;
    assert!(is_away(&error) && on_time(took, SOON), "a release: {took:?}, {error:?}");
}

/// G6: a single attempt gives up a silent server in time, and so does one of several attempts.
#[tokio::test]
async fn an_attempt_gives_up_a_silent_server_in_time() {
    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    let memory = Memory::with_clock(behind.clock.clone());
    let engine = Intercepted::new(Arc::new(memory), behind.engine.clone());
    let locker = Locker::builder(engine).unavailable_after(SOON).build().unwrap();
    let at_once = locker.lock("k").wait(Duration::ZERO).into_future();
    let (error, took) = behind.ends(at_once, pending::<()>()).await;
    assert!(is_away(&error) && on_time(took, SOON), "no wait: {took:?}, {error:?}");
    let (error, took) = behind.ends(locker.try_lock("k").into_future(), pending::<()>()).await;
    assert!(is_away(&error) && on_time(took, SOON), "a try: {took:?}, {error:?}");
    let attempts = locker.lock("k").attempts(2).into_future();
    let (error, took) = behind.ends(attempts, pending::<()>()).await;
    assert!(is_away(&error) && on_time(took, SOON), "attempts: {took:?}, {error:?}");
    let first = start(locker.try_lock("k")).await;
    let (error, took) = behind.ends(locker.try_lock("k").into_future(), first).await;
    assert!(is_away(&error) && on_time(took, SOON), "behind a try: {took:?}, {error:?}");
}

/// G6, B4: a request for several keys gives up a silent server in time, while it tries its keys.
#[tokio::test]
async fn several_keys_give_up_a_silent_server_in_time() {
    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    let all = behind.locker.lock_all(["k", "l"]).wait(LONG).unavailable_after(SOON);
    let (error, took) = behind.ends(all.into_future(), pending::<()>()).await;
    assert!(is_away(&error) && on_time(took, SOON), "{took:?}, {error:?}");
}

/// The time without an answer goes on counting when the task in front fails, and the waiting task asks by itself.
#[tokio::test]
async fn the_silence_goes_on_when_the_first_task_has_failed() {
    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    let attempt = start(behind.locker.try_lock("k")).await;
    let wait = behind.waits().await;
    let left = async {
        behind.clock.sleep(SOON / 2).await;
        drop(attempt);
    };
    let (error, took) = behind.ends(wait, left).await;
    assert!(is_away(&error) && on_time(took, SOON), "{took:?}, {error:?}");
}

/// A server that says who holds the lock answers. When it falls silent later, the time counts from then on.
#[tokio::test]
async fn the_silence_begins_with_the_last_answer() {
    let behind = Behind::new();
    behind.engine.is.store(true, Ordering::Release);
    behind.engine.held.store(true, Ordering::Release);
    let first = start(behind.locker.lock("k").wait_forever()).await;
    let wait = behind.waits().await;
    let answered = Duration::from_secs(5);
    let falls_silent = async {
        behind.clock.sleep(answered).await;
        let fault = Fault::new(FaultKind::Unknown, "no answer in time");
        let claim = behind.engine.waiting.lock().unwrap()[0].clone();
        claim.report_wait(WaitStatus::unanswered(fault, behind.clock.now()));
        first.await
    };
    let (error, took) = behind.ends(wait, falls_silent).await;
    assert!(error.is_unknown() && on_time(took, answered + SOON), "{took:?}, {error:?}");
}

/// `unavailable_after(0s)` ends the wait at the first failure, and not while the first request is under way.
#[tokio::test]
async fn no_patience_is_enough_for_an_answer() {
    struct Slow;
    impl Interceptor for Slow {
        fn acquire<'a>(
            &'a self,
            inner: &'a dyn Backend,
            claim: &'a Arc<Claim>,
        ) -> BoxFuture<'a, Result<Grant, Fault>> {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                inner.acquire(claim).await
            })
        }
    }
    let locker = meddled(&Memory::space("no_patience"), &Arc::new(Slow));
    let ask = || locker.lock("k").wait(LONG).unavailable_after(Duration::ZERO);
    let (first, second) = tokio::join!(start(ask()), start(ask()));
    within("the lock", first).await.unwrap().release().await.unwrap();
    within("the lock", second).await.unwrap().release().await.unwrap();
}

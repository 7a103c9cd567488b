//! Renewals: which leases get one, and the effect of its answer, or of a missing one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{
    Answers, Backend, BoxFuture, Fault, FaultKind, Notice, Notices, Notifier, Renewal,
};
use tenure_core::{Lease, Locker, Memory, Renew};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::{eventually, eventually_blocking, within};
use tokio::sync::Notify;

use crate::support::{Renewals, becomes_free, meddled, still};

/// The first renewal takes longer than its lease, and its result is unknown.
#[derive(Default)]
struct Outlived(AtomicBool);

/// Blocks the thread until the lease has passed, as a suspend does. Reads only the clock, so that the answer
/// is the first to find the lease ended.
fn outlive(lease: &Lease, inner: &dyn Backend) {
    let (clock, until) = (inner.clock(), lease.valid_until());
    clock.advance(until.since(clock.now()));
    eventually_blocking("the lease to pass", || clock.now() >= until);
}

impl Interceptor for Outlived {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        if self.0.swap(true, Ordering::AcqRel) {
            return inner.renew(leases, answers);
        }
        Box::pin(async move {
            leases.iter().for_each(|lease| outlive(lease, inner));
            let fault = Fault::new(FaultKind::Unknown, "the reply was lost");
            (0..leases.len()).for_each(|at| answers(at, Renewal::Unknown(fault.clone())));
        })
    }
}

async fn waiter_is_served(memory: &Memory, ttl: Duration) {
    let locker = meddled(memory, &Arc::new(Outlived::default()));
    let guard = locker.lock("k").ttl(ttl).await.unwrap();
    let waiter = start(locker.lock("k")).await;
    memory.clock().advance(ttl / 2);
    let next = within("the waiter's turn", waiter).await.unwrap();
    assert!(!guard.is_held() && next.is_held());
    assert!(next.fence() > guard.fence());
}

/// If a lease ends while a renewal without an answer is processed, the end is noticed and the waiter gets the lock.
#[tokio::test]
async fn a_waiter_behind_an_outlived_renewal_is_served() {
    waiter_is_served(&still().1, Duration::from_secs(10)).await;
}

/// The same with the machine's clock, when the thread itself was blocked past the end of the lease.
#[tokio::test]
async fn a_waiter_behind_a_stopped_thread_is_served() {
    let memory = Memory::space("regressions-stopped-thread");
    waiter_is_served(&memory, Duration::from_millis(300)).await;
}

/// A lock without renewal is granted with its whole ttl: no renewal is sent for it.
#[tokio::test]
async fn a_grant_needs_no_renewal() {
    let renewals = Arc::new(Renewals::default());
    let locker = meddled(&still().1, &renewals);
    let guard = within("a free lock", locker.lock("k").renew(Renew::Off).into_future()).await;
    guard.unwrap().release().await.unwrap();
    assert_eq!(renewals.begun.load(Ordering::Acquire), 0);
}

/// The result of the first renewal is unknown, as on a server that has just come back.
struct Starting {
    notifier: Notifier,
    asked: AtomicUsize,
}

impl Interceptor for Starting {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        if self.asked.fetch_add(1, Ordering::AcqRel) > 0 {
            return inner.renew(leases, answers);
        }
        let fault = Fault::new(FaultKind::Unavailable, "not yet");
        (0..leases.len()).for_each(|at| answers(at, Renewal::Unknown(fault.clone())));
        Box::pin(async {})
    }

    fn subscribe(&self, _: &dyn Backend, _: Duration) -> Notices {
        self.notifier.notices()
    }
}

/// A renewal that was sent because of a reconnect and got no answer is repeated soon, not only when the lease is due.
#[tokio::test]
async fn a_renewal_after_a_reconnect_is_repeated() {
    let (clock, memory) = still();
    let (notifier, asked) = (Notifier::default(), AtomicUsize::new(0));
    let starting = Arc::new(Starting { notifier, asked });
    let locker = meddled(&memory, &starting);
    let guard = locker.lock("k").ttl(Duration::from_secs(60)).await.unwrap();
    let asked = async |times| {
        eventually("a renewal", || async { starting.asked.load(Ordering::Acquire) == times }).await;
    };
    starting.notifier.send(Notice::Reconnected);
    asked(1).await;
    memory.expire("k").unwrap();
    clock.advance(Duration::from_secs(2));
    asked(2).await;
    within("the loss", guard.lost()).await;
}

/// Sends the notices that the test chooses, and records which locks are renewed.
struct Reconnecting {
    notifier: Notifier,
    renewed: Mutex<BTreeSet<String>>,
    swallow: AtomicBool,
}

impl Reconnecting {
    fn new() -> Arc<Self> {
        let (notifier, renewed, swallow) = (Notifier::default(), Mutex::default(), false.into());
        Arc::new(Reconnecting { notifier, renewed, swallow })
    }

    fn renewed(&self) -> Vec<String> {
        self.renewed.lock().unwrap().iter().cloned().collect()
    }
}

impl Interceptor for Reconnecting {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        let names = leases.iter().map(|lease| lease.claim().key().to_string());
        self.renewed.lock().unwrap().extend(names);
        match self.swallow.load(Ordering::Acquire) {
            true => Box::pin(std::future::pending()),
            false => inner.renew(leases, answers),
        }
    }

    fn subscribe(&self, _: &dyn Backend, _: Duration) -> Notices {
        self.notifier.notices()
    }
}

/// After a reconnect only leases with renewal are renewed; a lease without renewal keeps its end, and its end
/// is noticed.
#[tokio::test]
async fn a_reconnect_renews_only_what_is_renewed() {
    let (clock, memory) = still();
    let reconnecting = Reconnecting::new();
    let locker = meddled(&memory, &reconnecting);
    let short = Duration::from_secs(5);
    let fixed = locker.lock("fixed").ttl(short).renew(Renew::Off).await.unwrap();
    let _renewed = locker.lock("renewed").await.unwrap();
    let (end, waiter) = (fixed.valid_until(), start(locker.lock("fixed")).await);
    clock.advance(Duration::from_secs(1));
    reconnecting.notifier.send(Notice::Reconnected);
    eventually("the renewal", || async { !reconnecting.renewed().is_empty() }).await;
    assert_eq!(reconnecting.renewed(), ["renewed"]);
    assert_eq!(fixed.valid_until(), end);
    clock.advance(short);
    drop(within("the turn after its end", waiter).await.unwrap());
}

/// Answers for no lease.
struct Silent;

impl Interceptor for Silent {
    fn renew<'a>(
        &'a self,
        _: &'a dyn Backend,
        _: &'a [Arc<Lease>],
        _: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// A renewal without an answer is an error and not a loss: it is not reported as successful.
#[tokio::test]
async fn a_renewal_without_an_answer_is_unknown() {
    let memory = still().1;
    let locker = meddled(&memory, &Arc::new(Silent));
    let guard = locker.lock("k").await.unwrap();
    let error = within("an answer", guard.renew()).await.unwrap_err();
    assert!(error.is_unknown() && !error.is_lost(), "{error:?}");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    becomes_free(&Locker::new(memory), "k").await;
}

/// After a reconnect, a lease is not handed from task to task before the server has confirmed it. If the
/// server has lost it, the release reports the loss, and the next task sends a new claim and gets a higher
/// fence than the grant in between.
#[tokio::test]
async fn after_a_reconnect_a_lease_is_confirmed_before_it_is_handed_over() {
    let (memory, reconnecting) = (still().1, Reconnecting::new());
    let (locker, rival) = (meddled(&memory, &reconnecting), Locker::new(memory.clone()));
    let guard = locker.lock("k").await.unwrap();
    let waiter = tokio::spawn(start(locker.lock("k")).await);
    reconnecting.swallow.store(true, Ordering::Release);
    assert!(memory.expire("k").unwrap());
    let between = rival.lock("k").await.unwrap();
    reconnecting.notifier.send(Notice::Reconnected);
    eventually("the renewal", || async { !reconnecting.renewed().is_empty() }).await;
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    let fence = between.fence();
    between.release().await.unwrap();
    let next = within("the next task's turn", waiter).await.unwrap().unwrap();
    assert!(next.fence() > fence);
}

/// Reports a waiter of another process between the server's answer to a renewal and its arrival.
#[derive(Default)]
struct Overtaken {
    notifier: Notifier,
    arrives: Notify,
}

impl Interceptor for Overtaken {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let received = Mutex::new(Vec::new());
            inner.renew(leases, &|at, answer| received.lock().unwrap().push((at, answer))).await;
            let claim = leases[0].claim();
            let (key, token) = (claim.key().clone(), claim.token());
            self.notifier.send(Notice::Contended { key, token });
            self.arrives.notified().await;
            received.into_inner().unwrap().into_iter().for_each(|(at, answer)| answers(at, answer));
        })
    }

    fn subscribe(&self, _: &dyn Backend, _: Duration) -> Notices {
        self.notifier.notices()
    }
}

/// t99: a renewal says that nobody waits, but a writer of another process has come since. The next reader does
/// not share the lease: otherwise readers would pass the writer until the next renewal.
#[tokio::test]
async fn t99_a_waiter_that_comes_after_a_renewal_is_not_forgotten() {
    let ((clock, memory), overtaken) = (still(), Arc::new(Overtaken::default()));
    let locker = meddled(&memory, &overtaken);
    let reader = locker.read("k").await.unwrap();
    let until = reader.valid_until();
    clock.advance(Duration::from_secs(1));
    overtaken.notifier.send(Notice::Reconnected);
    within("the writer's arrival", reader.contended()).await;
    overtaken.arrives.notify_one();
    eventually("the renewal", || async { reader.valid_until() > until }).await;
    let next = locker.read("k").await.unwrap();
    assert_eq!(locker.inspect("k").await.unwrap().unwrap().holders.len(), 2);
    next.release().await.unwrap();
    reader.release().await.unwrap();
}

/// A reader joins a lease of its process that turns out to be lost. It never had it, and gets the key anew.
async fn a_newcomer_has_lost_nothing<R>(newcomer: impl AsyncFnOnce(Locker) -> R) -> R {
    let ((clock, memory), renewals) = (still(), Arc::new(Renewals::default()));
    let locker = meddled(&memory, &renewals);
    let _first = locker.read("k").await.unwrap();
    renewals.swallow.store(true, Ordering::Release);
    clock.advance(Duration::from_secs(16));
    memory.expire("k").unwrap();
    renewals.swallow.store(false, Ordering::Release);
    within("the newcomer's answer", newcomer(locker)).await
}

/// A15, B2: no error about a lost lock for a reader that only tries.
#[tokio::test]
async fn a15_a_reader_that_tries_has_lost_nothing() {
    let reader = a_newcomer_has_lost_nothing(async |locker| locker.try_read("k").await).await;
    assert!(reader.unwrap().unwrap().is_held());
    let wait = Duration::ZERO;
    let reader =
        a_newcomer_has_lost_nothing(async |locker| locker.read("k").wait(wait).await).await;
    assert!(reader.unwrap().is_held());
}

/// A15, B4: nor for one that reads several keys.
#[tokio::test]
async fn a15_a_reader_of_several_keys_has_lost_nothing() {
    let all = a_newcomer_has_lost_nothing(async |locker| locker.lock_all(["a"]).read(["k"]).await);
    assert!(all.await.unwrap().is_held());
}

//! More renewals than the backend, or the machine, can do at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Answers, Backend, BoxFuture, Fault};
use tenure_core::time::Clock;
use tenure_core::{Claim, Guard, Lease, Locker, Memory};
use tenure_testkit::conformance::start;
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::{eventually, within};
use tokio::sync::Semaphore;

/// How many leases may be without a reply at a time, and how many are in one call.
const IN_FLIGHT: usize = 1_024;
const IN_ONE_CALL: usize = 64;
const TTL: Duration = Duration::from_secs(30);

/// A call to the backend: the keys that it renews, or an abandon.
#[derive(Clone, Debug)]
enum Call {
    Renew(Vec<String>),
    Abandon,
}

/// Records the calls in their order. Renewals wait until they are let through.
struct Slow {
    calls: Mutex<Vec<Call>>,
    let_through: Semaphore,
}

impl Default for Slow {
    fn default() -> Self {
        Slow { calls: Mutex::default(), let_through: Semaphore::new(0) }
    }
}

impl Slow {
    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The renewals requested so far, call by call.
    fn renewals(&self) -> Vec<Vec<String>> {
        let renewal = |call| match call {
            Call::Renew(keys) => Some(keys),
            Call::Abandon => None,
        };
        self.calls().into_iter().filter_map(renewal).collect()
    }

    fn renewed(&self) -> usize {
        self.renewals().iter().map(Vec::len).sum()
    }
}

fn names(leases: &[Arc<Lease>]) -> Vec<String> {
    leases.iter().map(|lease| lease.claim().key().to_string()).collect()
}

impl Interceptor for Slow {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.calls.lock().unwrap().push(Call::Renew(names(leases)));
        Box::pin(async move {
            self.let_through.acquire().await.unwrap().forget();
            inner.renew(leases, answers).await;
        })
    }

    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.calls.lock().unwrap().push(Call::Abandon);
        inner.abandon(claim)
    }
}

fn behind<M: Interceptor>(meddler: &Arc<M>) -> (Clock, Memory, Locker) {
    let clock = Clock::manual();
    let memory = Memory::with_clock(clock.clone());
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), meddler.clone()));
    (clock, memory, locker)
}

async fn held(locker: &Locker, name: &str, many: usize, ttl: Duration) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(many);
    for number in 0..many {
        guards.push(locker.lock(format!("{name}{number}")).ttl(ttl).await.unwrap());
    }
    guards
}

/// t49: leases that are due at the same time are sent in small calls, with a limited number in flight. Of the
/// waiting leases, the one that ends first is sent first, even if it became due last.
#[tokio::test]
async fn t49_what_ends_first_is_renewed_first() {
    let slow = Arc::new(Slow::default());
    let (clock, _, locker) = behind(&slow);
    let long = held(&locker, "long", 3_000, TTL).await;
    clock.advance(TTL / 3);
    eventually("renewals up to the limit", || async { slow.renewed() >= IN_FLIGHT }).await;
    let ttl = TTL / 5;
    let short = held(&locker, "short", 10, ttl).await;
    clock.advance(ttl / 3);
    // There is room for one more call.
    slow.let_through.add_permits(1);
    let sent = || slow.renewals().into_iter().position(|call| call[0].starts_with("short"));
    eventually("a short lease to be renewed", || async { sent().is_some() }).await;
    let (calls, at) = (slow.renewals(), sent().unwrap());
    assert!(calls.iter().all(|call| call.len() <= IN_ONE_CALL), "small calls");
    let before: usize = calls[..at].iter().map(Vec::len).sum();
    assert!(before <= IN_FLIGHT, "{before} were sent before it");
    assert!(calls[at][..short.len()].iter().all(|key| key.starts_with("short")), "{calls:?}");
    drop((long, short));
}

/// t49: renewals that are due come before work that can wait.
#[tokio::test]
async fn t49_renewals_come_before_what_can_wait() {
    let slow = Arc::new(Slow::default());
    let (clock, memory, locker) = behind(&slow);
    let _held = held(&locker, "k", 3_000, TTL).await;
    let _rival = Locker::new(memory).lock("busy").ttl(TTL * 100).await.unwrap();
    let waiter = start(locker.lock("busy").wait(Duration::from_secs(5))).await;
    clock.advance(TTL / 3);
    eventually("renewals up to the limit", || async { slow.renewed() >= IN_FLIGHT }).await;
    let late = within("the end of the wait", waiter).await;
    assert!(late.unwrap_err().is_timeout());
    slow.let_through.add_permits(1_000);
    let done = || slow.calls().iter().position(|call| matches!(call, Call::Abandon));
    eventually("the claim to be abandoned", || async { done().is_some() }).await;
    let before = &slow.calls()[..done().unwrap()];
    let keys = before.iter().flat_map(|call| match call {
        Call::Renew(keys) => keys.clone(),
        Call::Abandon => vec![],
    });
    // The last call may be on its way.
    let renewed = keys.collect::<BTreeSet<_>>().len();
    assert!(renewed + IN_ONE_CALL >= 3_000, "{renewed} were renewed before");
}

/// A shard that has every other key does not reply.
struct HalfSilent;

impl Interceptor for HalfSilent {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        let answered = |(at, lease): (usize, &Arc<Lease>)| {
            let even = lease.claim().key().as_str().ends_with(['0', '2', '4', '6', '8']);
            even.then(|| (at, lease.clone()))
        };
        let (places, well): (Vec<_>, Vec<_>) =
            leases.iter().enumerate().filter_map(answered).unzip();
        Box::pin(async move {
            inner.renew(&well, &|at, answer| answers(places[at], answer)).await;
            std::future::pending().await
        })
    }
}

/// t49: leases of a shard that hangs take no room from those of the other shards.
#[tokio::test]
async fn t49_a_shard_that_hangs_does_not_hold_up_the_others() {
    let (clock, _, locker) = behind(&Arc::new(HalfSilent));
    let guards = held(&locker, "k", 4 * IN_FLIGHT, TTL).await;
    let granted = guards[0].valid_until();
    clock.advance(TTL / 3);
    let renewed = || guards.iter().filter(|guard| guard.valid_until() > granted).count();
    eventually("all that can be renewed", || async { renewed() == guards.len() / 2 }).await;
}

//! A backend that hangs: its callers get a result all the same.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    Attempt, Backend, BoxFuture, ClaimEnd, Fault, Hints, LockInfo, Operator, Query, Release,
    Validity,
};
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Guard, Key, Lease, Locker, Memory, Token};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::within;

/// So long that nothing here expires.
const TTL: Duration = Duration::from_secs(100_000);
/// When a call about one lock ends, and a query of many.
const CALL: Duration = Duration::from_secs(10);
const QUERY: Duration = Duration::from_secs(60);

/// When set, never completes a call that the caller waits for.
#[derive(Default)]
struct Hangs(AtomicBool);

impl Hangs {
    fn or<'a, T: Send + 'a>(&self, call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        match self.0.load(Ordering::Acquire) {
            true => Box::pin(pending()),
            false => call,
        }
    }
}

impl Interceptor for Hangs {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.or(inner.try_acquire(claim))
    }

    fn adopt<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Option<Validity>, Fault>> {
        self.or(inner.adopt(claim))
    }

    fn relinquish<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.or(inner.relinquish(lease))
    }

    fn inspect<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        self.or(inner.inspect(query))
    }

    fn change_hints<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Option<Hints>, Fault>> {
        self.or(inner.change_hints(query))
    }

    fn end_reasons<'a>(
        &'a self,
        inner: &'a dyn Operator,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<ClaimEnd>>, Fault>> {
        self.or(inner.end_reasons(ended))
    }

    fn force_release<'a>(
        &'a self,
        inner: &'a dyn Operator,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.or(inner.force_release(key, seen, by))
    }

    fn close<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        self.or(inner.close())
    }
}

/// A locker whose backend can be made to hang, on a clock that the test moves.
struct Hung {
    clock: Clock,
    hangs: Arc<Hangs>,
    locker: Locker,
}

impl Hung {
    fn new() -> Self {
        let (clock, hangs) = (Clock::manual(), Arc::new(Hangs::default()));
        let memory = Arc::new(Memory::with_clock(clock.clone()));
        let locker = Locker::new(Intercepted::new(memory, hangs.clone()));
        Hung { clock, hangs, locker }
    }

    async fn guard(&self, key: &str) -> Guard {
        self.locker.lock(key).ttl(TTL).await.unwrap()
    }

    fn set(&self, hung: bool) {
        self.hangs.0.store(hung, Ordering::Release);
    }

    /// The result of `call` while the backend hangs and time passes, and how long it took.
    async fn answer<T>(&self, call: impl Future<Output = T>) -> (T, Duration) {
        let start = self.clock.now();
        self.set(true);
        let mut call = pin!(call);
        let passing = async {
            loop {
                tokio::select! {
                    biased;
                    answer = &mut call => return answer,
                    () = tokio::time::sleep(Duration::from_millis(5)) => {
                        self.clock.advance(Duration::from_millis(500));
                    }
                }
            }
        };
        let answer = within("an answer in spite of the backend", passing).await;
        self.set(false);
        (answer, self.clock.now().since(start))
    }

    async fn is_unknown<T>(&self, call: impl Future<Output = Result<T, Error>>) {
        self.is_unknown_after(CALL, call).await;
    }

    /// The call ends as unknown after `bound`, and not a second later.
    async fn is_unknown_after<T>(
        &self,
        bound: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) {
        let (answer, took) = self.answer(call).await;
        let error = answer.err().unwrap();
        assert!(error.is_unknown(), "{error:?}");
        assert!((bound..bound + Duration::from_secs(1)).contains(&took), "{took:?}");
    }
}

/// If the backend hangs, every call that a caller waits for ends within a bound, as unknown, and held locks stay held.
#[tokio::test]
async fn a_backend_that_hangs_hangs_no_caller() {
    let hung = Hung::new();
    let locker = &hung.locker;
    hung.is_unknown(locker.try_lock("try").ttl(TTL).into_future()).await;
    hung.is_unknown(locker.lock("try").ttl(TTL).wait(Duration::ZERO).into_future()).await;
    hung.is_unknown(locker.inspect("k")).await;
    hung.is_unknown_after(QUERY, locker.list("*")).await;
    hung.is_unknown(locker.watch("*")).await;
    hung.is_unknown_after(QUERY, locker.diagnose()).await;

    let guard = hung.guard("k").await;
    let seen = locker.inspect("k").await.unwrap().unwrap().holders[0].token.unwrap();
    hung.is_unknown(locker.force_release("k", seen, "a test")).await;
    assert!(guard.is_held());

    hung.is_unknown(guard.detach().export()).await;
    assert_eq!(locker.hold_count("k"), 1, "it stays as it is");

    let written = hung.guard("paper").await.detach().export().await.unwrap();
    hung.is_unknown(locker.adopt(&written)).await;
    assert!(locker.adopt(&written).await.unwrap().is_held(), "nobody else has taken it");

    let mut watch = locker.watch("*").await.unwrap();
    let _other = hung.guard("other").await;
    hung.is_unknown_after(QUERY, watch.next()).await;

    let (report, _) = hung.answer(locker.shutdown(Duration::ZERO)).await;
    assert_eq!(report.unreleased, []);
}

//! Invalid values are refused before anything is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, BoxFuture, Fault, Grant};
use tenure_core::{Claim, Locker, Memory, Renew};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::{nothing_is_left, within};

use crate::support::still;

/// Counts the requests.
#[derive(Default)]
struct Counting(AtomicU64);

impl Interceptor for Counting {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        inner.try_acquire(claim)
    }

    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        inner.acquire(claim)
    }
}

/// t55, t57, t58: no invalid request reaches the engine.
#[tokio::test]
async fn t55_t57_t58_nothing_is_sent() {
    let counting = Arc::new(Counting::default());
    let locker = Locker::new(Intercepted::new(Arc::new(Memory::space("t55")), counting.clone()));
    for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(u64::MAX)] {
        assert!(locker.lock("k").ttl(ttl).await.unwrap_err().is_invalid());
        assert!(locker.try_lock("k").ttl(ttl).await.unwrap_err().is_invalid());
    }
    let late = Renew::Every(Duration::from_secs(15));
    assert!(locker.lock("k").renew(late).await.unwrap_err().is_invalid());
    for name in ["", "a\nb", &"x".repeat(513)] {
        assert!(locker.lock(name).await.unwrap_err().is_invalid());
    }
    assert_eq!(counting.0.load(Ordering::Relaxed), 0);
    let _guard = locker.lock("k").await.unwrap();
    assert_eq!(counting.0.load(Ordering::Relaxed), 1);
}

/// Grants so late that nothing of the ttl is left.
struct Slow;

impl Interceptor for Slow {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(async move {
            let attempt = inner.try_acquire(claim).await;
            inner.clock().advance(claim.ttl());
            attempt
        })
    }

    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(async move {
            let grant = inner.acquire(claim).await;
            inner.clock().advance(claim.ttl());
            grant
        })
    }
}

/// t56: a lock whose ttl is shorter than the round trip is never reported as held.
#[tokio::test]
async fn t56_a_ttl_below_the_round_trip() {
    let memory = Memory::with_clock(tenure_core::time::Clock::manual());
    let slow = Locker::new(Intercepted::new(Arc::new(memory.clone()), Arc::new(Slow)));
    let ttl = Duration::from_millis(50);
    for error in [
        slow.lock("k").ttl(ttl).await.map(drop).unwrap_err(),
        slow.try_lock("k").ttl(ttl).await.map(drop).unwrap_err(),
    ] {
        assert!(error.is_unavailable() && !error.is_busy(), "{error:?}");
    }
    nothing_is_left(&Locker::new(memory), "k").await;
}

/// An infinite duration is refused where an end is needed: it neither overflows, nor hangs, nor closes a lock
/// for ever.
#[tokio::test]
async fn times_without_end_are_refused() {
    let memory = still().1;
    let (holder, locker) = (Locker::new(memory.clone()), Locker::new(memory));
    let _guard = holder.lock("held").await.unwrap();
    let requests = [
        locker.lock("k").renew(Renew::Every(Duration::MAX)),
        locker.lock("k").min_hold(Duration::MAX),
        locker.lock("held").retry_interval(Duration::MAX).attempts(2),
    ];
    for request in requests {
        let error = within("a refusal", request.into_future()).await.unwrap_err();
        assert!(error.is_invalid(), "{error:?}");
    }
}

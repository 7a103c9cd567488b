//! Options of the attribute, defaults of the locker, and built-in defaults.

use std::time::Duration;

use tenure::{Error, Fence, Held, Locker, Memory, Renew};
use tenure_testkit::wait::{eventually, within};

use crate::support::alone;

#[tenure::lock(key = "order:1", locker = locker, held = held)]
async fn by_default(locker: &Locker) -> Result<Duration, Error> {
    Ok(held.remaining())
}

#[tenure::lock(key = "order:1", locker = locker, held = held, ttl = "1m 30s", wait = "0s")]
async fn by_attribute(locker: &Locker) -> Result<Duration, Error> {
    Ok(held.remaining())
}

/// E1: the attribute is stronger than the locker's defaults, and these are stronger than the built-in ones.
#[tokio::test]
async fn e1_precedence_of_ttl() {
    let secs = Duration::from_secs;
    let between = |left, low, high| assert!(left > secs(low) && left <= secs(high), "{left:?}");
    let (memory, locker) = alone();
    between(by_default(&locker).await.unwrap(), 5, 10);
    let configured = Locker::builder(memory).ttl(secs(60)).build().unwrap();
    between(by_default(&configured).await.unwrap(), 55, 60);
    between(by_attribute(&configured).await.unwrap(), 85, 90);
}

/// E1: a locker that waits by default makes functions wait, unless their attribute sets another wait.
#[tokio::test]
async fn e1_precedence_of_wait() {
    let (memory, other) = alone();
    let locker = Locker::builder(memory).wait_forever().build().unwrap();
    let guard = other.lock("order:1").await.unwrap();
    assert!(by_attribute(&locker).await.unwrap_err().is_busy());
    let waiting = tokio::spawn(async move { by_default(&locker).await });
    eventually("the call to wait", async || {
        let info = other.inspect("order:1").await.unwrap();
        info.is_some_and(|lock| lock.waiters.is_some_and(|all| all.len() == 1))
    })
    .await;
    guard.release().await.unwrap();
    within("its turn", waiting).await.unwrap().unwrap();
}

/// All options, as far as the body can observe them.
#[tokio::test]
async fn all_options() {
    #[tenure::lock(
        key = "order:{id}",
        locker = locker,
        ttl = "15s",
        wait = "forever",
        retry = "20ms",
        attempts = 3,
        renew = 0.25,
        max_hold = "1h",
        min_hold = "0s",
        fencing = false,
        reentry = "allow",
        within_process = "queue",
        label = "trace-{trace}",
        reason = "paying {id}",
        name = "orders",
        held = held,
        on_late_loss = |_, error| Err(error),
    )]
    async fn all(locker: &Locker, id: u64, trace: &str) -> Result<Held, Error> {
        let holder = locker.inspect("order:1").await?.unwrap().holders.remove(0).holder;
        assert_eq!(holder.label.as_deref(), Some("trace-7f"));
        assert_eq!(holder.reason.as_deref(), Some("paying 1"));
        Ok(held)
    }
    let (_, locker) = alone();
    let held = all(&locker, 1, "7f").await.unwrap();
    assert_eq!(held.fence(), Fence::NONE);
    let guard = locker.lock("order:1").await.unwrap();
    let busy = all(&locker, 1, "7f").await.unwrap_err().to_string();
    assert!(busy.starts_with("lock `order:1` not acquired after 3 attempts"), "{busy}");
    drop(guard);
}

/// A14: without renewal the lock is lost when its ttl is over, and the body is cancelled.
#[tokio::test]
async fn a14_renewal_can_be_off() {
    #[tenure::lock(key = "order:1", locker = locker, ttl = "1s", renew = "off")]
    async fn forgotten(locker: &Locker) -> Result<(), Error> {
        std::future::pending().await
    }
    #[tenure::lock(key = "order:2", locker = locker, ttl = "1m", renew = "10s", max_hold = "200ms")]
    async fn endless(locker: &Locker) -> Result<(), Error> {
        std::future::pending().await
    }
    let (_, locker) = alone();
    for lost in
        [within("a loss", forgotten(&locker)).await, within("a loss", endless(&locker)).await]
    {
        let error = lost.unwrap_err();
        assert!(error.is_lost(), "{error}");
    }
}

/// t57: a contradiction with the locker's defaults is found before any request.
#[tokio::test]
async fn t57_relations_with_the_lockers_defaults() {
    #[tenure::lock(key = "order:1", locker = locker, ttl = "15s")]
    async fn short(locker: &Locker) -> Result<(), Error> {
        Ok(())
    }
    let memory = Memory::with_clock(tenure::time::Clock::system());
    let renew = Renew::Every(Duration::from_secs(8));
    let locker = Locker::builder(memory).renew(renew).build().unwrap();
    by_default(&locker).await.unwrap();
    let error = short(&locker).await.unwrap_err();
    assert_eq!(error.to_string(), "renew_every (8s) must be less than half of ttl (15s)");
}

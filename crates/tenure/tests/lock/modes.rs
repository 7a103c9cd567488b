//! The attribute in its other modes: readers, permits, several keys.

use std::future::pending;
use std::time::Duration;

use tenure::{Error, Locker, Loss, Mode, Owner};
use tenure_testkit::wait::within;
use tokio::sync::Barrier;

use crate::support::alone;

const SLOTS: u32 = 2;

#[tenure::lock(key = "prices:{shop}", locker = locker, shared)]
async fn prices(locker: &Locker, shop: &str, inside: &Barrier) -> Result<(), Error> {
    inside.wait().await;
    Ok(())
}

/// B2, E1: `shared` lets readers in together and keeps a writer out; the key is made as for a lock.
#[tokio::test]
async fn b2_shared_calls_run_together() {
    let (_, locker) = alone();
    let inside = Barrier::new(3);
    let test = async {
        let holders = async || locker.inspect("prices:7").await.unwrap().map(|it| it.holders.len());
        while holders().await != Some(1) {
            tokio::task::yield_now().await;
        }
        let busy = locker.try_lock("prices:7").await.unwrap();
        assert!(busy.is_none(), "readers keep a writer out");
        inside.wait().await;
    };
    let both =
        async { tokio::join!(prices(&locker, "7", &inside), prices(&locker, "7", &inside), test) };
    let (one, other, ()) = within("both readers at once", both).await;
    one.and(other).unwrap();
    let writer = locker.lock("prices:7").await.unwrap();
    let error = prices(&locker, "7", &inside).await.unwrap_err();
    assert!(error.is_busy() && error.wanted() == Some(&Mode::Read), "{error}");
    drop(writer);
}

#[tenure::lock(key = "limit:{tenant}", locker = locker, slots = SLOTS, held = held)]
async fn limited(locker: &Locker, tenant: &str, inside: &Barrier) -> Result<Option<u32>, Error> {
    inside.wait().await;
    Ok(held.slot())
}

/// B3, E1: `slots` lets so many calls in, numbers them, and refuses the next one at once.
#[tokio::test]
async fn b3_slots_limit_calls() {
    let (_, locker) = alone();
    let inside = Barrier::new(3);
    let test = async {
        let limit = locker.semaphore("limit:acme", SLOTS);
        while limit.available_permits().await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
        let error = limited(&locker, "acme", &inside).await.unwrap_err();
        assert_eq!(error.wanted(), Some(&Mode::Permits { permits: 1, capacity: 2 }), "{error}");
        inside.wait().await;
    };
    let calls = async {
        tokio::join!(limited(&locker, "acme", &inside), limited(&locker, "acme", &inside), test)
    };
    let (one, other, ()) = within("two calls at once", calls).await;
    let mut slots = [one.unwrap(), other.unwrap()];
    slots.sort();
    assert_eq!(slots, [Some(0), Some(1)]);
}

#[tenure::lock(key = "gpu", locker = locker, slots = 2 * SLOTS, permits = wanted, held = held)]
async fn heavy(locker: &Locker, wanted: u32) -> Result<(u32, Option<u32>), Error> {
    let free = locker.semaphore("gpu", 4).available_permits().await?;
    Ok((free, held.slot()))
}

/// B3, E1: `permits` takes several, which have no number. Values that are no literals are checked by the call.
#[tokio::test]
async fn b3_permits_are_weights() {
    let (_, locker) = alone();
    assert_eq!(heavy(&locker, 3).await.unwrap(), (1, None));
    let error = heavy(&locker, 5).await.unwrap_err();
    assert_eq!(error.to_string(), "5 permits were asked for, and the semaphore has 4");
    assert!(locker.inspect("gpu").await.unwrap().is_none());
}

#[tenure::lock(key = "limit", locker = locker, slots = 1, held = held)]
async fn outer(locker: &Locker) -> Result<(u64, u64), Error> {
    Ok((held.fence().get(), inner(locker).await?))
}

#[tenure::lock(key = "limit", locker = locker, slots = 1, held = held)]
async fn inner(locker: &Locker) -> Result<u64, Error> {
    Ok(held.fence().get())
}

/// E3: a nested call of the same owner counts once, although no permit is left; another owner gets none.
#[tokio::test]
async fn e3_nested_permits_count_once() {
    let (_, locker) = alone();
    let (outer_fence, inner_fence) = within("the nested call", outer(&locker)).await.unwrap();
    assert_eq!(outer_fence, inner_fence);
    let request = Owner::new();
    let held = request.scope(async {
        let permit = locker.semaphore("limit", 1).acquire().await.unwrap();
        outer(&locker).await.unwrap();
        permit
    });
    let permit = held.await;
    assert!(outer(&locker).await.unwrap_err().is_busy(), "another owner");
    drop(permit);
}

#[tenure::lock(keys = ["acct:{from}", "acct:{to}", read("rates")], locker = locker, held = held)]
async fn transfer(locker: &Locker, from: u32, to: u32) -> Result<Vec<String>, Error> {
    assert!(held.is_held() && held.fence(&format!("acct:{from}")).is_some());
    let rates = locker.inspect("rates").await?.map(|lock| lock.holders[0].mode.clone());
    assert_eq!(rates, Some(Mode::Read));
    Ok(held.keys().map(ToString::to_string).collect())
}

/// B4, E1: `keys` holds all keys, some of them as a reader, in the order of their names; each counts once. The error
/// names the key in the way, and nothing stays held.
#[tokio::test]
async fn b4_several_keys() {
    let (_, locker) = alone();
    let keys = transfer(&locker, 7, 3).await.unwrap();
    assert_eq!(keys, ["acct:3", "acct:7", "rates"]);
    assert_eq!(transfer(&locker, 7, 7).await.unwrap(), ["acct:7", "rates"]);
    let reader = locker.read("rates").await.unwrap();
    transfer(&locker, 7, 3).await.unwrap();
    drop(reader);
    let busy = locker.lock("acct:7").await.unwrap();
    let error = transfer(&locker, 7, 3).await.unwrap_err();
    assert_eq!(error.key().map(|key| key.as_str()), Some("acct:7"));
    assert!(error.is_busy() && !locker.holds("acct:3"), "{error}");
    drop(busy);
}

#[tenure::lock(keys = ["a", "b{odd}"], locker = locker)]
async fn odd_keys(locker: &Locker, odd: &str) -> Result<(), Error> {
    Ok(())
}

/// B4: an invalid value is the error of the call, with the key.
#[tokio::test]
async fn b4_an_invalid_key_of_several() {
    let (_, locker) = alone();
    let error = odd_keys(&locker, "\n").await.unwrap_err();
    assert_eq!(error.to_string(), "invalid key `b\\n`: it contains the control character `\\n`");
}

#[tenure::lock(keys = ["a", "b"], locker = locker)]
async fn stuck(locker: &Locker, inside: &Barrier) -> Result<(), Error> {
    inside.wait().await;
    pending().await
}

/// B4: if one key is lost, the body is dropped, the error names the key, and the others are released.
#[tokio::test]
async fn b4_one_loss_ends_the_body() {
    let (memory, locker) = alone();
    let inside = Barrier::new(2);
    let lose = async {
        inside.wait().await;
        assert!(memory.revoke("b").unwrap());
    };
    let lost = async { tokio::join!(stuck(&locker, &inside), lose).0 };
    let error = within("the loss", lost).await.unwrap_err();
    assert_eq!((error.key().unwrap().as_str(), error.loss()), ("b", Some(&Loss::Gone)));
    let free = locker.lock("a").wait(Duration::from_secs(20)).await;
    free.unwrap().release().await.unwrap();
}

#[tenure::lock(
    keys = ["a", "b"],
    locker = locker,
    on_late_loss = |value, error: Error| { assert!(error.is_lost()); Ok(value + 1) }
)]
async fn late(locker: &Locker, expire: impl Fn()) -> Result<u32, Error> {
    expire();
    Ok(7)
}

/// B4, A11: a loss that is found late comes with the value, also for several keys.
#[tokio::test]
async fn b4_a_late_loss_of_several_keys() {
    let (memory, locker) = alone();
    let done = late(&locker, || _ = memory.expire("a").unwrap()).await;
    assert_eq!(done.unwrap(), 8);
}

//! Permits of a semaphore.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{Mode, Owner, PERMITS_MAX, Permit, Renew, Semaphore};

use super::Fixture;
use super::support::{
    becomes_free, both, eventually, exported, look, passes, refused, start, waiters_are, within,
};

/// Whether the engine has permits. An engine without them refuses them.
async fn has_permits<F: Fixture>(f: &F) -> bool {
    let has = f.capabilities().await.permits;
    if !has {
        let semaphore = f.locker().await.semaphore(f.key("refused"), 2);
        assert!(refused(semaphore.acquire()).await.is_unsupported());
        assert!(refused(semaphore.try_acquire()).await.is_unsupported());
    }
    has
}

async fn takes(semaphore: &Semaphore, permits: u32) -> Permit {
    let asked = semaphore.acquire_many(permits).into_future();
    within("free permits", asked).await.expect("free permits are granted")
}

async fn are_free(semaphore: &Semaphore, permits: u32) {
    let free = || async { semaphore.try_acquire_many(permits).await.unwrap().is_some() };
    eventually("permits to be free", free).await;
}

/// B3, t114: at most as many permits as the capacity are held, over all processes.
pub async fn at_most_the_capacity<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 2), b.semaphore(&key, 2));
    let (one, two) = (takes(&here, 1).await, takes(&there, 1).await);
    assert!(one.fence() != two.fence());
    assert!(here.try_acquire().await.unwrap().is_none());
    assert!(there.try_acquire().await.unwrap().is_none());
    assert_eq!(here.available_permits().await.unwrap(), 0);
    one.release().await.unwrap();
    assert_eq!(there.available_permits().await.unwrap(), 1);
    let again = there.try_acquire().await.unwrap().expect("a permit is free");
    assert_eq!(again.num_permits(), 1);
    drop((again, two));
    becomes_free(&a, &key).await;
}

/// B3: many tasks that try at the same time get as many permits as there are.
pub async fn tries_go_side_by_side<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let semaphore = f.locker().await.semaphore(f.key("k"), 16);
    let tries: Vec<_> =
        (0..24).map(|_| tokio::spawn(semaphore.try_acquire().into_future())).collect();
    let mut permits = Vec::new();
    for tried in tries {
        permits.extend(tried.await.unwrap().unwrap());
    }
    assert_eq!(permits.len(), 16);
}

/// B3: a waiter gets the permit that another process releases.
pub async fn a_waiter_gets_a_released_permit<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 1), b.semaphore(&key, 1));
    let permit = takes(&here, 1).await;
    let mut waiting = start(there.acquire()).await;
    waiting.until(waiters_are(&b, &key, 1)).await;
    let before = permit.fence();
    permit.release().await.unwrap();
    assert!(within("the waiter's turn", waiting).await.unwrap().fence() > before);
}

/// B3: a permit goes from task to task within a process, with its slot and a higher fence.
pub async fn a_permit_goes_from_task_to_task<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, key) = (f.locker().await, f.key("k"));
    let semaphore = a.semaphore(&key, 1);
    let permit = semaphore.acquire().numbered().await.unwrap();
    let mut waiting = start(semaphore.acquire().numbered()).await;
    waiting.until(waiters_are(&a, &key, 1)).await;
    let (before, token) = (permit.fence(), look(&a, &key).await.unwrap().holders[0].token);
    permit.release().await.unwrap();
    let next = within("the waiter's turn", waiting).await.unwrap();
    assert!(next.fence() > before && next.slot() == Some(0));
    assert_eq!(look(&a, &key).await.unwrap().holders[0].token, token, "it is the same lease");
    waiters_are(&a, &key, 0).await;
    drop(next);
    becomes_free(&a, &key).await;
}

/// t106: a request for many permits at the front is not passed by a smaller one, and is served.
pub async fn a_heavy_request_is_not_passed<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let (first, heavy, light) = (a.semaphore(&key, 3), b.semaphore(&key, 3), c.semaphore(&key, 3));
    let two = takes(&first, 2).await;
    let mut heavy = start(heavy.acquire_many(3)).await;
    heavy.until(waiters_are(&b, &key, 1)).await;
    assert!(light.try_acquire().await.unwrap().is_none(), "one is free, and another waits before");
    let mut light = start(light.acquire()).await;
    light.until(waiters_are(&c, &key, 2)).await;
    two.release().await.unwrap();
    let heavy = within("the heavy one's turn", heavy).await.unwrap();
    assert_eq!(heavy.num_permits(), 3);
    let (released, light) = within("the light one's turn", both(heavy.release(), light)).await;
    assert!(released.is_ok() && light.unwrap().is_held());
}

/// t102: a heavy request that gives up lets in the smaller ones that it held back.
pub async fn a_heavy_request_that_gives_up<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let one = takes(&a.semaphore(&key, 2), 1).await;
    let mut heavy = start(b.semaphore(&key, 2).acquire_many(2)).await;
    heavy.until(waiters_are(&b, &key, 1)).await;
    let mut light = start(c.semaphore(&key, 2).acquire()).await;
    light.until(waiters_are(&c, &key, 2)).await;
    drop(heavy);
    let light = within("the light one's turn", light).await.unwrap();
    assert!(one.is_held() && light.is_held());
}

/// G8, t80: each request brings its capacity. The largest one in use is never exceeded.
pub async fn the_request_brings_the_capacity<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, key) = (f.locker().await, f.key("k"));
    let small = a.semaphore(&key, 2);
    let large = small.with_capacity(3);
    let (one, two) = (takes(&small, 1).await, takes(&small, 1).await);
    assert!(small.try_acquire().await.unwrap().is_none());
    let three = large.try_acquire().await.unwrap().expect("the larger capacity has room");
    assert!(large.try_acquire().await.unwrap().is_none());
    one.release().await.unwrap();
    assert!(small.try_acquire().await.unwrap().is_none(), "two are held");
    two.release().await.unwrap();
    let again = small.try_acquire().await.unwrap();
    assert!(again.is_some(), "one is held");
    drop((again, three));
}

/// B3, G8, t73: numbered permits have different slots, the lowest free ones, and the fences of a slot rise.
pub async fn slots_are_numbered<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 3), b.semaphore(&key, 3));
    let zero = here.acquire().numbered().await.unwrap();
    let one = there.acquire().numbered().await.unwrap();
    let two = here.try_acquire().numbered().await.unwrap().unwrap();
    assert_eq!([zero.slot(), one.slot(), two.slot()], [Some(0), Some(1), Some(2)]);
    let shown = look(&a, &key).await.unwrap();
    let mut slots: Vec<_> = shown.holders.iter().map(|holding| holding.slot.unwrap()).collect();
    slots.sort();
    assert_eq!(slots, [0, 1, 2]);
    let fence = one.fence();
    one.release().await.unwrap();
    let again = here.acquire().numbered().await.unwrap();
    assert!(again.slot() == Some(1) && again.fence() > fence);
    assert!(zero.is_held() && two.is_held());
    assert_eq!(takes(&a.semaphore(f.key("l"), 2), 1).await.slot(), None, "not asked for");
}

/// B3, t81: an exclusive lock waits for all permits and keeps new ones out. Readers and permits exclude each other.
pub async fn other_kinds_are_kept_out<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 4), b.semaphore(&key, 4));
    let one = takes(&here, 1).await;
    if f.capabilities().await.readers {
        assert!(b.try_read(&key).await.unwrap().is_none());
        assert!(a.try_read(&key).await.unwrap().is_none());
    }
    let mut drain = start(b.lock(&key)).await;
    drain.until(waiters_are(&b, &key, 1)).await;
    assert!(here.try_acquire().await.unwrap().is_none(), "the lock waits");
    one.release().await.unwrap();
    let drained = within("the lock's turn", drain).await.unwrap();
    assert!(there.try_acquire().await.unwrap().is_none());
    assert_eq!(there.available_permits().await.unwrap(), 0);
    drained.release().await.unwrap();
    are_free(&here, 4).await;
}

/// B3, t79, t107: the permits of a holder that has gone come back together, at the end of its lease.
pub async fn lost_permits_come_back_together<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 4), b.semaphore(&key, 4));
    let three = here.acquire_many(3).ttl(f.short_ttl()).renew(Renew::Off).await.unwrap();
    assert!(there.try_acquire_many(2).await.unwrap().is_none());
    within("the loss", three.lost()).await;
    are_free(&there, 4).await;
    assert!(three.release().await.is_err_and(|error| error.is_lost()));
    assert!(takes(&there, 4).await.is_held());
}

/// B3: an owner that holds a permit gets another one; a permit is not re-entered.
pub async fn an_owner_takes_more<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let semaphore = a.semaphore(&key, 2);
    let one = semaphore.acquire().owner(owner.clone()).await.unwrap();
    let two = within("a second permit", semaphore.acquire().owner(owner.clone()).into_future());
    let two = two.await.unwrap();
    assert_eq!((one.depth(), two.depth()), (1, 1));
    assert!(semaphore.try_acquire().owner(owner.clone()).await.unwrap().is_none());
    let error = refused(a.lock(&key).owner(owner)).await;
    assert!(error.is_already_held() && error.to_string().contains("held as permits"), "{error}");
}

/// A25: a permit that is released before its `min_hold` stays closed for the rest of that time, and no other does.
pub async fn min_hold_closes_one_permit<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, key, long) = (f.locker().await, f.key("k"), Duration::from_millis(600));
    let semaphore = a.semaphore(&key, 2);
    let kept = semaphore.acquire().min_hold(long).await.unwrap();
    kept.release().await.unwrap();
    let other = semaphore.try_acquire().await.unwrap().expect("the other permit is free");
    assert!(semaphore.try_acquire().await.unwrap().is_none(), "the first is kept closed");
    passes(&a, long).await;
    are_free(&semaphore, 1).await;
    drop(other);
}

/// t113: bad numbers are refused before anything is sent, and the error names the number.
pub async fn bad_numbers_are_refused<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, key) = (f.locker().await, f.key("k"));
    let heavy = PERMITS_MAX + 1;
    for (permits, capacity, named) in [
        (1, 0, "must not be 0"),
        (0, 2, "0 permits"),
        (3, 2, "3 permits"),
        (heavy, 500, "at most 100"),
    ] {
        let error = refused(a.semaphore(&key, capacity).acquire_many(permits)).await;
        assert!(error.is_invalid() && error.to_string().contains(named), "{error}");
        let error = refused(a.semaphore(&key, capacity).try_acquire_many(permits)).await;
        assert!(error.is_invalid(), "{error}");
    }
    let error = refused(a.semaphore(&key, 4).acquire_many(2).numbered()).await;
    assert!(error.is_invalid() && error.to_string().contains("one by one"), "{error}");
    assert!(look(&a, &key).await.is_none());
}

/// F1: the engine shows the modes of those who hold and of those who wait.
pub async fn modes_are_shown<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let held = takes(&a.semaphore(&key, 3), 2).await;
    let mut waits = start(b.lock(&key)).await;
    waits.until(waiters_are(&b, &key, 1)).await;
    let shown = look(&b, &key).await.unwrap();
    assert_eq!(*shown.mode(), Mode::Permits { permits: 2, capacity: 3 });
    let waiters = shown.waiters.unwrap_or_default();
    assert!(waiters.iter().all(|waiting| waiting.mode == Mode::Exclusive));
    drop((waits, held));
    becomes_free(&a, &key).await;
}

/// t116: the permit that is forced out is lost and free, and no other is.
pub async fn one_permit_is_forced_out<F: Fixture>(f: &F) {
    if !has_permits(f).await || !f.capabilities().await.force_release {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 3), b.semaphore(&key, 3));
    let two = takes(&here, 2).await;
    let token = look(&b, &key).await.unwrap().holders[0].token.unwrap();
    let (one, mut waiting) = (takes(&here, 1).await, start(there.acquire_many(2)).await);
    waiting.until(waiters_are(&b, &key, 1)).await;
    // The waiter may be notified before the call that serves it has its reply.
    let forced = both(b.force_release(&key, token, "ann"), waiting);
    let (forced, served) = within("the waiter's turn", forced).await;
    assert_eq!((forced.is_ok(), served.unwrap().num_permits()), (true, 2));
    let loss = within("the loss", two.lost()).await;
    assert!(matches!(loss, Loss::Forced(_)), "{loss:?}");
    assert!(one.is_held());
    assert!(refused(two.release()).await.is_lost());
}

/// B3, A26: a shutdown frees the permits of its process, and no others.
pub async fn a_shutdown_frees_permits<F: Fixture>(f: &F) {
    if !has_permits(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (here, there) = (a.semaphore(&key, 4), b.semaphore(&key, 4));
    let (one, two, other) = (takes(&here, 1).await, takes(&here, 2).await, takes(&there, 1).await);
    within("the shutdown", a.shutdown(Duration::ZERO)).await;
    for permit in [&one, &two] {
        assert_eq!(within("the loss", permit.lost()).await, Loss::Shutdown);
    }
    assert!(refused(here.acquire()).await.is_closed());
    are_free(&there, 3).await;
    assert!(other.is_held() && there.try_acquire_many(4).await.unwrap().is_none());
}

/// A27, B3: the token of a permit makes no lock.
pub async fn a_permit_is_not_adopted<F: Fixture>(f: &F) {
    if !has_permits(f).await || !f.capabilities().await.adoptable {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let permit = takes(&a.semaphore(&key, 2), 1).await;
    let token = exported(&b, &key).await;
    assert!(refused(b.adopt(&token)).await.is_lost());
    assert!(permit.is_held() && b.semaphore(&key, 2).try_acquire().await.unwrap().is_some());
}

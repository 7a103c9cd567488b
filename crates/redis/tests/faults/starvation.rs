//! Others come for ever: a request in another mode is served in its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{HeldMode, LockRequest, Locker};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::within;

use crate::support::locker;

/// The tasks of one mode: whether they end, and how often they were granted the key.
#[derive(Default)]
struct Often {
    over: AtomicBool,
    grants: AtomicU32,
}

/// Locks in one mode again and again until it is over. Returns how often.
async fn come_for_ever<M: HeldMode>(
    locker: Locker,
    ask: fn(&Locker) -> LockRequest<M>,
    often: Arc<Often>,
) -> u32 {
    let mut count = 0;
    while !often.over.load(Ordering::Relaxed) {
        let guard = within("a turn", ask(&locker).into_future()).await.unwrap();
        often.grants.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await;
        // A slow machine may not answer in time. Then the release is sent again in the background.
        let answer = guard.release().await;
        assert!(answer.as_ref().err().is_none_or(tenure_core::Error::is_unknown), "{answer:?}");
        count += 1;
    }
    count
}

/// The most grants of others while a task waits. Nine that hold the key or came before, and those that join a lease in
/// memory until its process knows of the waiter: usually fewer than 20. On a busy machine the notice takes longer.
const PASSED_AT_MOST: u32 = 200;

/// Nine tasks of three lockers come for ever in one mode, and another locker comes ten times in another mode: few are
/// granted the key while it waits, and all others go on. Grants are counted, because a slow machine delays them all.
async fn others_come_for_ever<O: HeldMode, R: HeldMode>(
    ask_often: fn(&Locker) -> LockRequest<O>,
    rarely: fn(&Locker) -> LockRequest<R>,
) {
    let (server, often) = (RedisServer::start(), Arc::<Often>::default());
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let locker = locker(&server).await;
        for _ in 0..3 {
            tasks.push(tokio::spawn(come_for_ever(locker.clone(), ask_often, often.clone())));
        }
    }
    let rare = locker(&server).await;
    for _ in 0..10 {
        let before = often.grants.load(Ordering::Relaxed);
        let guard = within("its turn", rarely(&rare).into_future()).await.unwrap();
        let passed = often.grants.load(Ordering::Relaxed) - before;
        assert!(passed <= PASSED_AT_MOST, "{passed} others were granted the key meanwhile");
        drop(guard);
    }
    often.over.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(within("a task to end", task).await.unwrap() > 3, "one was hardly served");
    }
}

/// t99: readers come for ever. A writer gets the key behind those that came before it.
#[tokio::test(flavor = "multi_thread")]
async fn t99_readers_come_for_ever() {
    others_come_for_ever(|it| it.read("k"), |it| it.write("k")).await;
}

/// t100: writers come for ever. A reader gets the key in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn t100_writers_come_for_ever() {
    others_come_for_ever(|it| it.write("k"), |it| it.read("k")).await;
}

/// t106: small requests come for ever. A request for all permits is served in its turn, and then they go on.
#[tokio::test(flavor = "multi_thread")]
async fn t106_small_requests_come_for_ever() {
    others_come_for_ever(
        |it| it.semaphore("k", 3).acquire(),
        |it| it.semaphore("k", 3).acquire_many(3),
    )
    .await;
}

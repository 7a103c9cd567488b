//! Waiters: served in order, each watching its predecessor, whatever happens to the predecessor.

use std::time::Duration;

use tenure_core::Locker;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::Cut;
use tenure_testkit::wait::{lapse, within};
use tokio::task::JoinHandle;

use crate::support::{claims, claims_are, locker, proxied, through};

type Waiting = JoinHandle<Result<tenure_core::Guard, tenure_core::Error>>;

/// Waits for `key`, at position `position` of the queue; returns when the claim is queued.
async fn queued(locker: &Locker, server: &EtcdServer, key: &str, position: usize) -> Waiting {
    let waiting = tokio::spawn(locker.lock(key).into_future());
    claims_are(server, key, position).await;
    waiting
}

async fn turn(waiting: Waiting) -> tenure_core::Guard {
    within("its turn", waiting).await.unwrap().unwrap()
}

/// Enough time for a woken waiter to act.
async fn a_moment() {
    lapse(Duration::from_millis(300)).await;
}

/// A24: first come, first served, across processes.
#[tokio::test]
async fn first_come_first_served() {
    let server = EtcdServer::start();
    let holder = locker(&server.url()).await;
    let guard = holder.lock("k").await.unwrap();
    let mut waiting = Vec::new();
    for position in 2..7 {
        let locker = locker(&server.url()).await;
        waiting.push(queued(&locker, &server, "k", position).await);
    }
    let mut last = guard.fence();
    guard.release().await.unwrap();
    for (index, next) in waiting.into_iter().enumerate() {
        let guard = turn(next).await;
        assert!(guard.fence() > last);
        assert_eq!(claims(&server, "k").len(), 5 - index);
        last = guard.fence();
        guard.release().await.unwrap();
    }
}

/// A waiter whose predecessor leaves the queue continues to wait for the claim before that.
#[tokio::test]
async fn a_predecessor_leaves_the_queue() {
    let server = EtcdServer::start();
    let (a, b, c) =
        (locker(&server.url()).await, locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let second = queued(&b, &server, "k", 2).await;
    let third = queued(&c, &server, "k", 3).await;
    second.abort();
    claims_are(&server, "k", 2).await;
    a_moment().await;
    assert!(guard.is_held() && !third.is_finished());
    guard.release().await.unwrap();
    assert!(turn(third).await.is_held());
}

/// An operator deletes the predecessor's claim: the third waiter does not get the lock too early, and the
/// second, whose claim is gone, does not count as queued.
#[tokio::test]
async fn a_predecessor_is_deleted() {
    let server = EtcdServer::start();
    let (a, b, c) =
        (locker(&server.url()).await, locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let second = queued(&b, &server, "k", 2).await;
    let third = queued(&c, &server, "k", 3).await;
    let deleted = claims(&server, "k")[1].clone();
    server.delete(&deleted);
    a_moment().await;
    assert!(guard.is_held() && !third.is_finished());
    guard.release().await.unwrap();
    let next = turn(third).await;
    assert!(next.is_held());
    next.release().await.unwrap();
    // The second waiter queues again, or ends with an error; it never waits for nothing.
    match within("an end of the wait", second).await.unwrap() {
        Ok(guard) => assert!(guard.is_held() && claims(&server, "k").len() == 1),
        Err(error) => assert!(!error.is_busy(), "{error:?}"),
    }
}

/// A waiter's own claim is deleted while it is the only waiter: it does not assume that it holds the lock
/// when the holder releases it.
#[tokio::test]
async fn a_waiter_is_deleted() {
    let server = EtcdServer::start();
    let (a, b, c) =
        (locker(&server.url()).await, locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = queued(&b, &server, "k", 2).await;
    let deleted = claims(&server, "k")[1].clone();
    server.delete(&deleted);
    guard.release().await.unwrap();
    if let Some(other) = c.try_lock("k").await.unwrap() {
        a_moment().await;
        if waiting.is_finished() {
            assert!(waiting.await.unwrap().is_err(), "it is another's");
            return;
        }
        other.release().await.unwrap();
    }
    match within("an end of the wait", waiting).await.unwrap() {
        Ok(guard) => assert!(guard.is_held() && claims(&server, "k").len() == 1),
        Err(error) => assert!(!error.is_busy(), "{error:?}"),
    }
}

/// The history is compacted while a process waits, and the connection is lost: the watch cannot continue at
/// its revision, but the wait does.
#[tokio::test]
async fn compaction_while_waiting() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, locker(&through(&proxy)).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = queued(&b, &server, "k", 2).await;
    server.ctl(&["put", "something", "else"]);
    server.compact();
    a_moment().await;
    assert!(!waiting.is_finished());
    proxy.refuse();
    proxy.cut(Cut::Reset);
    guard.release().await.unwrap();
    server.ctl(&["put", "something", "else again"]);
    server.compact();
    proxy.heal();
    assert!(turn(waiting).await.is_held());
}

/// The release that a waiter waits for happens while its connection is down: the waiter finds out.
#[tokio::test]
async fn a_missed_event() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, locker(&through(&proxy)).await);
    for _ in 0..5 {
        let guard = a.lock("k").await.unwrap();
        let waiting = queued(&b, &server, "k", 2).await;
        proxy.refuse();
        proxy.cut(Cut::Close);
        guard.release().await.unwrap();
        proxy.heal();
        turn(waiting).await.release().await.unwrap();
    }
}

/// t04: a claim that is sent again has one position in the queue, the same one.
#[tokio::test]
async fn t04_a_queue_position_is_kept() {
    let (server, proxy) = proxied();
    let (a, b, c) =
        (locker(&server.url()).await, locker(&through(&proxy)).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let second = queued(&b, &server, "k", 2).await;
    let third = queued(&c, &server, "k", 3).await;
    let before = claims(&server, "k");
    for _ in 0..5 {
        proxy.cut(Cut::Reset);
        lapse(Duration::from_millis(200)).await;
    }
    assert_eq!(claims(&server, "k"), before);
    guard.release().await.unwrap();
    turn(second).await.release().await.unwrap();
    assert!(turn(third).await.is_held());
}

/// t60: a foreign key with a lease is a claim like any other: it is waited for, and never changed.
#[tokio::test]
async fn t60_a_foreign_claim() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let said = server.ctl(&["lease", "grant", "300"]);
    let lease = said.split(' ').nth(1).expect("`lease 32695… granted with TTL(300s)`");
    server.ctl(&["put", "tenure/lock/k/by-hand", "whatever", "--lease", lease]);
    assert!(a.try_lock("k").await.unwrap().is_none());
    let waiting = tokio::spawn(a.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    a_moment().await;
    assert!(!waiting.is_finished());
    assert_eq!(server.ctl(&["get", "--print-value-only", "tenure/lock/k/by-hand"]), "whatever");
    server.revoke(lease);
    assert!(turn(waiting).await.is_held());
}

/// t60: a foreign key without a lease would block the lock for ever: a typed error instead.
#[tokio::test]
async fn t60_a_key_without_a_lease() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    server.ctl(&["put", "tenure/lock/k/by-hand", "whatever"]);
    assert!(a.try_lock("k").await.unwrap_err().is_refused());
    let error = within("a refusal", a.lock("k").into_future()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    claims_are(&server, "k", 1).await;
}

//! Who holds a lock, whatever happens to its holder.

use std::time::Duration;

use tenure_core::Renew;
use tenure_core::backend::{AfterRelease, Attempt, Backend, Loss, Release, Renewal};
use tenure_core::time::{Time, margin};
use tenure_core::{Lease, Locker};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::Way;
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LOCKS, LONG, SHORT, SLACK, claim, claims, claims_are, etcd, exclude, granted, locker,
    lost_on_time, of_ttl, proxied, through,
};

/// A server checks its leases twice a second.
const LEASES_CHECKED_EVERY: Duration = Duration::from_millis(500);

/// A5, t02, t03: a lock that has ended and belongs to a rival is neither released nor renewed by its former holder.
#[tokio::test]
async fn t02_t03_a_rival_is_not_touched() {
    let server = EtcdServer::start();
    let (old, new) = (etcd(&server.url()).await, locker(&server.url()).await);
    // No keep-alives: without an engine, no background work runs.
    let first = claim("k", SHORT);
    let grant = granted(&old, &first).await;
    let ended = std::sync::Arc::new(Lease::new(first, grant, old.clock()));
    let rival = within("the rival's grant", new.lock("k").into_future()).await.unwrap();
    assert!(old.clock().now() >= ended.valid_until());
    let before = server.oldest_first(LOCKS);
    for then in [AfterRelease::Free, AfterRelease::Cooldown(LONG)] {
        assert_eq!(old.release(&ended, then).await.unwrap(), Release::NotHeld);
    }
    let answers = renewals(&old, &[ended]).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    assert_eq!(server.oldest_first(LOCKS), before);
    assert!(rival.is_held());
}

/// t01: a holder that is isolated for longer than its ttl has lost the lock before a rival gets it, and does
/// not get it back when the network is back.
#[tokio::test]
async fn t01_an_isolated_holder() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let rival = within("the rival's turn", b.lock("k").into_future()).await.unwrap();
    exclude(&guard, &rival);
    assert!(!guard.is_held() && rival.fence() > guard.fence());
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    proxy.heal();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
    let again = within("a lock", a.lock("other").into_future()).await.unwrap();
    assert!(again.is_held() && rival.is_held());
    assert_eq!(claims(&server, "k").len(), 1);
}

/// t22: a released lock stays released, and its session gets no keep-alives any more.
#[tokio::test]
async fn t22_no_request_after_a_release() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let guard = a.lock("k").ttl(SHORT).await.unwrap();
    lapse(SHORT / 2).await;
    guard.release().await.unwrap();
    assert!(claims(&server, "k").is_empty());
    let before = server.metrics();
    lapse(SHORT * 3).await;
    assert!(claims(&server, "k").is_empty());
    let kept = server.metrics().messages("LeaseKeepAlive") - before.messages("LeaseKeepAlive");
    assert!(kept <= 1, "{kept} keep-alives: only a session for {LONG:?} may be left");
}

/// A lock with another ttl has a session of its own, which ends with the lock. Locks with the default ttl
/// share a session, which stays.
#[tokio::test]
async fn sessions_are_shared_and_closed() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let (one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    assert_eq!(server.leases().len(), 1, "one session for the default");
    // So long that the session does not expire during the test.
    let other = a.lock("three").ttl(LONG * 2).await.unwrap();
    assert_eq!(server.leases().len(), 2);
    other.release().await.unwrap();
    eventually("its session to be closed", || async { server.leases().len() == 1 }).await;
    one.release().await.unwrap();
    two.release().await.unwrap();
    a.shutdown(Duration::from_secs(5)).await;
    eventually("every session to be closed", || async { server.leases().is_empty() }).await;
    assert_eq!(server.keys(""), ["tenure/epoch"], "nothing else is left");
}

/// t23: without renewals the lock ends on time by our clock, and its key is deleted.
#[tokio::test]
async fn t23_an_unrenewed_lease_ends_on_time() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").ttl(SHORT).renew(Renew::Off).await.unwrap();
    let until = guard.valid_until();
    let waiting = tokio::spawn(b.lock("k").into_future());
    assert_eq!(lost_on_time(&guard).await, Loss::Expired);
    let next = within("the rival's turn", waiting).await.unwrap().unwrap();
    freed_on_time(&a, until);
    assert!(next.is_held());
}

/// Asserts that the server freed a lock on time whose validity by our clock ended at `until`: not before, and soon
/// after its next check of leases. A waiter that misses the event would read only seconds later.
fn freed_on_time(locker: &Locker, until: Time) {
    let now = locker.clock().now();
    let latest = until.after(margin(SHORT) + LEASES_CHECKED_EVERY + SLACK);
    assert!(until <= now, "{:?} too early", until.since(now));
    assert!(now <= latest, "{:?} too late", now.since(latest));
}

/// t24: a blocked application runtime does not prevent renewals.
#[tokio::test]
async fn t24_a_blocked_runtime_loses_nothing() {
    let server = EtcdServer::start();
    let (a, b) = (of_ttl(&server.url(), SHORT).await, locker(&server.url()).await);
    let (shared, own) =
        (a.lock("k").await.unwrap(), a.lock("l").ttl(Duration::from_secs(3)).await.unwrap());
    tenure_testkit::wait::pass(SHORT * 3);
    assert!(shared.is_held() && own.is_held(), "renewals have a thread of their own");
    assert!(b.try_lock("k").await.unwrap().is_none());
    shared.release().await.unwrap();
    own.release().await.unwrap();
}

/// t32: the lock of a dead holder can be acquired when its ttl has passed, and not before.
#[tokio::test]
async fn t32_the_ttl_frees_the_lock_of_a_dead_holder() {
    let server = EtcdServer::start();
    let (store, b) = (etcd(&server.url()).await, locker(&server.url()).await);
    let dead = claim("k", SHORT);
    let grant = granted(&store, &dead).await;
    let lease = Lease::new(dead, grant, store.clock());
    let guard = within("the lock", b.lock("k").into_future()).await.unwrap();
    freed_on_time(&b, lease.valid_until());
    assert!(guard.is_held());
    assert_eq!(claims(&server, "k").len(), 1, "that of the dead holder is gone");
}

/// t15: a server that restarts empty has lost the lock: the holder is notified, others can acquire it, and no
/// request hangs.
#[tokio::test]
async fn t15_a_restart_without_data_is_a_loss() {
    let server = EtcdServer::start();
    let (a, b) = (of_ttl(&server.url(), SHORT).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    server.restart_empty();
    let next = acquire_again(&b, "k").await;
    within("the loss", guard.lost()).await;
    assert!(!guard.is_held() && next.is_held());
    assert!(acquire_again(&a, "other").await.is_held());
}

/// Retries over the errors after a restart of the server.
pub(crate) async fn acquire_again(locker: &Locker, key: &str) -> tenure_core::Guard {
    let trying = async {
        loop {
            if let Ok(Some(guard)) = locker.try_lock(key).await {
                return guard;
            }
            lapse(Duration::from_millis(20)).await;
        }
    };
    within("a lock on the new server", trying).await
}

/// t15: a server that restarts with its data keeps the lock, and the holder keeps its lease.
#[tokio::test]
async fn a_restart_with_data_loses_nothing() {
    let server = EtcdServer::start();
    let ttl = Duration::from_secs(6);
    let (a, b) = (of_ttl(&server.url(), ttl).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    server.restart();
    lapse(ttl).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    assert!(within("the lock", waiting).await.unwrap().unwrap().is_held());
}

/// An attempt on a held lock is rejected, and the reply names the holder.
#[tokio::test]
async fn busy_names_the_holder() {
    let server = EtcdServer::start();
    let (a, store) = (locker(&server.url()).await, etcd(&server.url()).await);
    let guard = a.lock("k").label("night job").await.unwrap();
    match store.try_acquire(&claim("k", SHORT)).await.unwrap() {
        Attempt::Held(holder) => assert_eq!(holder.label.as_deref(), Some("night job")),
        Attempt::Granted(_) => panic!("it is held"),
    }
    guard.release().await.unwrap();
}

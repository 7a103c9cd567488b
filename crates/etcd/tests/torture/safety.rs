//! Who holds what, whatever becomes of the holder.

use std::time::Duration;

use tenure_core::Renew;
use tenure_core::backend::{Attempt, Backend, Loss, Release, Renewal, Then};
use tenure_core::time::Time;
use tenure_core::{Lease, Locker};
use tenure_testkit::meddle::renewals;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::Way;
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LOCKS, LONG, SHORT, SLACK, claim, claims, claims_are, etcd, exclude, granted, locker,
    lost_on_time, of_ttl, proxied, through,
};

/// t02, t03: what has ended and is a rival's now is neither released nor renewed by its old holder.
#[tokio::test]
async fn t02_t03_a_rival_is_not_touched() {
    let server = EtcdServer::start();
    let (old, new) = (etcd(&server.url()).await, locker(&server.url()).await);
    // Nobody keeps it alive: below an engine there is nobody who would.
    let first = claim("k", SHORT);
    let grant = granted(&old, &first).await;
    let ended = std::sync::Arc::new(Lease::new(first, grant, old.clock()));
    let rival = within("the rival's grant", new.lock("k").into_future()).await.unwrap();
    assert!(old.clock().now() >= ended.valid_until());
    let before = server.oldest_first(LOCKS);
    for then in [Then::Free, Then::Closed(LONG)] {
        assert_eq!(old.release(&ended, then).await.unwrap(), Release::NotHeld);
    }
    let answers = renewals(&old, &[ended]).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    assert_eq!(server.oldest_first(LOCKS), before);
    assert!(rival.is_held());
}

/// t01: a holder that is cut off for longer than its ttl has lost the lock before a rival gets it,
/// and does not get it back when the network does.
#[tokio::test]
async fn t01_a_holder_cut_off() {
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

/// t22: a lock that was released stays so, and its session is not kept alive any more.
#[tokio::test]
async fn t22_nothing_comes_after_a_release() {
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

/// A lock with a ttl of its own has a session of its own, which ends with it; those with the default
/// share one, which does not.
#[tokio::test]
async fn sessions_are_shared_and_closed() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let (one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    assert_eq!(server.leases().len(), 1, "one session for the default");
    // So long that it does not end by itself in time.
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

/// t23: without renewals it ends on time by our clock, and the key goes.
#[tokio::test]
async fn t23_an_unrenewed_lease_ends_on_time() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").ttl(SHORT).renew(Renew::Off).await.unwrap();
    let until = guard.valid_until();
    let waiting = tokio::spawn(b.lock("k").into_future());
    assert_eq!(lost_on_time(&guard).await, Loss::Expired);
    let next = within("the rival's turn", waiting).await.unwrap().unwrap();
    assert!(next.is_held() && freed_on_time(&a, until));
}

/// Whether now is when a server frees what is valid until then by our clock: it looks at leases twice a second. One that
/// is not told of it looks seconds later.
fn freed_on_time(locker: &Locker, until: Time) -> bool {
    let now = locker.clock().now();
    now >= until && now <= until.after(Duration::from_millis(1_500) + SLACK)
}

/// t24: a blocked application runtime does not keep a lock from being renewed.
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

/// t32: the lock of a holder that is gone can be had when its ttl has passed, and not before.
#[tokio::test]
async fn t32_the_ttl_frees_what_nobody_keeps() {
    let server = EtcdServer::start();
    let (store, b) = (etcd(&server.url()).await, locker(&server.url()).await);
    let dead = claim("k", SHORT);
    let grant = granted(&store, &dead).await;
    let lease = Lease::new(dead, grant, store.clock());
    let guard = within("the lock", b.lock("k").into_future()).await.unwrap();
    assert!(guard.is_held() && freed_on_time(&b, lease.valid_until()));
}

/// t15: a server that comes back empty has lost the lock: the holder hears it, others get it, and
/// nothing hangs on what is gone.
#[tokio::test]
async fn t15_a_restart_without_data_is_a_loss() {
    let server = EtcdServer::start();
    let (a, b) = (of_ttl(&server.url(), SHORT).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    server.restart_empty();
    let next = got_again(&b, "k").await;
    within("the loss", guard.lost()).await;
    assert!(!guard.is_held() && next.is_held());
    assert!(got_again(&a, "other").await.is_held());
}

/// Through whatever a client says of a server that it does not know again.
pub(crate) async fn got_again(locker: &Locker, key: &str) -> tenure_core::Guard {
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

/// t15: a server that comes back with its data keeps the lock, and the holder its lease.
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

/// Rights to act are refused where the server says busy, and the answer names who is in the way.
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

//! Sessions: leases that are kept alive, revoked or cut off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{Backend as _, Loss};
use tenure_core::{Locker, TTL_DEFAULT};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, SLACK, builder, claim, claims, claims_are, etcd, exclude, lease_of, locker,
    of_ttl, proxied, through, whole,
};

/// t31: a keep-alive stream that breaks again and again is opened again each time before the lease ends.
#[tokio::test]
async fn t31_keep_alives_are_cut() {
    let (_server, proxy) = proxied();
    let ttl = Duration::from_secs(3);
    let a = of_ttl(&through(&proxy), ttl).await;
    let (shared, own) = (a.lock("k").await.unwrap(), a.lock("l").ttl(ttl * 2).await.unwrap());
    for _ in 0..20 {
        lapse(Duration::from_millis(400)).await;
        proxy.cut(Cut::Reset);
    }
    assert!(shared.is_held() && own.is_held(), "{:?}", shared.remaining());
    shared.release().await.unwrap();
    own.release().await.unwrap();
}

/// t31: the validity after a late reply to a keep-alive does not count from the time of the reply.
#[tokio::test]
async fn t31_a_late_reply_counts_from_its_request() {
    let (_server, proxy) = proxied();
    let a = of_ttl(&through(&proxy), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    let delay = Duration::from_millis(150);
    proxy.rule(Rule::on(Way::Replies, Action::Delay(delay)));
    lapse(SHORT * 2).await;
    for _ in 0..40 {
        let left = guard.remaining();
        assert!(left <= SHORT - delay, "{left:?} left of {SHORT:?}, answered {delay:?} late");
        lapse(Duration::from_millis(25)).await;
    }
    assert!(guard.is_held());
}

/// t31: a lease that an operator revokes is a loss. Every holder on it is notified at once, not only at its
/// next renewal. The next claim gets a new session.
#[tokio::test]
async fn t31_a_revoked_lease() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (one, two) = (a.lock("one").await.unwrap(), a.lock("two").await.unwrap());
    let waiting = tokio::spawn(b.lock("one").into_future());
    claims_are(&server, "one", 2).await;
    server.revoke(&lease_of(&server, &claims(&server, "one")[0]));
    let next = within("the next one's turn", waiting).await.unwrap().unwrap();
    for guard in [&one, &two] {
        let loss = within("the loss", guard.lost()).await;
        assert!(matches!(loss, Loss::Session | Loss::Gone), "{loss:?}");
        assert!(!guard.is_held());
    }
    assert!(next.is_held() && next.fence() > one.fence());
    let again = within("a lock", a.lock("two").into_future()).await.unwrap();
    assert!(again.is_held() && again.fence() > two.fence());
}

/// t122: a session that is being made on a blocked runtime does not prevent others from making one.
#[test]
fn a_session_on_a_blocked_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_server, proxy) = proxied();
    let patient = builder(&through(&proxy)).response_timeout(Duration::from_secs(2));
    let a = Locker::new(patient.connect_later().unwrap());
    let (go_on, still) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (a, proxy) = (&a, &proxy);
        scope.spawn(move || {
            runtime().block_on(async {
                // Connects.
                a.inspect("k").await.unwrap();
                proxy.black_hole(&[Way::Replies]);
                let making = tokio::spawn(a.lock("k").into_future());
                eventually("it to be under way", || async { proxy.struck() > 0 }).await;
                proxy.heal();
                let _ = still.recv();
                making.abort();
            });
        });
        runtime().block_on(async {
            eventually("it to be under way", || async { proxy.struck() > 0 }).await;
            let guard = within("a lock", a.lock("other").into_future()).await.unwrap();
            assert!(guard.is_held());
            drop(go_on);
            guard.release().await.unwrap();
        });
    });
}

/// The error of a wait whose session has ended.
const ENDED: &str = "the session ended while waiting for `k`: the place in the queue is lost";

/// t30: a lease ends while its claim waits and another process holds the lock: the wait ends with an error
/// about that, and the next claim has a session that is alive.
#[tokio::test]
async fn t30_a_lease_that_ends_while_waiting() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let lease = lease_of(&server, &claims(&server, "k")[1]);
    server.revoke(&lease);
    let error = within("an end of the wait", waiting).await.unwrap().unwrap_err();
    assert!(error.is_unavailable() && whole(&error).ends_with(ENDED), "{}", whole(&error));
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let next = within("the lock", b.lock("k").into_future()).await.unwrap();
    assert!(next.is_held());
    assert_ne!(lease_of(&server, &claims(&server, "k")[0]), lease);
}

/// t30: a waiter with a bound queues again when its lease ends, and finally gets the lock.
#[tokio::test]
async fn t30_a_bounded_wait_queues_again() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").wait(LONG).into_future());
    claims_are(&server, "k", 2).await;
    let lost = lease_of(&server, &claims(&server, "k")[1]);
    server.revoke(&lost);
    claims_are(&server, "k", 2).await;
    assert_ne!(lease_of(&server, &claims(&server, "k")[1]), lost);
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    assert!(within("the lock", waiting).await.unwrap().unwrap().is_held());
}

/// t30: a waiter that gets no event about the end of its lease does not assume that it holds the lock when
/// the lock becomes free.
#[tokio::test]
async fn t30_a_lease_ends_without_an_event() {
    let server = EtcdServer::start();
    // Without an engine, no background work watches the session.
    let (a, deaf) = (locker(&server.url()).await, Arc::new(etcd(&server.url()).await));
    for ttl in [TTL_DEFAULT, LONG] {
        let guard = a.lock("k").await.unwrap();
        let (store, one) = (deaf.clone(), claim("k", ttl));
        let waiting = tokio::spawn(async move { store.acquire(&one).await });
        claims_are(&server, "k", 2).await;
        server.revoke(&lease_of(&server, &claims(&server, "k")[1]));
        guard.release().await.unwrap();
        let fault = within("an end of the wait", waiting).await.unwrap().unwrap_err();
        assert_eq!(fault.to_string(), ENDED);
        claims_are(&server, "k", 0).await;
    }
}

/// t30: an isolated waiter knows on time, by its own clock, that its position is lost.
#[tokio::test]
async fn t30_a_waiter_isolated_for_longer_than_its_lease() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, of_ttl(&through(&proxy), SHORT).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let at = Instant::now();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let error = within("an end of the wait", waiting).await.unwrap().unwrap_err();
    // Its last keep-alive was up to half a second earlier.
    assert!(at.elapsed() < SHORT + SLACK / 2, "{:?}", at.elapsed());
    assert!(error.is_unavailable() && whole(&error).ends_with(ENDED), "{}", whole(&error));
    proxy.cut(Cut::Reset);
    proxy.heal();
    claims_are(&server, "k", 1).await;
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    assert!(guard.is_held() && !waiting.is_finished());
    guard.release().await.unwrap();
    assert!(within("its turn", waiting).await.unwrap().unwrap().is_held());
}

/// C5, t67: a server grants more than the requested ttl: the granted ttl counts.
#[tokio::test]
async fn t67_the_granted_ttl_counts() {
    // With these settings the server grants no lease below five seconds.
    let slow = ["--heartbeat-interval=300", "--election-timeout=3000"];
    let server = EtcdServer::start_with(&slow);
    let a = of_ttl(&server.url(), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    let left = guard.remaining();
    assert!(left > SHORT && left <= Duration::from_secs(5), "{left:?}");
    guard.release().await.unwrap();
}

/// A session outlives many locks: no lease is granted or revoked for each lock.
#[tokio::test]
async fn a_session_is_granted_once() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    a.lock("k").await.unwrap().release().await.unwrap();
    let before = server.metrics();
    for number in 0..20 {
        a.lock(format!("k{number}")).await.unwrap().release().await.unwrap();
    }
    let after = server.metrics();
    for method in ["LeaseGrant", "LeaseRevoke"] {
        assert_eq!(after.calls(method), before.calls(method), "{method}");
    }
}

/// A session that was lost together with a lock never lives again: a late extension at the server is undone.
#[tokio::test]
async fn a_lost_session_is_over() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let lease = lease_of(&server, &claims(&server, "k")[0]);
    // Keep-alives arrive and extend the lease; their replies do not come back.
    proxy.black_hole(&[Way::Replies]);
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    proxy.cut(Cut::Reset);
    proxy.heal();
    let next = within("the next one's turn", b.lock("k").into_future()).await.unwrap();
    exclude(&guard, &next);
    drop(guard);
    let again = within("a lock", a.lock("other").into_future()).await.unwrap();
    assert_ne!(lease_of(&server, &claims(&server, "other")[0]), lease, "another session");
    eventually("the old one to end", || async { !server.leases().contains(&lease) }).await;
    assert!(again.is_held() && next.is_held());
}

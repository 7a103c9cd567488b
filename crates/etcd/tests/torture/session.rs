//! Sessions: leases kept alive, revoked, cut off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{Backend as _, Loss};
use tenure_core::{Locker, TTL_DEFAULT};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Deed, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, SLACK, builder, claim, claims, claims_are, etcd, exclude, lease_of, locker,
    of_ttl, proxied, through, whole,
};

/// t31: a keep-alive stream that is cut again and again is made anew each time before the lease ends.
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

/// t31: keep-alives that are answered too late do not count from when they were answered.
#[tokio::test]
async fn t31_late_answers_are_worth_less() {
    let (_server, proxy) = proxied();
    let a = of_ttl(&through(&proxy), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    let delay = Duration::from_millis(150);
    proxy.rule(Rule::on(Way::Replies, Deed::Delay(delay)));
    lapse(SHORT * 2).await;
    for _ in 0..40 {
        let left = guard.remaining();
        assert!(left <= SHORT - delay, "{left:?} left of {SHORT:?}, answered {delay:?} late");
        lapse(Duration::from_millis(25)).await;
    }
    assert!(guard.is_held());
}

/// t31: a lease that an operator revokes is a loss, heard at once by everyone who holds by it and not only at their next
/// renewal, and a new session is made for whoever asks next.
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

/// A session that is being made on a runtime which stands still keeps nobody else from making one.
#[test]
fn a_session_on_a_runtime_that_stands_still() {
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

/// What a wait ends with whose session has ended.
const ENDED: &str = "the session ended while waiting for `k`: the place in the queue is lost";

/// t30: a lease that ends while its claim waits: the wait ends with an error that says so, while another holds the lock,
/// and the next one has a session that lives.
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

/// t30: one that hears nothing of it, and is told that the lock is free, does not take that for its turn.
#[tokio::test]
async fn t30_a_lease_that_ends_unheard() {
    let server = EtcdServer::start();
    // Below an engine there is nobody who listens.
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

/// t30: a waiter that is cut off knows by its own clock, on time, that its place is lost.
#[tokio::test]
async fn t30_a_waiter_cut_off_for_longer_than_its_lease() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, of_ttl(&through(&proxy), SHORT).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let at = Instant::now();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let error = within("an end of the wait", waiting).await.unwrap().unwrap_err();
    // Its session was kept alive up to half a second before.
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

/// t67: a server that grants more than was asked for: that is what is counted with.
#[tokio::test]
async fn t67_the_granted_ttl_counts() {
    // With these times it grants no lease below five seconds.
    let slow = ["--heartbeat-interval=300", "--election-timeout=3000"];
    let server = EtcdServer::start_with(&slow);
    let a = of_ttl(&server.url(), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    let left = guard.remaining();
    assert!(left > SHORT && left <= Duration::from_secs(5), "{left:?}");
    guard.release().await.unwrap();
}

/// A session outlives many locks: nothing is granted or revoked per lock.
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

/// A session that a lock was lost with never comes back to life: what comes late is undone.
#[tokio::test]
async fn a_lost_session_is_over() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let lease = lease_of(&server, &claims(&server, "k")[0]);
    // Keep-alives arrive and extend it; their answers do not.
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

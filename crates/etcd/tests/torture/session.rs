//! Sessions: leases kept alive, revoked, cut off.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Deed, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, claims, claims_are, exclude, lease_of, locker, of_ttl, proxied, through,
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

/// t31: a lease that an operator revokes is a loss, heard by everyone who holds by it, and a
/// new session is made for whoever asks next.
#[tokio::test]
async fn t31_a_revoked_lease() {
    let server = EtcdServer::start();
    let ttl = Duration::from_secs(6);
    let (a, b) = (of_ttl(&server.url(), ttl).await, locker(&server.url()).await);
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

/// t30: a lease that ends while its claim waits: that claim is never reported as acquired under it.
#[tokio::test]
async fn t30_a_lease_that_ends_while_waiting() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let queued = claims(&server, "k")[1].clone();
    let lease = lease_of(&server, &queued);
    server.revoke(&lease);
    guard.release().await.unwrap();
    match within("an end of the wait", waiting).await.unwrap() {
        // It asked again, with a session that lives.
        Ok(next) => {
            assert!(next.is_held());
            let held = claims(&server, "k");
            assert_eq!(held.len(), 1, "{held:?}");
            assert_ne!(lease_of(&server, &held[0]), lease);
        }
        Err(error) => assert!(error.is_lost() || error.is_unavailable(), "{error:?}"),
    }
}

async fn claims_are_without(server: &EtcdServer, gone: &str) {
    let is_gone = || async { !claims(server, "k").iter().any(|claim| claim == gone) };
    eventually("the claim to go", is_gone).await;
}

/// t30: the same where the waiter is cut off, and hears of nothing until it is back.
#[tokio::test]
async fn t30_a_waiter_cut_off_for_longer_than_its_lease() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, of_ttl(&through(&proxy), SHORT).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let queued = claims(&server, "k")[1].clone();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    claims_are_without(&server, &queued).await;
    guard.release().await.unwrap();
    let third = a.lock("k").await.unwrap();
    proxy.cut(Cut::Reset);
    proxy.heal();
    lapse(SHORT).await;
    assert!(third.is_held());
    if waiting.is_finished() {
        let ended = waiting.await.unwrap();
        assert!(ended.is_err(), "it is not its turn");
        return;
    }
    third.release().await.unwrap();
    if let Ok(next) = within("an end of the wait", waiting).await.unwrap() {
        assert!(next.is_held() && claims(&server, "k").len() == 1);
    }
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

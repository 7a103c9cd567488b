//! Requests whose reply is lost or late: moves between sessions, closings, exports; and keys that an operator deletes.

use std::time::{Duration, Instant};

use tenure_core::Lease;
use tenure_core::backend::{AfterRelease, Backend};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, TIMEOUT, claim, claims, claims_are, etcd, granted, locker, of_ttl, proxied,
    through,
};

/// An operator deletes the session's own key: locks are acquired as before, also after a claim was undone
/// without a reply.
#[tokio::test]
async fn a_sessions_own_key_is_deleted() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    let kept = a.lock("kept").await.unwrap();
    for _ in 0..2 {
        server.pause();
        assert!(a.try_lock("lost").await.is_err());
        server.go_on();
        claims_are(&server, "lost", 0).await;
        server.delete("tenure/session/");
        for name in ["one", "two"] {
            let guard = within("a lock", a.lock(name).into_future()).await.unwrap();
            assert!(a.try_lock(name).await.unwrap().is_none());
            guard.release().await.unwrap();
            assert!(a.try_lock(name).await.unwrap().is_some(), "tried, too");
        }
    }
    assert!(kept.is_held());
    kept.release().await.unwrap();
}

/// A28: a lock whose closing was executed, with the reply lost, stays closed for its time, and is free
/// afterwards.
#[tokio::test]
async fn a_closing_whose_answer_is_lost() {
    for way in [Way::Requests, Way::Replies] {
        let (server, proxy) = proxied();
        let (a, b) = (locker(&through(&proxy)).await, locker(&server.url()).await);
        let (shortest, at) = (Duration::from_secs(4), Instant::now());
        let guard = a.lock("k").min_hold(shortest).label("marked").await.unwrap();
        // The closing request is recognised by its value. Its reply contains no such text, so it is
        // recognised by the request before it.
        let closing =
            Rule::on(Way::Requests, Action::Delay(Duration::ZERO)).containing("t1:closed");
        proxy.rule(match way {
            Way::Requests => Rule::on(way, Action::End(Cut::Reset)).containing("t1:closed").once(),
            Way::Replies => closing.once(),
        });
        let releasing = tokio::spawn(guard.release());
        if way == Way::Replies {
            eventually("the closing to be sent", || async { proxy.struck() >= 1 }).await;
            proxy.cut(Cut::Reset);
        }
        let _ = within("an answer", releasing).await.unwrap();
        lapse(TIMEOUT * 3).await;
        if at.elapsed() < shortest {
            assert!(b.try_lock("k").await.unwrap().is_none(), "closed ({way:?})");
        }
        let next = within("the lock to open", b.lock("k").into_future()).await.unwrap();
        assert!(at.elapsed() >= shortest, "nobody had it before its time ({way:?})");
        next.release().await.unwrap();
    }
}

/// A move to a longer session is delayed by the network until after renewals on the old session; then all
/// traffic is blocked. As long as the guard reports the lock as held, it is held.
#[tokio::test]
async fn a_move_that_is_carried_out_late() {
    let (server, proxy) = proxied();
    let (ttl, longer) = (Duration::from_secs(4), Duration::from_secs(5));
    let a = of_ttl(&through(&proxy), ttl).await;
    let first = a.lock("k").label("mover").await.unwrap();
    // The next holder in this process has a longer ttl, so the lock has to move.
    let second = tokio::spawn(a.lock("k").ttl(longer).into_future());
    lapse(Duration::from_millis(100)).await;
    let late = Duration::from_secs(3);
    proxy.rule(Rule::on(Way::Requests, Action::Delay(late)).containing("mover").once());
    let at = Instant::now();
    first.release().await.unwrap();
    let guard = within("the hand-over", second).await.unwrap();
    if let Ok(guard) = guard {
        holds_what_it_says(&server, &guard, late + TIMEOUT.saturating_sub(at.elapsed())).await;
        proxy.black_hole(&[Way::Requests, Way::Replies]);
        holds_what_it_says(&server, &guard, longer + Duration::from_secs(2)).await;
        assert!(!guard.is_held());
    }
}

/// For `time`: as long as the guard reports that it holds `k`, the server has the claim.
async fn holds_what_it_says(server: &EtcdServer, guard: &tenure_core::Guard, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let gone = claims(server, "k").is_empty();
        assert!(!gone || !guard.is_held(), "it believes in a lock that is gone");
        lapse(Duration::from_millis(20)).await;
    }
}

/// A move whose request or reply is lost: after a release, no claim is left.
#[tokio::test]
async fn a_move_that_is_lost() {
    for way in [Way::Requests, Way::Replies] {
        let (server, proxy) = proxied();
        let a = of_ttl(&through(&proxy), SHORT).await;
        let first = a.lock("k").label("mover").await.unwrap();
        let second = tokio::spawn(a.lock("k").ttl(LONG).into_future());
        lapse(Duration::from_millis(100)).await;
        let moving = Rule::on(Way::Requests, Action::Delay(Duration::ZERO)).containing("mover");
        proxy.rule(match way {
            Way::Requests => Rule::on(way, Action::End(Cut::Reset)).containing("mover").once(),
            Way::Replies => moving.once(),
        });
        let struck = proxy.struck();
        first.release().await.unwrap();
        if way == Way::Replies {
            eventually("it to move", || async { proxy.struck() > struck }).await;
            proxy.cut(Cut::Reset);
        }
        if let Ok(guard) = within("the hand-over", second).await.unwrap() {
            let _ = within("an answer", guard.release()).await;
        }
        claims_are(&server, "k", 0).await;
    }
}

/// A lost reply at each step of `relinquish`, without an engine.
#[tokio::test]
async fn a_lock_relinquished_over_broken_connections() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    for round in 0..8 {
        let one = claim("k", Duration::from_secs(30));
        let grant = granted(&store, &one).await;
        let lease = std::sync::Arc::new(Lease::new(one, grant, store.clock()));
        let way = if round % 2 == 0 { Way::Requests } else { Way::Replies };
        proxy.rule(Rule::on(way, Action::End(Cut::Reset)).times(round / 2));
        let relinquished = store.relinquish(&lease).await;
        proxy.heal();
        if relinquished.is_err() {
            let released = || async { store.release(&lease, AfterRelease::Free).await.is_ok() };
            eventually("it to be released", released).await;
            assert!(claims(&server, "k").is_empty(), "round {round}");
        }
        for left in claims(&server, "k") {
            server.delete(&left);
        }
    }
}

//! Requests that are executed after the caller has stopped waiting, and lost replies.

use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, FaultKind};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, TIMEOUT, builder, claim, claims, claims_are, etcd, granted, labelled, locker,
    of_ttl, proxied, through,
};

/// The label of the claims in these tests, to find their requests in the traffic.
const MARK: &str = "marked-claim";

/// t05: an acquire that timed out is executed later by the server, and is undone, although its session lives
/// on.
#[tokio::test]
async fn t05_a_late_grant_is_undone() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let _session = a.lock("kept").await.unwrap();
    for _ in 0..5 {
        server.pause();
        let error = a.try_lock("k").await.unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
        server.go_on();
        let guard = within("the lock", a.lock("k").into_future()).await.unwrap();
        assert!(guard.is_held());
        claims_are(&server, "k", 1).await;
        guard.release().await.unwrap();
        claims_are(&server, "k", 0).await;
    }
}

/// t05: an acquire that the network delays until after it was undone never holds the lock.
#[tokio::test]
async fn t05_a_grant_delayed_by_the_network() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    // Begins the session.
    granted(&store, &claim("kept", LONG)).await;
    let late = labelled("k", LONG, Some(MARK));
    let slow = Rule::on(Way::Requests, Action::Delay(TIMEOUT * 4)).containing(MARK).once();
    proxy.rule(slow);
    let fault = store.try_acquire(&late).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}");
    eventually("it to be abandoned", || async { store.abandon(&late).await.is_ok() }).await;
    // From here on it must not hold the lock, even if a request is still under way.
    for _ in 0..10 {
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
        lapse(TIMEOUT / 2).await;
    }
    assert_eq!(proxy.struck(), 1);
}

/// t05: while one claim is undone, other claims in flight on the same session get their locks.
#[tokio::test]
async fn t05_other_claims_in_flight_are_granted() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let _session = a.lock("kept").await.unwrap();
    server.pause();
    let lost = a.try_lock("lost").await;
    assert!(lost.is_err());
    server.go_on();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let a = a.clone();
        tasks.spawn(async move { a.lock(format!("k{number}")).await.map(|guard| guard.is_held()) });
    }
    while let Some(done) = within("all locks", tasks.join_next()).await {
        assert!(done.unwrap().unwrap());
    }
    claims_are(&server, "lost", 0).await;
}

/// t04: a grant whose reply is lost with its connection is resolved: one claim, one fence.
#[tokio::test]
async fn t04_a_lost_reply_is_resolved() {
    for how in [Cut::Reset, Cut::Close] {
        let (server, proxy) = proxied();
        let (a, b) = (locker(&through(&proxy)).await, locker(&server.url()).await);
        let _session = a.lock("kept").await.unwrap();
        let before = proxy.accepted();
        proxy.rule(Rule::on(Way::Replies, Action::Delay(TIMEOUT / 2)));
        let locking = tokio::spawn(a.lock("k").into_future());
        // The request was executed, and its reply is under way.
        claims_are(&server, "k", 1).await;
        proxy.cut(how);
        proxy.heal();
        let guard = within("the lock", locking).await.unwrap().unwrap();
        assert!(proxy.accepted() > before, "the answer was lost with its connection");
        assert_eq!(claims(&server, "k").len(), 1);
        assert!(b.try_lock("k").await.unwrap().is_none());
        let fence = guard.fence();
        guard.release().await.unwrap();
        claims_are(&server, "k", 0).await;
        assert!(b.lock("k").await.unwrap().fence() > fence);
    }
}

/// t04: without an engine, a granted claim that asks again gets the same fence.
#[tokio::test]
async fn t04_granted_again_is_one_lease() {
    let server = EtcdServer::start();
    let (store, one) = (etcd(&server.url()).await, claim("k", LONG));
    let first = granted(&store, &one).await;
    let before = claims(&server, "k");
    let second = granted(&store, &one).await;
    assert_eq!((first.fence, claims(&server, "k")), (second.fence, before));
    let waiting = within("the same", store.acquire(&one)).await.unwrap();
    assert_eq!(waiting.fence, first.fence);
}

/// t50: a release without a reply is unknown; later it is done.
#[tokio::test]
async fn t50_a_release_without_an_answer() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    server.pause();
    let error = within("an answer", guard.release()).await.unwrap_err();
    assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
    server.go_on();
    claims_are(&server, "k", 0).await;
    assert!(within("the lock", b.lock("k").into_future()).await.unwrap().is_held());
}

/// t50: a release whose reply is lost is done once. A retry does not hit another holder: neither the rival
/// that has the lock by then, nor a later claim of ours.
#[tokio::test]
async fn t50_a_release_whose_reply_is_lost() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&through(&proxy)).await, locker(&server.url()).await);
    for _ in 0..5 {
        let guard = a.lock("k").await.unwrap();
        let rival = tokio::spawn(b.lock("k").into_future());
        claims_are(&server, "k", 2).await;
        proxy.rule(Rule::on(Way::Replies, Action::End(Cut::Reset)).once());
        match within("an answer", guard.release()).await {
            Ok(_) => {}
            Err(error) => assert!(error.is_unknown() || error.is_unavailable(), "{error:?}"),
        }
        let rival = within("the rival's turn", rival).await.unwrap().unwrap();
        lapse(TIMEOUT).await;
        assert!(rival.is_held());
        assert_eq!(claims(&server, "k").len(), 1, "the retry hit nobody");
        rival.release().await.unwrap();
        claims_are(&server, "k", 0).await;
    }
}

/// t06: an acquire that is dropped at any moment leaves nothing, and the next one gets its own reply.
#[tokio::test]
async fn t06_dropped_at_random_moments() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    a.lock("k").await.unwrap().release().await.unwrap();
    for round in 0..200_u64 {
        let moment = Duration::from_micros(round * 37 % 3_000);
        let key = format!("k{}", round % 7);
        if let Ok(Ok(guard)) = tokio::time::timeout(moment, a.lock(&key).into_future()).await {
            assert!(guard.is_held());
            drop(guard);
        }
    }
    eventually("nothing to be left", || async {
        server.oldest_first("tenure/lock/").is_some_and(|left| left.is_empty())
    })
    .await;
    assert!(within("the lock", a.lock("k1").into_future()).await.unwrap().is_held());
}

/// t06: a wait that is dropped at any moment leaves no entry in the queue.
#[tokio::test]
async fn t06_waits_dropped_at_random_moments() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let guard = a.lock("k").await.unwrap();
    for round in 0..100_u64 {
        let moment = Duration::from_micros(round * 53 % 5_000);
        let waited = tokio::time::timeout(moment, b.lock("k").into_future()).await;
        assert!(waited.is_err(), "it is held");
    }
    claims_are(&server, "k", 1).await;
    guard.release().await.unwrap();
    assert!(within("the lock", b.lock("k").into_future()).await.unwrap().is_held());
}

/// t05, t28: without an engine: a claim is sent and abandoned, then another with a new token, again and
/// again, over connections that break. After each round no claim is left.
#[tokio::test]
async fn t05_abandoned_over_broken_connections() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    granted(&store, &claim("kept", LONG)).await;
    for round in 0..20 {
        let one = labelled("k", LONG, Some(MARK));
        let how = if round % 2 == 0 { Cut::Reset } else { Cut::Close };
        let way = if round % 3 == 0 { Way::Requests } else { Way::Replies };
        proxy.rule(Rule::on(way, Action::End(how)).containing(MARK).once());
        match store.try_acquire(&one).await {
            Ok(Attempt::Granted(_)) => {}
            Ok(Attempt::Held(holder)) => panic!("an orphan holds it: {holder}"),
            Err(fault) => assert!(
                matches!(fault.kind(), FaultKind::Unknown | FaultKind::Unavailable),
                "{fault}"
            ),
        }
        proxy.heal();
        eventually("it to be abandoned", || async { store.abandon(&one).await.is_ok() }).await;
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
    }
}

/// t56: if the ttl is over before the reply comes, the lock is never "held".
#[tokio::test]
async fn t56_a_reply_after_the_ttl() {
    let (server, proxy) = proxied();
    let slow = builder(&through(&proxy)).response_timeout(SHORT + TIMEOUT * 2);
    let a = tenure_core::Locker::new(slow.connect().await.unwrap());
    proxy.rule(Rule::on(Way::Replies, Action::Delay(SHORT + TIMEOUT)));
    let request = a.try_lock("k").ttl(SHORT).renew(tenure_core::Renew::Off);
    match within("an answer", request.into_future()).await {
        Ok(Some(guard)) => assert!(!guard.is_held(), "{:?}", guard.remaining()),
        Ok(None) => panic!("nobody else holds it"),
        Err(error) => {
            assert!(error.is_unavailable() || error.is_lost() || error.is_unknown(), "{error:?}");
        }
    }
    proxy.heal();
    claims_are(&server, "k", 0).await;
}

/// A lock that ends by `max_hold` or by a drop is deleted at the server, although its session lives.
#[tokio::test]
async fn an_ended_lock_is_deleted_although_its_session_lives() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    let _session = a.lock("kept").await.unwrap();
    let guard = a.lock("k").max_hold(Duration::from_millis(200)).await.unwrap();
    within("the loss", guard.lost()).await;
    claims_are(&server, "k", 0).await;
    drop(guard);
    drop(a.lock("k").await.unwrap());
    claims_are(&server, "k", 0).await;
}

/// The claims of a process on one lock use one name, one after the other, so that the server's history of a
/// lock does not grow with them. Each has its own fence and token.
#[tokio::test]
async fn a_name_is_used_again() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (mut names, mut fences) = (Vec::new(), Vec::new());
    for ttl in [LONG, LONG, SHORT, LONG] {
        let guard = a.lock("k").ttl(ttl).await.unwrap();
        names.push(claims(&server, "k"));
        fences.push(guard.fence());
        guard.release().await.unwrap();
    }
    assert!(names.iter().all(|name| name.len() == 1 && *name == names[0]), "{names:?}");
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    let _guard = b.lock("k").await.unwrap();
    assert_ne!(claims(&server, "k"), names[0], "another process has another");
}

/// t05: a request that undoes a claim, delayed by the network, does not hit a later claim of the same name.
#[tokio::test]
async fn t05_a_late_undo_hits_no_later_claim() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    granted(&store, &claim("kept", LONG)).await;
    let first = labelled("k", LONG, Some(MARK));
    granted(&store, &first).await;
    let name = claims(&server, "k");
    let slow = Rule::on(Way::Requests, Action::Delay(TIMEOUT * 4)).containing(MARK).once();
    proxy.rule(slow);
    assert_eq!(store.abandon(&first).await.unwrap_err().kind(), FaultKind::Unknown);
    eventually("it to be abandoned", || async { store.abandon(&first).await.is_ok() }).await;
    assert!(claims(&server, "k").is_empty(), "it was said to be undone");
    granted(&store, &claim("k", LONG)).await;
    assert_eq!(claims(&server, "k"), name, "the same name");
    let shown = || server.ctl(&["get", "--prefix", "--write-out=fields", "tenure/lock/k/"]);
    let created = |shown: &str| {
        shown.lines().find(|line| line.starts_with("\"CreateRevision\"")).map(str::to_owned)
    };
    let before = created(&shown());
    assert!(before.is_some());
    lapse(TIMEOUT * 4).await;
    assert_eq!((proxy.struck(), claims(&server, "k")), (1, name));
    assert_eq!(created(&shown()), before, "the same claim");
}

/// A process waits for a lock that it keeps closed itself like any other process, although the closed key has
/// the name that its next claim would have.
#[tokio::test]
async fn a_name_that_is_kept_closed() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let guard = a.lock("k").min_hold(SHORT).await.unwrap();
    let (fence, name) = (guard.fence(), claims(&server, "k"));
    guard.release().await.unwrap();
    assert!(a.try_lock("k").await.unwrap().is_none(), "it is closed");
    let waiting = tokio::spawn(a.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let next = within("its turn", waiting).await.unwrap().unwrap();
    assert!(next.is_held() && next.fence() > fence);
    assert_ne!(claims(&server, "k"), name);
    next.release().await.unwrap();
    let again = a.lock("k").await.unwrap();
    assert_eq!((claims(&server, "k"), again.is_held()), (name, true));
}

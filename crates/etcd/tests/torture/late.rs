//! Requests that are carried out after nobody waits for them any more, and answers that get lost.

use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, FaultKind};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Deed, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LONG, SHORT, TIMEOUT, builder, claim, claims, claims_are, etcd, granted, labelled, locker,
    of_ttl, proxied, through,
};

/// What the claim of these tests carries, to be found in its traffic.
const MARK: &str = "marked-claim";

/// t05: an acquire that timed out is carried out later by the server, and undone, though the session
/// that it is under lives on.
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

/// t05: one that is held back by the network for longer than it took to undo it never holds the lock.
#[tokio::test]
async fn t05_a_grant_held_back_by_the_network() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    // So that the session is there.
    granted(&store, &claim("kept", LONG)).await;
    let late = labelled("k", LONG, Some(MARK));
    let slow = Rule::on(Way::Requests, Deed::Delay(TIMEOUT * 4)).containing(MARK).once();
    proxy.rule(slow);
    let fault = store.try_acquire(&late).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}");
    eventually("it to be abandoned", || async { store.abandon(&late).await.is_ok() }).await;
    // From here on it must not hold the lock, whatever is still on its way.
    for _ in 0..10 {
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
        lapse(TIMEOUT / 2).await;
    }
    assert_eq!(proxy.struck(), 1);
}

/// t05: others of the same session that are under way when one is undone get their locks all the same.
#[tokio::test]
async fn t05_others_in_flight_are_not_hurt() {
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

/// t04: a grant whose answer is lost with its connection is resolved: one claim, one fence.
#[tokio::test]
async fn t04_a_lost_answer_is_resolved() {
    for how in [Cut::Reset, Cut::Close] {
        let (server, proxy) = proxied();
        let (a, b) = (locker(&through(&proxy)).await, locker(&server.url()).await);
        let _session = a.lock("kept").await.unwrap();
        let before = proxy.accepted();
        proxy.rule(Rule::on(Way::Replies, Deed::Delay(TIMEOUT / 2)));
        let locking = tokio::spawn(a.lock("k").into_future());
        // Carried out, and the answer on its way.
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

/// t04: below the engine, a claim that was granted is granted again, with the same fence.
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

/// t50: a release that the server does not answer is unknown; then it is done all the same.
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

/// t50: a release whose answer is lost is done once, and a retry of it hits nobody: not the rival who
/// has the lock by then, and not ourselves again.
#[tokio::test]
async fn t50_a_release_whose_answer_is_lost() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&through(&proxy)).await, locker(&server.url()).await);
    for _ in 0..5 {
        let guard = a.lock("k").await.unwrap();
        let rival = tokio::spawn(b.lock("k").into_future());
        claims_are(&server, "k", 2).await;
        proxy.rule(Rule::on(Way::Replies, Deed::End(Cut::Reset)).once());
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

/// t06: an acquire that is dropped at any moment leaves nothing, and the next one gets its own answer.
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

/// t06: a wait that is dropped at any moment leaves no ghost in the queue.
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

/// t05, t28: below the engine: asked, given up, asked anew under another token, again and again, over
/// connections that break: in the end one claim at most, and it is the last one.
#[tokio::test]
async fn t05_abandoned_over_broken_connections() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    granted(&store, &claim("kept", LONG)).await;
    for round in 0..20 {
        let one = labelled("k", LONG, Some(MARK));
        let how = if round % 2 == 0 { Cut::Reset } else { Cut::Close };
        let way = if round % 3 == 0 { Way::Requests } else { Way::Replies };
        proxy.rule(Rule::on(way, Deed::End(how)).containing(MARK).once());
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

/// t56: a ttl that is over before the answer can come is never "held".
#[tokio::test]
async fn t56_an_answer_that_takes_longer_than_the_ttl() {
    let (server, proxy) = proxied();
    let slow = builder(&through(&proxy)).response_timeout(SHORT + TIMEOUT * 2);
    let a = tenure_core::Locker::new(slow.connect().await.unwrap());
    proxy.rule(Rule::on(Way::Replies, Deed::Delay(SHORT + TIMEOUT)));
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

/// A lock that ends by `max_hold` or is dropped is gone from the server, though its session lives.
#[tokio::test]
async fn what_ends_is_deleted_under_a_living_session() {
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

/// The claims of a process on one lock have one name, one after the other, so that the server's history
/// of a lock does not grow with them; each has a fence and a token of its own.
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

/// t05: what undoes a claim and is held back by the network hits no later claim of the same name.
#[tokio::test]
async fn t05_a_late_undoing_hits_no_later_claim() {
    let (server, proxy) = proxied();
    let store = etcd(&through(&proxy)).await;
    granted(&store, &claim("kept", LONG)).await;
    let first = labelled("k", LONG, Some(MARK));
    granted(&store, &first).await;
    let name = claims(&server, "k");
    let slow = Rule::on(Way::Requests, Deed::Delay(TIMEOUT * 4)).containing(MARK).once();
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

/// A lock that a process keeps closed is waited for by itself as by anybody else, though its key has the
/// name that the next claim would have had.
#[tokio::test]
async fn a_name_that_is_kept_closed() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let guard = a.lock("k").at_least(SHORT).await.unwrap();
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

//! Elections on etcd: sessions that end, keys that are deleted, replies that are lost. What an observer sees is checked
//! against what was proclaimed: values belong to their terms, and terms rise.

use std::time::{Duration, Instant};

use tenure_core::{Election, Fence, Leader, Locker};
use tenure_etcd::Etcd;
use tenure_testkit::elections::Seen;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::wait::{in_time, within};

use crate::support::{
    LONG, SHORT, SLACK, TIMEOUT, builder, claim, claims, claims_are, etcd, granted, lease_of,
    locker, proxied, through,
};

/// A candidate with a client of its own, and with the usual time-outs: its server is slow at most.
async fn candidate(url: &str) -> (Locker, Election) {
    let etcd = Etcd::builder(url).connect().await.unwrap();
    let locker = Locker::builder(etcd).ttl(LONG).build().unwrap();
    let election = locker.election("k");
    (locker, election)
}

/// A candidate behind a proxy, with short time-outs.
async fn hasty(proxy: &Proxy) -> (Locker, Election) {
    let locker = locker(&through(proxy)).await;
    let election = locker.election("k");
    (locker, election)
}

async fn lead(election: &Election, value: &str) -> Leader {
    within("a leadership", election.campaign(value).into_future()).await.unwrap()
}

/// t93: a leader that is cut off stops by its own clock, before anybody else leads. When it is back, its term is the
/// lower one, and nobody sees its value again.
#[tokio::test]
async fn t93_a_leader_that_is_cut_off() {
    let (server, proxy) = proxied();
    let ((_a, ours), (_b, theirs)) = (hasty(&proxy).await, candidate(&server.url()).await);
    let old = ours.campaign("old").ttl(SHORT).await.unwrap();
    let mut seen = Seen::by(&theirs).await;
    seen.until("old", old.term()).await;
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let new = lead(&theirs, "new").await;
    assert!(!old.is_held(), "two leaders at once");
    proxy.heal();
    assert!(old.proclaim("late").await.unwrap_err().is_lost());
    assert!(old.term() < new.term() && new.is_held());
    seen.until("new", new.term()).await;
    new.proclaim("newer").await.unwrap();
    seen.until("newer", new.term()).await;
    seen.is_sound();
}

/// t94: a candidate whose session ends while it waits does not lead: its campaign fails, and it has no key. Its next
/// campaign has a key, and leads.
#[tokio::test]
async fn t94_a_candidates_session_ends() {
    let server = EtcdServer::start();
    let ((_a, ours), (_b, theirs)) =
        (candidate(&server.url()).await, candidate(&server.url()).await);
    let leader = lead(&ours, "first").await;
    let waiting = tokio::spawn(theirs.campaign("second").into_future());
    claims_are(&server, "k", 2).await;
    server.revoke(&lease_of(&server, &claims(&server, "k")[1]));
    let error = within("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(claims(&server, "k").len(), 1);
    // `lead` does not end with it.
    let led = tokio::spawn(async move {
        let led = theirs
            .campaign("third")
            .lead(async |leading| Ok::<_, std::convert::Infallible>(leading.term()));
        led.await.unwrap().unwrap()
    });
    claims_are(&server, "k", 2).await;
    server.revoke(&lease_of(&server, &claims(&server, "k")[1]));
    claims_are(&server, "k", 2).await;
    let term = leader.term();
    assert!(leader.is_held());
    leader.resign().await.unwrap();
    assert!(within("the third leader", led).await.unwrap() > term);
    claims_are(&server, "k", 0).await;
}

/// t95: a campaign that ends because the server does not answer leaves no key behind.
#[tokio::test]
async fn t95_a_failed_campaign_leaves_nothing() {
    let server = EtcdServer::start();
    let ((_a, ours), (_b, theirs)) =
        (candidate(&server.url()).await, candidate(&server.url()).await);
    let leader = lead(&ours, "first").await;
    let waiting = tokio::spawn(theirs.campaign("second").unavailable_after(TIMEOUT).into_future());
    claims_are(&server, "k", 2).await;
    server.pause();
    let error = within("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    server.go_on();
    claims_are(&server, "k", 1).await;
    within("the resignation", leader.resign()).await.unwrap();
    claims_are(&server, "k", 0).await;
}

/// t96: a leader that resigns while the server cannot be reached does not know the outcome, and resigns as soon as it
/// can. Nobody has to wait for its ttl.
#[tokio::test]
async fn t96_a_resignation_is_not_forgotten() {
    let (server, proxy) = proxied();
    let ((_a, ours), (_b, theirs)) = (hasty(&proxy).await, candidate(&server.url()).await);
    let leader = lead(&ours, "first").await;
    let mut seen = Seen::by(&theirs).await;
    seen.until("first", leader.term()).await;
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let error = within("the resignation", leader.resign()).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    assert_eq!(claims(&server, "k").len(), 1, "the server did not get it");
    proxy.heal();
    in_time(Duration::from_secs(10), "nobody to lead", seen.until_nobody()).await;
    let next = lead(&theirs, "second").await;
    seen.until("second", next.term()).await;
    seen.is_sound();
}

/// t97: the leader's key was deleted, and another leads: what the former leader proclaims is an error, and the value of
/// the new one stands.
#[tokio::test]
async fn t97_the_next_value_stands() {
    let server = EtcdServer::start();
    let ((_a, ours), (_b, theirs)) =
        (candidate(&server.url()).await, candidate(&server.url()).await);
    let old = lead(&ours, "old").await;
    server.ctl(&["del", &claims(&server, "k")[0]]);
    let new = lead(&theirs, "new").await;
    let error = within("the proclamation", old.proclaim("late")).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let seen = theirs.leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.term), ("new", Some(new.term())));
    assert!(!old.is_held() && new.is_held() && new.term() > old.term());
}

/// A proclamation that does not arrive, or arrives after its time-out, is unknown. The value is shown at the latest
/// with the next renewal, under the same term, and the key keeps its place before those that wait.
#[tokio::test]
async fn a_lost_proclamation_is_repeated() {
    // Only the delayed message may take as long as this.
    let patience = Duration::from_millis(1_500);
    for deed in [Action::Swallow, Action::Delay(patience * 3 / 2)] {
        let (server, proxy) = proxied();
        let patient = builder(&through(&proxy)).response_timeout(patience).connect().await;
        let ours = Locker::new(patient.unwrap()).election("k");
        let (_b, theirs) = candidate(&server.url()).await;
        let ttl = Duration::from_secs(9);
        let leader = ours.campaign("one").ttl(ttl).await.unwrap();
        let waiting = tokio::spawn(theirs.campaign("two").into_future());
        claims_are(&server, "k", 2).await;
        let mut seen = Seen::by(&theirs).await;
        seen.until("one", leader.term()).await;
        let first = claims(&server, "k").remove(0);
        proxy.rule(Rule::on(Way::Requests, deed).containing("value-three").once());
        let error = within("the proclamation", leader.proclaim("value-three")).await.unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error}");
        in_time(ttl, "the value", seen.until("value-three", leader.term())).await;
        // Two more values, after the late one: it must not come back.
        for value in ["value-four", "value-five"] {
            within("the proclamation", leader.proclaim(value)).await.unwrap();
            seen.until(value, leader.term()).await;
        }
        assert!(leader.is_held());
        assert_eq!(claims(&server, "k").remove(0), first);
        leader.resign().await.unwrap();
        let next = within("the next leader", waiting).await.unwrap().unwrap();
        seen.until("two", next.term()).await;
        seen.is_sound();
    }
}

/// The leader's key was written, and the reply to that was lost. The next value is written over it, from the revision
/// that it has now, under the same term.
#[tokio::test]
async fn a_new_value_after_a_lost_reply() {
    let server = EtcdServer::start();
    let (_a, ours) = candidate(&server.url()).await;
    let leader = lead(&ours, "one").await;
    let name = claims(&server, "k").remove(0);
    let value = server.ctl(&["get", "--print-value-only", &name]);
    let lease = lease_of(&server, &name);
    let late = value.trim().replace(":one:", ":late:");
    server.ctl(&["put", "--lease", &lease, "--", &name, &late]);
    assert_eq!(ours.leader().await.unwrap().unwrap().value, "late");
    leader.proclaim("two").await.unwrap();
    let seen = ours.leader().await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.term), ("two", Some(leader.term())));
    leader.resign().await.unwrap();
    claims_are(&server, "k", 0).await;
}

/// t110: a leader that dies is followed after its ttl, a leader that resigns at once.
#[tokio::test]
async fn t110_the_next_leads_in_time() {
    let server = EtcdServer::start();
    let (dead, (_b, theirs), (_c, others)) =
        (etcd(&server.url()).await, candidate(&server.url()).await, candidate(&server.url()).await);
    let mut seen = Seen::by(&others).await;
    assert_eq!(seen.next().await, None);
    let died = Instant::now();
    let grant = granted(&dead, &claim("k", SHORT)).await;
    seen.until("", Fence::from_server(grant.fence)).await;
    let second = lead(&theirs, "second").await;
    // A server looks for expired leases every half second.
    assert!(died.elapsed() >= SHORT && died.elapsed() < SHORT * 2, "{:?}", died.elapsed());
    seen.until("second", second.term()).await;
    let waiting = tokio::spawn(others.campaign("third").ttl(LONG).into_future());
    claims_are(&server, "k", 2).await;
    let resigned = Instant::now();
    second.resign().await.unwrap();
    let third = within("the third leader", waiting).await.unwrap().unwrap();
    assert!(resigned.elapsed() < SLACK, "{:?}", resigned.elapsed());
    seen.until("third", third.term()).await;
    seen.is_sound();
}

/// t111: an observer that is cut off while the leader changes twice sees the last one once it is back, and never one
/// before it.
#[tokio::test]
async fn t111_an_observer_is_cut_off() {
    let (server, proxy) = proxied();
    let ((_o, observed), (_a, ours)) = (hasty(&proxy).await, candidate(&server.url()).await);
    let mut seen = Seen::by(&observed).await;
    assert_eq!(seen.next().await, None);
    let first = lead(&ours, "first").await;
    seen.until("first", first.term()).await;
    proxy.refuse();
    proxy.cut(Cut::Reset);
    first.resign().await.unwrap();
    lead(&ours, "second").await.resign().await.unwrap();
    let third = lead(&ours, "third").await;
    let blind = within("an error", seen.observe().next()).await.unwrap_err();
    assert!(blind.is_unavailable() || blind.is_unknown(), "{blind}");
    proxy.heal();
    seen.until("third", third.term()).await;
    assert_eq!(seen.all().len(), 3, "nobody, first, third: {:?}", seen.all());
    seen.is_sound();
}

/// An observer of one key and a watch of all keys share a locker: the watch still knows how each lock ended.
#[tokio::test]
async fn an_observer_does_not_explain_ends() {
    use tenure_core::watch::EventKind;
    let server = EtcdServer::start();
    let (store, (b, theirs)) = (etcd(&server.url()).await, candidate(&server.url()).await);
    let (mut watch, mut seen) = (b.watch("*").await.unwrap(), Seen::by(&theirs).await);
    assert_eq!(seen.next().await, None);
    let grant = granted(&store, &claim("k", SHORT)).await;
    seen.until("", Fence::from_server(grant.fence)).await;
    let event = within("an event", watch.next()).await.unwrap();
    assert_eq!(event.what, EventKind::Acquired);
    seen.until_nobody().await;
    assert_eq!(within("an event", watch.next()).await.unwrap().what, EventKind::Lost);
}

//! Elections on a server that stops, forgets or cannot be reached. What an observer sees is checked against what was
//! proclaimed: values belong to their terms, and terms rise.

use std::time::{Duration, Instant};

use tenure_core::backend::Operator as _;
use tenure_core::{Election, Fence, Leader, Locker};
use tenure_redis::Redis;
use tenure_testkit::elections::Seen;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, in_time, within};

use crate::support::{
    SLACK, TIMEOUT, claim, entries, get, granted, is_freed, locker_through, proxied, pttl,
};

/// So long that a lock that becomes free was released, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";

/// A candidate with a client of its own, and with the usual time-outs: its server is slow at most.
async fn candidate(server: &RedisServer) -> (Locker, Election) {
    let locker = Locker::new(usual(server).await);
    let election = locker.election("k");
    (locker, election)
}

/// A client with the usual time-outs.
async fn usual(server: &RedisServer) -> Redis {
    Redis::connect(&server.url()).await.unwrap()
}

async fn lead(election: &Election, value: &str) -> Leader {
    within("a leadership", election.campaign(value).ttl(LONG).into_future()).await.unwrap()
}

/// t93: a leader that is cut off stops by its own clock, before anybody else leads. When it is back, its term is the
/// lower one, and nobody sees its value again.
#[tokio::test]
async fn t93_a_leader_that_is_cut_off() {
    let (server, proxy) = proxied();
    let (a, (_b, theirs)) = (locker_through(&proxy).await, candidate(&server).await);
    let old = a.election("k").campaign("old").ttl(Duration::from_secs(1)).await.unwrap();
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

/// t94: a candidate that waits while the server restarts without its data leads only with a key of its own, and the
/// leader before it is lost.
#[tokio::test]
async fn t94_the_server_forgets_who_waits() {
    let server = RedisServer::start();
    let ((_a, ours), (_b, theirs)) = (candidate(&server).await, candidate(&server).await);
    let first = lead(&ours, "first").await;
    let waiting = tokio::spawn(theirs.campaign("second").wait_forever().into_future());
    eventually("it to wait", || async { entries(&server).len() == 1 }).await;
    server.restart_empty();
    let second = within("the second leader", waiting).await.unwrap().unwrap();
    assert!(get(&server, LOCK).is_some_and(|value| value.contains(":second:")));
    within("the loss", first.lost()).await;
    assert!(second.is_held() && !first.is_held());
    assert!(second.term() > first.term());
}

/// t95: a campaign that ends because the server does not answer leaves no candidate behind.
#[tokio::test]
async fn t95_a_failed_campaign_leaves_nothing() {
    let server = RedisServer::start();
    let ((_a, ours), (_b, theirs)) = (candidate(&server).await, candidate(&server).await);
    let leader = lead(&ours, "first").await;
    let campaign = theirs.campaign("second").unavailable_after(TIMEOUT);
    let waiting = tokio::spawn(campaign.into_future());
    eventually("it to wait", || async { entries(&server).len() == 1 }).await;
    server.pause();
    let error = within("the end of the wait", waiting).await.unwrap().unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    server.go_on();
    eventually("its entry to be gone", || async { entries(&server).is_empty() }).await;
    within("the resignation", leader.resign()).await.unwrap();
    is_freed(&server, "k").await;
}

/// t96: a leader that resigns while the server cannot be reached does not know the outcome, and resigns as soon as it
/// can. Nobody has to wait for its ttl.
#[tokio::test]
async fn t96_a_resignation_is_not_forgotten() {
    let (server, proxy) = proxied();
    let (a, (_b, theirs)) = (locker_through(&proxy).await, candidate(&server).await);
    let leader = lead(&a.election("k"), "first").await;
    let mut seen = Seen::by(&theirs).await;
    seen.until("first", leader.term()).await;
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let error = within("the resignation", leader.resign()).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error}");
    assert!(get(&server, LOCK).is_some(), "the server did not get it");
    proxy.heal();
    in_time(Duration::from_secs(10), "nobody to lead", seen.until_nobody()).await;
    let next = lead(&theirs, "second").await;
    seen.until("second", next.term()).await;
    seen.is_sound();
}

/// t97: the server has given the leadership to another: what the former leader proclaims is an error, and changes
/// nothing at the server.
#[tokio::test]
async fn t97_the_next_value_stands() {
    let server = RedisServer::start();
    let ((_a, ours), (_b, theirs)) = (candidate(&server).await, candidate(&server).await);
    let old = lead(&ours, "old").await;
    server.client().command(&["DEL", LOCK]);
    let new = lead(&theirs, "new").await;
    let before = get(&server, LOCK);
    assert!(old.is_held(), "it does not know yet");
    let error = old.proclaim("late").await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(get(&server, LOCK), before);
    assert!(!old.is_held() && new.is_held());
}

/// A proclamation whose reply is lost is unknown. The value is shown at the latest with the next renewal; the ttl is
/// not shortened, and the waiters stay known.
#[tokio::test]
async fn a_lost_proclamation_is_repeated() {
    for way in [Way::Requests, Way::Replies] {
        let (server, proxy) = proxied();
        let (a, (_b, theirs)) = (locker_through(&proxy).await, candidate(&server).await);
        let ttl = Duration::from_secs(6);
        let leader = a.election("k").campaign("one").ttl(ttl).await.unwrap();
        let waiting = tokio::spawn(theirs.campaign("two").wait_forever().into_future());
        eventually("it to wait", || async { entries(&server).len() == 1 }).await;
        let mut seen = Seen::by(&theirs).await;
        seen.until("one", leader.term()).await;
        lose(&proxy, way);
        let error = within("the proclamation", leader.proclaim("three")).await.unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error}");
        proxy.heal();
        in_time(ttl, "the value", seen.until("three", leader.term())).await;
        assert!(leader.is_held() && pttl(&server, LOCK) > 0);
        assert!(get(&server, LOCK).unwrap().starts_with('*'), "a candidate waits");
        leader.resign().await.unwrap();
        let next = within("the next leader", waiting).await.unwrap().unwrap();
        seen.until("two", next.term()).await;
        seen.is_sound();
    }
}

/// Loses the next messages in one direction.
fn lose(proxy: &Proxy, way: Way) {
    proxy.rule(Rule::on(way, Action::Swallow));
}

/// t110: a leader that dies is followed after its ttl, a leader that resigns at once. Observers see nobody or the next.
#[tokio::test]
async fn t110_the_next_leads_in_time() {
    let server = RedisServer::start();
    let (dead, (_b, theirs), (_c, others)) =
        (usual(&server).await, candidate(&server).await, candidate(&server).await);
    let ttl = Duration::from_secs(1);
    let mut seen = Seen::by(&others).await;
    assert_eq!(seen.next().await, None);
    let died = Instant::now();
    let grant = granted(&dead, &claim("k", ttl)).await;
    seen.until("", Fence::from_server(grant.fence)).await;
    let second = lead(&theirs, "second").await;
    assert!(died.elapsed() >= ttl && died.elapsed() < ttl + SLACK, "{:?}", died.elapsed());
    seen.until("second", second.term()).await;
    let waiting = tokio::spawn(others.campaign("third").ttl(LONG).into_future());
    eventually("it to wait", || async { entries(&server).len() == 1 }).await;
    let resigned = Instant::now();
    second.resign().await.unwrap();
    let third = within("the third leader", waiting).await.unwrap().unwrap();
    assert!(resigned.elapsed() < SLACK, "{:?}", resigned.elapsed());
    seen.until("third", third.term()).await;
    seen.is_sound();
}

/// t111: an observer that is cut off while the leader changes twice sees the last one once it is back, and never one
/// before it. It looks once, not once for each change.
#[tokio::test]
async fn t111_an_observer_is_cut_off() {
    let (server, proxy) = proxied();
    let (observer, (_a, ours)) = (locker_through(&proxy).await, candidate(&server).await);
    let mut seen = Seen::by(&observer.election("k")).await;
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
    let quiet = tokio::time::timeout(TIMEOUT, seen.observe().next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    seen.is_sound();
}

/// t116: a leader that an operator removes is notified at once; the next candidate leads, and observers see it.
#[tokio::test]
async fn t116_force_on_a_leader() {
    let server = RedisServer::start();
    let ((_a, ours), (_b, theirs)) = (candidate(&server).await, candidate(&server).await);
    let operator = usual(&server).await;
    let leader = lead(&ours, "first").await;
    let mut seen = Seen::by(&theirs).await;
    seen.until("first", leader.term()).await;
    let waiting = tokio::spawn(theirs.campaign("second").into_future());
    eventually("it to wait", || async { entries(&server).len() == 1 }).await;
    let info = theirs_token(&theirs, &operator).await;
    operator.force_release(leader.key(), info, "ann: stuck").await.unwrap();
    in_time(SLACK, "the loss", leader.lost()).await;
    let second = within("the second leader", waiting).await.unwrap().unwrap();
    seen.until("second", second.term()).await;
    seen.is_sound();
}

/// The token of the present leader, as an operator sees it.
async fn theirs_token(election: &Election, operator: &Redis) -> tenure_core::Token {
    assert!(election.leader().await.unwrap().is_some());
    let query = tenure_core::backend::Query::Glob("k".into());
    operator.inspect(&query).await.unwrap()[0].holders[0].token.unwrap()
}

/// An observer of one key is notified of this key only, and reads nothing else: a busy server costs it nothing.
#[tokio::test]
async fn an_observer_is_notified_of_its_key() {
    let server = RedisServer::start();
    let ((a, ours), (_b, theirs)) = (candidate(&server).await, candidate(&server).await);
    let mut seen = Seen::by(&theirs).await;
    assert_eq!(seen.next().await, None);
    let reads = || server.client().text(&["INFO", "commandstats"]).unwrap();
    let count = |stats: &str, name: &str| -> u64 {
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let before = count(&reads(), "type");
    for n in 0..20 {
        a.lock(format!("other:{n}")).await.unwrap().release().await.unwrap();
    }
    let quiet = tokio::time::timeout(TIMEOUT, seen.observe().next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!(count(&reads(), "type"), before, "no look for other keys");
    let leader = lead(&ours, "first").await;
    seen.until("first", leader.term()).await;
    assert!(count(&reads(), "type") <= before + 2, "one look for one change");
}

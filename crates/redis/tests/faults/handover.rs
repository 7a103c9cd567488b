//! The usual hand-over, which has a fast script of its own. It leaves the same state behind as the full
//! script, and the full script is used in every unusual case.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, Grant, Release};
use tenure_core::time::Clock;
use tenure_core::{Claim, Lease};
use tenure_redis::Redis;
use tenure_testkit::servers::proxy::{self, Action, Cut, Rule};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

use crate::relay::{Relay, Way};
use crate::support::{
    BEATS, QUEUE, claim, entry, get, kind, lease, proxied, pttl, redis, redis_at,
};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";
/// The first connection that is made through a relay.
const COMMANDS: usize = 0;

/// Queues a claim, and returns when its waiter can be notified by a push.
async fn notified(server: &RedisServer, store: &Redis) -> (Arc<Claim>, JoinHandle<Grant>) {
    let claim = claim("k", LONG);
    let waiter = notified_as(server, store, &claim).await;
    (claim, waiter)
}

async fn notified_as(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> JoinHandle<Grant> {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { kind(server, claim) == "push" }).await;
    waiter
}

fn ticket(server: &RedisServer, claim: &Claim) -> Option<u64> {
    let score = server.client().text(&["ZSCORE", QUEUE, &entry(server, claim)?]);
    score.map(|score| score.parse().unwrap())
}

fn is_in_queue(server: &RedisServer, claim: &Claim) -> bool {
    ticket(server, claim).is_some()
}

/// The position of another entry in a queue of two.
#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    Second,
    Last,
}

impl Place {
    /// The ticket for this position, given the ticket of the first of the two.
    fn behind(self, first: Option<u64>) -> u64 {
        match self {
            Place::First => 1,
            Place::Second => first.unwrap() + 1,
            Place::Last => first.unwrap() * 2,
        }
    }
}

fn has_beat(server: &RedisServer, claim: &Claim) -> bool {
    server.client().command(&["HEXISTS", BEATS, &claim.token().expose()]) == Reply::Int(1)
}

fn calls(server: &RedisServer, command: &str) -> usize {
    let stats = server.client().text(&["INFO", "commandstats"]).unwrap();
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

/// The new holder leaves the queue and the others stay. A stale entry of the old holder, which no request of
/// ours leaves, does not block the queue at any position.
#[tokio::test]
async fn a_hand_over_takes_out_one() {
    for stale in [Place::First, Place::Second, Place::Last] {
        let server = RedisServer::start();
        let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = notified(&server, &b).await;
        let (last, waits) = notified(&server, &c).await;
        let own = held.claim().token().expose();
        let ticket = stale.behind(ticket(&server, &next)).to_string();
        let holder = get(&server, LOCK).unwrap().split(':').nth(1).unwrap().to_owned();
        let words = entry(&server, &next).unwrap().split_off(49);
        let left = format!("{own} {holder}{words}");
        server.client().command(&["ZADD", QUEUE, &ticket, &left]);
        a.release(&held, AfterRelease::Free).await.unwrap();
        let grant = within("the turn", turn).await.unwrap();
        let value = get(&server, LOCK).unwrap();
        assert!(value.starts_with("*t1:") && value.contains(&next.token().expose()), "{value}");
        assert!(!is_in_queue(&server, &next) && is_in_queue(&server, &last), "{stale:?}");
        let had = Arc::new(Lease::new(next, grant, b.clock()));
        b.release(&had, AfterRelease::Free).await.unwrap();
        within("the turn of the last", waits).await.unwrap();
    }
}

/// A lock that was acquired through the queue by a process that was subscribed before, so its release uses
/// the fast script.
async fn restless(server: &RedisServer, store: &Redis) -> Arc<Lease> {
    let other = redis(server).await;
    let first = waited_for(server, &other, store).await;
    store.release(&first, AfterRelease::Free).await.unwrap();
    waited_for(server, &other, store).await
}

async fn waited_for(server: &RedisServer, other: &Redis, store: &Redis) -> Arc<Lease> {
    let had = lease(other, "k", LONG).await;
    let (claim, turn) = notified(server, store).await;
    other.release(&had, AfterRelease::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    Arc::new(Lease::new(claim, grant, store.clock()))
}

/// The usual hand-over removes the next waiter from the queue and reads no heartbeat. If the waiter has
/// waited longer, the hand-over reads its heartbeat and removes it.
#[tokio::test]
async fn the_usual_hand_over_is_short() {
    for waited in [false, true] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = notified(&server, &b).await;
        let ready = || async { !waited || has_beat(&server, &next) };
        eventually("a heartbeat", ready).await;
        server.client().command(&["CONFIG", "RESETSTAT"]);
        a.release(&held, AfterRelease::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        let counted = ["zpopmin", "zrange", "hget"].map(|command| calls(&server, command));
        assert_eq!(counted, [1, 0, usize::from(waited)], "{waited}");
        assert!(!has_beat(&server, &next));
    }
}

/// A19: a hand-over whose reply is lost with its connection is carried out once and reported as done.
#[tokio::test]
async fn a_hand_over_whose_reply_is_lost() {
    for deed in [Action::End(Cut::Reset), Action::End(Cut::Close), Action::Truncate] {
        let (server, proxy) = proxied();
        let (a, b) = (redis_at(&proxy.url()).await, redis(&server).await);
        // Once before, so that the server knows the script.
        for lost in [0, 1] {
            let held = restless(&server, &a).await;
            let (next, turn) = notified(&server, &b).await;
            server.client().command(&["CONFIG", "RESETSTAT"]);
            let echo = format!(":{}", held.claim().token().expose());
            let rule = Rule::on(proxy::Way::Replies, deed.clone()).containing(&echo);
            proxy.rule(rule.times(lost));
            let freed = within("an answer", a.release(&held, AfterRelease::Free)).await.unwrap();
            assert_eq!((freed, proxy.struck()), (Release::Freed, lost), "{deed:?}");
            assert_eq!(calls(&server, "zpopmin"), 1, "by the fast script");
            let grant = within("the turn", turn).await.unwrap();
            let value = get(&server, LOCK).unwrap();
            assert!(value.contains(&next.token().expose()), "{value}");
            assert!(!is_in_queue(&server, &next));
            let had = Arc::new(Lease::new(next, grant, b.clock()));
            b.release(&had, AfterRelease::Free).await.unwrap();
        }
    }
}

/// A claim that used the full script, as every heartbeat does, is released by the full script: it may have
/// left state that the fast script does not look for.
#[tokio::test]
async fn a_full_acquire_has_a_full_release() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let had = lease(&c, "k", LONG).await;
    let (long, turn) = notified(&server, &a).await;
    eventually("a heartbeat", || async { has_beat(&server, &long) }).await;
    c.release(&had, AfterRelease::Free).await.unwrap();
    let held = Arc::new(Lease::new(long, within("the turn", turn).await.unwrap(), a.clock()));
    let (_next, turn) = notified(&server, &b).await;
    server.client().command(&["CONFIG", "RESETSTAT"]);
    a.release(&held, AfterRelease::Free).await.unwrap();
    within("the turn of the next", turn).await.unwrap();
    assert_eq!(calls(&server, "zpopmin"), 0);
}

/// If the fence counter is ahead of the clock, the full script does the hand-over, and the fence still rises.
#[tokio::test]
async fn a_hand_over_with_a_count_that_is_ahead() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = restless(&server, &a).await;
    let (next, turn) = notified(&server, &b).await;
    let ahead = 1_u64 << 49;
    server.client().command(&["SET", "tenure:fence", &ahead.to_string()]);
    a.release(&held, AfterRelease::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    assert_eq!((grant.fence, is_in_queue(&server, &next)), (ahead + 1, false));
}

/// Changes the rights of the user `lacks`.
fn has_rights(server: &RedisServer, rights: &[&str]) {
    server.client().command(&[&["ACL", "SETUSER", "lacks"], rights].concat());
}

/// A client of the user `lacks`, which has all rights at first.
async fn user(server: &RedisServer, url: &str) -> Redis {
    has_rights(server, &["reset", "on", ">hunter2", "~*", "&*", "+@all"]);
    let url = url.replace("redis://", "redis://lacks:hunter2@");
    Redis::connect(&url).await.unwrap()
}

/// If the fast script lacks any right, the lock is released all the same, and the next waiter gets it, by a
/// notification or by its next request.
#[tokio::test]
async fn a_hand_over_that_lacks_a_right() {
    for right in ["-publish", "-pubsub", "-zcard", "-zpopmin", "-hget", "-hdel"] {
        let server = RedisServer::start();
        let (a, b) = (user(&server, &server.url()).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = notified(&server, &b).await;
        let ticket = ticket(&server, &next);
        has_rights(&server, &[right]);
        let freed = a.release(&held, AfterRelease::Free).await;
        assert_eq!(freed.unwrap(), Release::Freed, "{right}");
        let grant = within("the turn", turn).await.unwrap();
        assert!(Some(grant.fence) > ticket, "{right}");
        eventually("it to have left", || async { !is_in_queue(&server, &next) }).await;
    }
}

/// If the fast script fails, the lock keeps our ttl and does not get the longer ttl of the next waiter.
#[tokio::test]
async fn what_is_not_passed_on_ends_with_our_lease() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (user(&server, &relay.url()).await, redis(&server).await);
    // Once before, so that the server knows the script.
    a.release(&restless(&server, &a).await, AfterRelease::Free).await.unwrap();
    let (held, wants) = (restless(&server, &a).await, claim("k", LONG * 30));
    let turn = notified_as(&server, &b, &wants).await;
    has_rights(&server, &["-publish"]);
    server.client().command(&["CONFIG", "RESETSTAT"]);
    relay.hold(COMMANDS, Way::Replies);
    let (there, lease) = (a.clone(), held.clone());
    let freed = tokio::spawn(async move { there.release(&lease, AfterRelease::Free).await });
    eventually("the short way", || async { calls(&server, "zpopmin") == 1 }).await;
    let value = get(&server, LOCK).unwrap();
    assert!(value.contains(&held.claim().token().expose()), "{value}");
    assert!(pttl(&server, LOCK) <= i64::try_from(LONG.as_millis()).unwrap());
    assert!(is_in_queue(&server, &wants) && pttl(&server, QUEUE) > 0);
    relay.forward(COMMANDS);
    assert_eq!(freed.await.unwrap().unwrap(), Release::Freed);
    within("the turn", turn).await.unwrap();
}

/// A heartbeat that outlived its claim is deleted together with the last waiter, by the fast and by the full script.
#[tokio::test]
async fn no_heartbeat_outlives_the_queue() {
    for short in [true, false] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = if short { restless(&server, &a).await } else { lease(&a, "k", LONG).await };
        let (_next, turn) = notified(&server, &b).await;
        server.client().command(&["HSET", BEATS, &"f".repeat(32), "1 poll"]);
        a.release(&held, AfterRelease::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        assert_eq!(pttl(&server, BEATS), -2, "short: {short}");
    }
}

/// If the fence counter is a little ahead of the clock, a new ticket still proves that its waiter is alive.
#[tokio::test]
async fn a_ticket_ahead_of_the_clock_needs_no_heartbeat() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = restless(&server, &a).await;
    let count: u64 = get(&server, "tenure:fence").unwrap().parse().unwrap();
    server.client().command(&["SET", "tenure:fence", &(count + 100 * 256).to_string()]);
    let (next, turn) = notified(&server, &b).await;
    assert!(!has_beat(&server, &next));
    a.release(&held, AfterRelease::Free).await.unwrap();
    within("the turn", turn).await.unwrap();
}

/// A holder that acquired the lock through the queue sees on its lease that another claim waits, without a
/// wake-up of the engine.
#[tokio::test]
async fn contention_is_noted_on_the_claim() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (next, turn) = notified(&server, &b).await;
    a.release(&held, AfterRelease::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    let had = Lease::new(next, grant, Clock::system());
    assert!(!had.is_contended(), "nobody waits yet");
    let (_last, _waits) = notified(&server, &c).await;
    eventually("it to be known", || async { had.is_contended() }).await;
}

/// The keys of a queue expire an hour after a waiter's heartbeat, the first and every later one.
#[tokio::test]
async fn a_queue_does_not_last_for_ever() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let _held = lease(&a, "k", LONG).await;
    let (_next, _turn) = notified(&server, &b).await;
    let lasts = || async { [QUEUE, BEATS].iter().all(|key| pttl(&server, key) > 3_000_000) };
    eventually("an hour", lasts).await;
    for key in [QUEUE, BEATS] {
        assert_eq!(server.client().command(&["PEXPIRE", key, "60000"]), Reply::Int(1));
    }
    eventually("another hour", lasts).await;
}

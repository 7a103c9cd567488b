//! The usual hand-over, which has a short way of its own through the scripts: it leaves behind what
//! the long one does, and takes the long one wherever something is not usual.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Backend, Grant, Release, Then};
use tenure_core::time::Clock;
use tenure_core::{Claim, Lease};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

use crate::relay::{Relay, Way};
use crate::support::{BEATS, QUEUE, claim, get, kind, lease, place, pttl, redis};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";
/// The first connection that is made behind a relay.
const COMMANDS: usize = 0;

/// A claim that stands in the queue and is told its turn.
async fn told(server: &RedisServer, store: &Redis) -> (Arc<Claim>, JoinHandle<Grant>) {
    let claim = claim("k", LONG);
    let waiter = told_as(server, store, &claim).await;
    (claim, waiter)
}

async fn told_as(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> JoinHandle<Grant> {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { kind(server, claim) == "push" }).await;
    waiter
}

fn ticket(server: &RedisServer, claim: &Claim) -> Option<u64> {
    let score = server.client().text(&["ZSCORE", QUEUE, &place(server, claim)?]);
    score.map(|score| score.parse().unwrap())
}

fn is_in_queue(server: &RedisServer, claim: &Claim) -> bool {
    ticket(server, claim).is_some()
}

/// Where in a queue of two another stands.
#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    Second,
    Last,
}

impl Place {
    /// Its ticket, by that of the first of the two.
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

/// Who gets the lock leaves the queue; the others stay. A place that the old holder has left there, as no
/// request of ours does, keeps nobody waiting, wherever it is.
#[tokio::test]
async fn a_hand_over_takes_out_one() {
    for stale in [Place::First, Place::Second, Place::Last] {
        let server = RedisServer::start();
        let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = told(&server, &b).await;
        let (last, waits) = told(&server, &c).await;
        let own = held.claim().token().expose();
        let ticket = stale.behind(ticket(&server, &next)).to_string();
        let holder = get(&server, LOCK).unwrap().split(':').nth(1).unwrap().to_owned();
        let words = place(&server, &next).unwrap().split_off(49);
        let left = format!("{own} {holder}{words}");
        server.client().command(&["ZADD", QUEUE, &ticket, &left]);
        a.release(&held, Then::Free).await.unwrap();
        let grant = within("the turn", turn).await.unwrap();
        let value = get(&server, LOCK).unwrap();
        assert!(value.starts_with("*t1:") && value.contains(&next.token().expose()), "{value}");
        assert!(!is_in_queue(&server, &next) && is_in_queue(&server, &last), "{stale:?}");
        let had = Arc::new(Lease::new(next, grant, b.clock()));
        b.release(&had, Then::Free).await.unwrap();
        within("the turn of the last", waits).await.unwrap();
    }
}

/// A lock that was waited for in its queue, by a process that had listened before: it is given back by the
/// short form.
async fn restless(server: &RedisServer, store: &Redis) -> Arc<Lease> {
    let other = redis(server).await;
    let first = waited_for(server, &other, store).await;
    store.release(&first, Then::Free).await.unwrap();
    waited_for(server, &other, store).await
}

async fn waited_for(server: &RedisServer, other: &Redis, store: &Redis) -> Arc<Lease> {
    let had = lease(other, "k", LONG).await;
    let (claim, turn) = told(server, store).await;
    other.release(&had, Then::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    Arc::new(Lease::new(claim, grant, store.clock()))
}

/// The usual hand-over takes the next out of the queue and asks for no heartbeat; for one that has waited for
/// longer it does, and removes it.
#[tokio::test]
async fn the_usual_hand_over_is_short() {
    for waited in [false, true] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = told(&server, &b).await;
        let ready = || async { !waited || has_beat(&server, &next) };
        eventually("a heartbeat", ready).await;
        server.client().command(&["CONFIG", "RESETSTAT"]);
        a.release(&held, Then::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        let counted = ["zpopmin", "zrange", "hget"].map(|command| calls(&server, command));
        assert_eq!(counted, [1, 0, usize::from(waited)], "{waited}");
        assert!(!has_beat(&server, &next));
    }
}

/// Who has asked by the full form, as every heartbeat does, gives back by it: it may have left something that
/// the short one does not look for.
#[tokio::test]
async fn who_asked_in_full_gives_back_in_full() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let had = lease(&c, "k", LONG).await;
    let (long, turn) = told(&server, &a).await;
    eventually("a heartbeat", || async { has_beat(&server, &long) }).await;
    c.release(&had, Then::Free).await.unwrap();
    let held = Arc::new(Lease::new(long, within("the turn", turn).await.unwrap(), a.clock()));
    let (_next, turn) = told(&server, &b).await;
    server.client().command(&["CONFIG", "RESETSTAT"]);
    a.release(&held, Then::Free).await.unwrap();
    within("the turn of the next", turn).await.unwrap();
    assert_eq!(calls(&server, "zpopmin"), 0);
}

/// Where the clock is behind the count, or the count is none that can be, the long way is taken: the fence
/// rises, or nobody is given one.
#[tokio::test]
async fn a_hand_over_with_a_count_that_is_ahead() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = restless(&server, &a).await;
    let (next, turn) = told(&server, &b).await;
    let ahead = 1_u64 << 49;
    server.client().command(&["SET", "tenure:fence", &ahead.to_string()]);
    a.release(&held, Then::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    assert_eq!((grant.fence, is_in_queue(&server, &next)), (ahead + 1, false));
}

/// Has the user `lacks` by these rights.
fn has_rights(server: &RedisServer, rights: &[&str]) {
    server.client().command(&[&["ACL", "SETUSER", "lacks"], rights].concat());
}

/// Somebody who may do everything, for now.
async fn user(server: &RedisServer, url: &str) -> Redis {
    has_rights(server, &["reset", "on", ">hunter2", "~*", "&*", "+@all"]);
    let url = url.replace("redis://", "redis://lacks:hunter2@");
    Redis::connect(&url).await.unwrap()
}

/// Whatever right the short way lacks, the lock is given back, and the next gets it: told, or when it asks.
#[tokio::test]
async fn a_hand_over_that_lacks_a_right() {
    for right in ["-publish", "-pubsub", "-zcard", "-zpopmin", "-hget", "-hdel"] {
        let server = RedisServer::start();
        let (a, b) = (user(&server, &server.url()).await, redis(&server).await);
        let held = restless(&server, &a).await;
        let (next, turn) = told(&server, &b).await;
        let ticket = ticket(&server, &next);
        has_rights(&server, &[right]);
        let freed = a.release(&held, Then::Free).await;
        assert_eq!(freed.unwrap(), Release::Freed, "{right}");
        let grant = within("the turn", turn).await.unwrap();
        assert!(Some(grant.fence) > ticket, "{right}");
        eventually("it to have left", || async { !is_in_queue(&server, &next) }).await;
    }
}

/// What could not be passed on is ours for as long as it would have been, not for as long as the next wants it.
#[tokio::test]
async fn what_is_not_passed_on_ends_with_our_lease() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (user(&server, &relay.url()).await, redis(&server).await);
    // Once before, so that the server knows the script.
    a.release(&restless(&server, &a).await, Then::Free).await.unwrap();
    let (held, wants) = (restless(&server, &a).await, claim("k", LONG * 30));
    let turn = told_as(&server, &b, &wants).await;
    has_rights(&server, &["-publish"]);
    server.client().command(&["CONFIG", "RESETSTAT"]);
    relay.hold(COMMANDS, Way::Replies);
    let (there, lease) = (a.clone(), held.clone());
    let freed = tokio::spawn(async move { there.release(&lease, Then::Free).await });
    eventually("the short way", || async { calls(&server, "zpopmin") == 1 }).await;
    let value = get(&server, LOCK).unwrap();
    assert!(value.contains(&held.claim().token().expose()), "{value}");
    assert!(pttl(&server, LOCK) <= i64::try_from(LONG.as_millis()).unwrap());
    assert!(is_in_queue(&server, &wants) && pttl(&server, QUEUE) > 0);
    relay.let_go(COMMANDS);
    assert_eq!(freed.await.unwrap().unwrap(), Release::Freed);
    within("the turn", turn).await.unwrap();
}

/// A heartbeat whose claim has gone without it goes with the last that waits, the short way and the long one.
#[tokio::test]
async fn no_heartbeat_outlives_the_queue() {
    for short in [true, false] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = if short { restless(&server, &a).await } else { lease(&a, "k", LONG).await };
        let (_next, turn) = told(&server, &b).await;
        server.client().command(&["HSET", BEATS, &"f".repeat(32), "1 poll"]);
        a.release(&held, Then::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        assert_eq!(pttl(&server, BEATS), -2, "short: {short}");
    }
}

/// Where the count is a little ahead of the clock a ticket still tells who has just come.
#[tokio::test]
async fn a_ticket_ahead_of_the_clock_needs_no_heartbeat() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = restless(&server, &a).await;
    let count: u64 = get(&server, "tenure:fence").unwrap().parse().unwrap();
    server.client().command(&["SET", "tenure:fence", &(count + 100 * 256).to_string()]);
    let (next, turn) = told(&server, &b).await;
    assert!(!has_beat(&server, &next));
    a.release(&held, Then::Free).await.unwrap();
    within("the turn", turn).await.unwrap();
}

/// That somebody else waits is known of a lock that was waited for without the engine being woken.
#[tokio::test]
async fn contention_is_noted_on_the_claim() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (next, turn) = told(&server, &b).await;
    a.release(&held, Then::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    let had = Lease::new(next, grant, Clock::system());
    assert!(!had.is_contended(), "nobody waits yet");
    let (_last, _waits) = told(&server, &c).await;
    eventually("it to be known", || async { had.is_contended() }).await;
}

/// What a queue is made of lasts for an hour from a waiter's first heartbeat on, and from later ones.
#[tokio::test]
async fn a_queue_does_not_last_for_ever() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let _held = lease(&a, "k", LONG).await;
    let (_next, _turn) = told(&server, &b).await;
    let lasts = || async { [QUEUE, BEATS].iter().all(|key| pttl(&server, key) > 3_000_000) };
    eventually("an hour", lasts).await;
    for key in [QUEUE, BEATS] {
        assert_eq!(server.client().command(&["PEXPIRE", key, "60000"]), Reply::Int(1));
    }
    eventually("another hour", lasts).await;
}

//! The usual hand-over, which has a short way of its own through the scripts: it leaves behind what
//! the long one does, and takes the long one wherever something is not usual.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Backend, Grant, Then};
use tenure_core::time::Clock;
use tenure_core::{Claim, Lease};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

use crate::support::{claim, get, lease, pttl, redis};

const LONG: Duration = Duration::from_secs(20);
const LOCK: &str = "tenure:lock:k";
const QUEUE: &str = "tenure:queue:k";
const BEATS: &str = "tenure:beat:k";

/// A claim that stands in the queue and is told its turn.
async fn told(server: &RedisServer, store: &Redis) -> (Arc<Claim>, JoinHandle<Grant>) {
    let claim = claim("k", LONG);
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    let told = || async { beat(server, &claim).is_some_and(|beat| beat.contains(" push ")) };
    eventually("it to wait", told).await;
    (claim, waiter)
}

fn ticket(server: &RedisServer, claim: &Claim) -> Option<u64> {
    let score = server.client().text(&["ZSCORE", QUEUE, &claim.token().expose()]);
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

fn beat(server: &RedisServer, claim: &Claim) -> Option<String> {
    server.client().text(&["HGET", BEATS, &claim.token().expose()])
}

fn has_beat(server: &RedisServer, claim: &Claim) -> bool {
    beat(server, claim).is_some()
}

fn calls(server: &RedisServer, command: &str) -> usize {
    let stats = server.client().text(&["INFO", "commandstats"]).unwrap();
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0,");
    line.split(',').next().unwrap().parse().unwrap()
}

/// Who gives the lock on leaves the queue wherever it stands there, as does who gets it; the others stay.
#[tokio::test]
async fn a_hand_over_takes_out_two_and_no_more() {
    for place in [Place::First, Place::Second, Place::Last] {
        let server = RedisServer::start();
        let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
        let held = lease(&a, "k", LONG).await;
        let (next, turn) = told(&server, &b).await;
        let (last, _waits) = told(&server, &c).await;
        // A heartbeat that was under way when the lock was granted.
        let own = held.claim().token().expose();
        let ticket = place.behind(ticket(&server, &next)).to_string();
        server.client().command(&["ZADD", QUEUE, &ticket, &own]);
        server.client().command(&["HSET", BEATS, &own, &beat(&server, &next).unwrap()]);
        a.release(&held, Then::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        let value = get(&server, LOCK).unwrap();
        assert!(value.starts_with("*t1:") && value.contains(&next.token().expose()), "{value}");
        for gone in [held.claim(), &next] {
            assert!(!is_in_queue(&server, gone) && !has_beat(&server, gone), "{place:?}");
        }
        assert!(is_in_queue(&server, &last) && has_beat(&server, &last));
    }
}

/// The usual hand-over asks the queue once, for the next and whether somebody comes after it.
#[tokio::test]
async fn the_usual_hand_over_is_short() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (_next, turn) = told(&server, &b).await;
    server.client().command(&["CONFIG", "RESETSTAT"]);
    a.release(&held, Then::Free).await.unwrap();
    within("the turn", turn).await.unwrap();
    assert_eq!(["zrange", "zcard"].map(|command| calls(&server, command)), [1, 0]);
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

//! The usual hand-over, which has a short way of its own through the scripts: it leaves behind what
//! the long one does, and takes the long one wherever something is not usual.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant, Then};
use tenure_core::time::Clock;
use tenure_core::{Claim, Lease};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

use crate::support::{BEATS, QUEUE, claim, get, kind, lease, place, pttl, redis};

const LONG: Duration = Duration::from_secs(20);
const LOCK: &str = "tenure:lock:k";

/// A claim that stands in the queue and is told its turn.
async fn told(server: &RedisServer, store: &Redis) -> (Arc<Claim>, JoinHandle<Grant>) {
    let claim = claim("k", LONG);
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { kind(server, &claim) == "push" }).await;
    (claim, waiter)
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
        let held = restless(&a).await;
        let (next, turn) = told(&server, &b).await;
        let (last, waits) = told(&server, &c).await;
        let own = held.claim().token().expose();
        let ticket = stale.behind(ticket(&server, &next)).to_string();
        let left = place(&server, &next).unwrap().replace(&next.token().expose(), &own);
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

/// A lock that is known to be wanted by several.
async fn restless(store: &Redis) -> Arc<Lease> {
    let held = lease(store, "k", LONG).await;
    let asked = store.try_acquire(&claim("k", LONG)).await.unwrap();
    assert!(matches!(asked, Attempt::Held(_)), "{asked:?}");
    held
}

/// The usual hand-over takes one script, which asks the queue once for the next, and no heartbeat; with one
/// that has waited for longer it asks for its heartbeat, and removes it.
#[tokio::test]
async fn the_usual_hand_over_is_short() {
    for waited in [false, true] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = restless(&a).await;
        let (next, turn) = told(&server, &b).await;
        let ready = || async { !waited || has_beat(&server, &next) };
        eventually("a heartbeat", ready).await;
        server.client().command(&["CONFIG", "RESETSTAT"]);
        a.release(&held, Then::Free).await.unwrap();
        within("the turn", turn).await.unwrap();
        let counted = ["zpopmin", "zrange", "hget", "hdel"].map(|command| calls(&server, command));
        assert_eq!(counted, [1, 0, usize::from(waited), usize::from(waited)], "{waited}");
        assert!(!has_beat(&server, &next));
    }
}

/// Where the clock is behind the count, or the count is none that can be, the long way is taken: the fence
/// rises, or nobody is given one.
#[tokio::test]
async fn a_hand_over_with_a_count_that_is_ahead() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = restless(&a).await;
    let (next, turn) = told(&server, &b).await;
    let ahead = 1_u64 << 49;
    server.client().command(&["SET", "tenure:fence", &ahead.to_string()]);
    a.release(&held, Then::Free).await.unwrap();
    let grant = within("the turn", turn).await.unwrap();
    assert_eq!((grant.fence, is_in_queue(&server, &next)), (ahead + 1, false));
}

/// One whom the short way could not tell is where it was before, and so is the lock: the long way finds out.
/// Here nobody may be told anything, and so it is freed.
#[tokio::test]
async fn a_hand_over_that_may_not_tell() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">hunter2", "~*", "&*", "+@all", "-publish"];
    server.client().command(&[&["ACL", "SETUSER", "mute"], &rights[..]].concat());
    let url = format!("redis://mute:hunter2@127.0.0.1:{}", server.port());
    let (a, b) = (Redis::connect(&url).await.unwrap(), redis(&server).await);
    let held = restless(&a).await;
    let (next, turn) = told(&server, &b).await;
    let before = ticket(&server, &next);
    a.release(&held, Then::Free).await.unwrap();
    assert!(get(&server, LOCK).is_none_or(|value| value.contains(&next.token().expose())));
    assert!(ticket(&server, &next).is_none_or(|ticket| Some(ticket) == before));
    let grant = within("the turn", turn).await.unwrap();
    assert!(Some(grant.fence) > before && !is_in_queue(&server, &next));
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

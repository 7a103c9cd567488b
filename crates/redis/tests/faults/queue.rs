//! The queue: a lock is handed to the next waiter, which is notified by one message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, Grant, Loss, Operator, Release, Validity,
};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Locker, Token};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, eventually_blocking, in_time, lapse, within};
use tokio::task::{JoinHandle, JoinSet};

use crate::relay::{Relay, Way};
use crate::support::{
    BEATS, QUEUE, SLACK, claim, clients, entries, entry, get, granted, kind, lease, locker, redis,
    requests,
};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";
/// The order in which connections are made through a relay.
const INBOX: usize = 1;

type Waiter = JoinHandle<Grant>;

/// Starts an acquire, and returns when the server knows that its waiter can be notified.
async fn waiting(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> Waiter {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { kind(server, claim) == "push" }).await;
    waiter
}

/// How many entries are before it in the queue.
fn before(server: &RedisServer, claim: &Claim) -> Option<usize> {
    let is_its = |entry: &String| entry.starts_with(&claim.token().expose());
    entries(server).iter().position(is_its)
}

async fn behind(relay: &Relay) -> Redis {
    Redis::builder(&relay.url()).connect().await.unwrap()
}

async fn released(store: &Redis, lease: &Arc<Lease>) {
    assert_eq!(store.release(lease, AfterRelease::Free).await.unwrap(), Release::Freed);
}

/// A9, A24, B1: the lock goes to the next waiter, which is notified; neither side sends a further request. The first
/// time the holder assumes that the key is uncontended, and each script is sent with its text.
#[tokio::test]
async fn a_lock_is_handed_over() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    for (most, why) in [(5, "two releases, each twice"), (2, "a release")] {
        let (held, next) = (lease(&a, "k", LONG).await, claim("k", LONG));
        let waiter = waiting(&server, &b, &next).await;
        let value = get(&server, LOCK).unwrap();
        assert!(value.starts_with("*t1:"), "the holder's value says who waits");
        let before = requests(&server);
        released(&a, &held).await;
        let grant = within("the turn", waiter).await.unwrap();
        assert!(requests(&server) - before <= most, "{why}, and at most one heartbeat");
        assert!(grant.fence > held.fence().server());
        assert!(get(&server, LOCK).unwrap().starts_with("-t1:"), "nobody waits any more");
        assert_eq!(server.client().command(&["EXISTS", QUEUE, BEATS]), Reply::Int(0));
        released(&b, &Arc::new(Lease::new(next, grant, b.clock()))).await;
    }
}

/// The validity of a pushed grant counts from the last heartbeat, which was sent before the grant.
#[tokio::test]
async fn a_pushed_lease_is_never_too_long() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, next) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = waiting(&server, &b, &next).await;
    let before = a.clock().now();
    released(&a, &held).await;
    let grant = within("the turn", waiter).await.unwrap();
    let Validity::Lease { from, ttl } = grant.validity else { panic!("{grant:?}") };
    assert!(from <= before && ttl == LONG);
}

/// A push that is delayed until its grant has expired is ignored: its fence is below the stamp of the
/// heartbeat that came after it.
#[tokio::test]
async fn a_late_push_is_not_believed() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (redis(&server).await, behind(&relay).await);
    let (held, late) = (lease(&a, "k", LONG).await, claim("k", Duration::from_millis(200)));
    let waiter = waiting(&server, &b, &late).await;
    relay.hold(INBOX, Way::Replies);
    // The waiter neither receives the push nor sends a request, so its grant expires.
    waiter.abort();
    released(&a, &held).await;
    eventually("the grant to end", || async { get(&server, LOCK).is_none() }).await;
    let rival = lease(&a, "k", LONG).await;
    let again = waiting(&server, &b, &late).await;
    relay.forward(INBOX);
    lapse(Duration::from_millis(300)).await;
    assert!(!again.is_finished(), "two would hold it");
    released(&a, &rival).await;
    let grant = within("the turn", again).await.unwrap();
    assert!(grant.fence > rival.fence().server());
}

/// A waiter that cannot be notified keeps its position, and does not delay the waiters behind it.
#[tokio::test]
async fn a_polling_waiter_keeps_its_position() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b, c) = (redis(&server).await, behind(&relay).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (first, second) = (claim("k", LONG), claim("k", LONG));
    let deaf = waiting(&server, &b, &first).await;
    let next = waiting(&server, &c, &second).await;
    // Its inbox is disconnected and cannot reconnect.
    deaf.abort();
    relay.lead_to(1);
    relay.cut(INBOX);
    eventually("the inbox to be gone", || async { listeners(&server) == 1 }).await;
    released(&a, &held).await;
    within("the turn of the second", next).await.unwrap();
    assert_eq!(before(&server, &first), Some(0));
    assert!(get(&server, LOCK).unwrap().starts_with("*t1:"), "it is known to wait");
}

fn listeners(server: &RedisServer) -> usize {
    let list = server.client().text(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
    list.lines().count()
}

/// A new claim that finds the lock free and no waiter reachable acquires it, and keeps the flag that marks waiters.
#[tokio::test]
async fn a_newcomer_keeps_the_flag() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    waiting(&server, &b, &waits).await.abort();
    b.close().await;
    eventually("the inbox to be gone", || async { listeners(&server) == 0 }).await;
    server.client().command(&["DEL", LOCK]);
    let grant = granted(&c, &claim("k", LONG)).await;
    assert!(grant.contended);
    assert!(get(&server, LOCK).unwrap().starts_with("*t1:"));
}

/// A new claim does not overtake the waiters, even if the lock became free without a release.
#[tokio::test]
async fn a_newcomer_stands_behind() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = waiting(&server, &b, &waits).await;
    server.client().command(&["DEL", LOCK]);
    let tried = c.try_acquire(&claim("k", LONG)).await.unwrap();
    assert!(matches!(tried, Attempt::Held(_)), "{tried:?}");
    within("the turn", waiter).await.unwrap();
}

/// A24: a process that died while it waited causes no delay, even if another client is subscribed to every channel.
/// The release itself hands the lock to the next waiter: no heartbeat and no expiry is needed.
#[tokio::test]
async fn a_dead_waiter_costs_nothing() {
    let server = RedisServer::start();
    let mut nosy = server.client();
    nosy.command(&["PSUBSCRIBE", "*"]);
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let (held, dead, alive) = (lease(&a, "k", LONG).await, claim("k", LONG), claim("k", LONG));
    waiting(&server, &b, &dead).await.abort();
    let next = waiting(&server, &c, &alive).await;
    // For the server this is the death of the process: its connections are closed, and its entry stays.
    b.close().await;
    eventually("the inbox to be gone", || async { listeners(&server) == 2 }).await;
    assert_eq!((before(&server, &dead), before(&server, &alive)), (Some(0), Some(1)));
    released(&a, &held).await;
    let value = get(&server, LOCK).unwrap_or_default();
    assert!(value.contains(&alive.token().expose()), "not handed to the living: `{value}`");
    in_time(Duration::from_secs(2), "the turn of the living", next).await.unwrap();
}

/// A24: if the server has not noticed the death of a waiter, the lock is handed to it, and the next waiter gets
/// the lock when that ttl is over.
#[tokio::test]
async fn a_waiter_that_dies_unnoticed_costs_its_ttl() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    // Longer than a heartbeat, so that the next waiter knows in time when to ask.
    let ttl = Duration::from_secs(2);
    let (held, dead) = (lease(&a, "k", LONG).await, claim("k", ttl));
    // Nothing works for the claim any more, but its process is still subscribed.
    waiting(&server, &b, &dead).await.abort();
    let next = waiting(&server, &c, &claim("k", LONG)).await;
    let start = Instant::now();
    released(&a, &held).await;
    let value = get(&server, LOCK).unwrap_or_default();
    assert!(value.contains(&dead.token().expose()), "not handed to the dead: `{value}`");
    within("the turn of the living", next).await.unwrap();
    let took = start.elapsed();
    assert!(took >= ttl && took < ttl + SLACK, "{took:?}");
}

/// A24: a waiter that has sent no heartbeat for long is removed from the queue.
#[tokio::test]
async fn a_silent_waiter_is_dropped() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    waiting(&server, &b, &waits).await.abort();
    lapse(Duration::from_millis(3_700)).await;
    released(&a, &held).await;
    assert_eq!((get(&server, LOCK), before(&server, &waits)), (None, None));
}

/// A10: an abandoned wait leaves the queue, and the lock goes to the next waiter.
#[tokio::test]
async fn abandoned_waits_leave() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (gone, stays) = (claim("k", LONG), claim("k", LONG));
    waiting(&server, &b, &gone).await.abort();
    let next = waiting(&server, &c, &stays).await;
    b.abandon(&gone).await.unwrap();
    assert_eq!((before(&server, &gone), before(&server, &stays)), (None, Some(0)));
    released(&a, &held).await;
    within("the turn", next).await.unwrap();
}

/// A grant for a claim that its process has abandoned is released at once. (A heartbeat was executed after
/// the abandon.)
#[tokio::test]
async fn an_unwanted_grant_is_released() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    // Longer than the test would wait for its expiry.
    let late = claim("k", Duration::from_secs(600));
    waiting(&server, &b, &late).await.abort();
    let next = waiting(&server, &c, &claim("k", LONG)).await;
    let left = entry(&server, &late).unwrap();
    b.abandon(&late).await.unwrap();
    server.client().command(&["ZADD", QUEUE, "1", &left]);
    server.client().command(&["HSET", BEATS, &late.token().expose(), "9000000000000 push"]);
    released(&a, &held).await;
    within("the turn of the next", next).await.unwrap();
}

/// A client that can only read the lock's value and publish cannot make the holder's process release it,
/// neither by a forged grant nor by a forged message of a forced release.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_message_releases_nothing() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">hunter2", "~*", "&*", "+get", "+publish"];
    server.client().command(&[&["ACL", "SETUSER", "forger"], &rights[..]].concat());
    let mut forger = server.client();
    forger.command(&["AUTH", "forger", "hunter2"]);
    let (a, b) = (locker(&server).await, locker(&server).await);
    for (word, rest) in [("granted", format!("1:-:{LOCK}")), ("forced", format!("{LOCK}\nforged"))]
    {
        let guard = a.lock("k").ttl(Duration::from_secs(300)).await.unwrap();
        let value = forger.text(&["GET", LOCK]).unwrap();
        let (client, token) = (value.split(':').nth(1).unwrap(), value.split(':').nth(2).unwrap());
        let (inbox, message) = (format!("tenure:inbox:{client}"), format!("{word}:{token}:{rest}"));
        let heard = || forger.command(&["PUBLISH", &inbox, &message]) == Reply::Int(1);
        eventually_blocking("its process to hear it", heard);
        let rival = b.lock("k").wait(Duration::from_secs(1)).await;
        assert!(rival.unwrap_err().is_timeout(), "{word}");
        assert!(get(&server, LOCK).unwrap().contains(token) && guard.is_held(), "{word}");
        guard.release().await.unwrap();
    }
}

/// t34: an inbox that is disconnected reconnects by itself, and the wait keeps its position.
#[tokio::test]
async fn t34_a_cut_inbox_comes_back() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = waiting(&server, &b, &waits).await;
    for _ in 0..5 {
        server.client().command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually("the inbox to be back", || async { listeners(&server) == 1 }).await;
        eventually("it to rely on it", || async { kind(&server, &waits) == "push" }).await;
    }
    assert_eq!(before(&server, &waits), Some(0));
    released(&a, &held).await;
    within("the turn", waiter).await.unwrap();
}

/// t33: a push that never arrives costs a heartbeat, not the lock.
#[tokio::test]
async fn t33_a_lost_push_is_made_up_for() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (redis(&server).await, behind(&relay).await);
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = waiting(&server, &b, &waits).await;
    relay.hold(INBOX, Way::Replies);
    let start = Instant::now();
    released(&a, &held).await;
    within("the turn", waiter).await.unwrap();
    // A heartbeat is sent every second, plus or minus a quarter.
    let most = Duration::from_millis(1_250) + SLACK;
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
}

/// If a holder's process dies, the lock goes to the next waiter when its ttl ends.
#[tokio::test]
async fn t32_a_dead_holder_is_followed() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let dead = lease(&a, "k", Duration::from_millis(1_500)).await;
    let waiter = waiting(&server, &b, &claim("k", LONG)).await;
    within("the turn", waiter).await.unwrap();
    let (now, until) = (a.clock().now(), dead.valid_until());
    assert!(now >= until && now < until.after(SLACK), "{:?} after its end", now.since(until));
}

/// A9: without the right to subscribe, a waiter polls at its interval, and gets the lock in order.
#[tokio::test]
async fn waiting_without_the_right_to_listen() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">hunter2", "~*", "&*", "+@all", "-subscribe"];
    server.client().command(&[&["ACL", "SETUSER", "deaf"], &rights[..]].concat());
    let url = format!("redis://deaf:hunter2@127.0.0.1:{}", server.port());
    let (a, b) = (redis(&server).await, Redis::connect(&url).await.unwrap());
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let (there, claim) = (b.clone(), waits.clone());
    let waiter = tokio::spawn(async move { there.acquire(&claim).await.unwrap() });
    eventually("it to wait", || async { kind(&server, &waits) == "poll" }).await;
    released(&a, &held).await;
    let grant = within("the turn", waiter).await.unwrap();
    assert!(matches!(grant.validity, Validity::Lease { ttl, .. } if ttl == LONG));
    assert!(crate::support::pttl(&server, LOCK) > 295_000, "it lasts from the asking on");
}

/// A9: if no message can come, because the holder is another program or subscribing is not allowed, a waiter
/// polls at its retry interval, and not faster.
#[tokio::test]
async fn a_waiter_that_polls_keeps_its_interval() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">hunter2", "~*", "&*", "+@all", "-subscribe"];
    server.client().command(&[&["ACL", "SETUSER", "deaf"], &rights[..]].concat());
    let deaf = format!("redis://deaf:hunter2@127.0.0.1:{}", server.port());
    server.client().command(&["SET", "tenure:lock:foreign", "theirs", "PX", "300000"]);
    let _held = lease(&redis(&server).await, "ours", LONG).await;
    for (url, key) in [(server.url(), "foreign"), (deaf, "ours")] {
        for interval in [50, 250].map(Duration::from_millis) {
            let store = Redis::connect(&url).await.unwrap();
            let terms = ClaimOptions::new(LONG).retry_interval(interval);
            let claim = Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms);
            let waiter = tokio::spawn(async move { store.acquire(&Arc::new(claim)).await });
            let first = requests(&server);
            eventually("it to have asked", || async { requests(&server) > first + 3 }).await;
            let (before, since) = (requests(&server), Instant::now());
            lapse(interval * 12).await;
            let (asked, passed) = (requests(&server) - before, since.elapsed().as_millis() as u64);
            waiter.abort();
            // Plus or minus a quarter; a slow machine makes the pauses longer.
            let every = interval.as_millis() as u64;
            let (least, most) = (passed / (every * 2) - 1, passed * 4 / (every * 3) + 2);
            assert!((least..=most).contains(&asked), "{key}: {asked} requests, {least} to {most}");
        }
    }
}

/// A script without the right to publish frees the lock all the same, and the waiters notice it.
#[tokio::test]
async fn releasing_without_the_right_to_publish() {
    let server = RedisServer::start();
    let rights = ["reset", "on", ">hunter2", "~*", "&*", "+@all", "-publish"];
    server.client().command(&[&["ACL", "SETUSER", "mute"], &rights[..]].concat());
    let url = format!("redis://mute:hunter2@127.0.0.1:{}", server.port());
    let (a, b) = (Redis::connect(&url).await.unwrap(), redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let waiter = waiting(&server, &b, &claim("k", LONG)).await;
    released(&a, &held).await;
    within("the turn", waiter).await.unwrap();
}

/// t41: on a full server the lock is still handed over.
#[tokio::test]
async fn t41_handed_over_on_a_full_server() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let waiter = waiting(&server, &b, &claim("k", LONG)).await;
    server.client().command(&["CONFIG", "SET", "maxmemory", "1"]);
    released(&a, &held).await;
    within("the turn", waiter).await.unwrap();
}

/// If a key of the queue has another type, a held lock can still be released, and a new waiter gets an error
/// that names the problem.
#[tokio::test]
async fn a_queue_of_another_type() {
    for key in [QUEUE, BEATS] {
        let server = RedisServer::start();
        let (a, b) = (redis(&server).await, redis(&server).await);
        let held = lease(&a, "k", LONG).await;
        server.client().command(&["SET", key, "x"]);
        let waits = claim("k", LONG);
        let fault = within("a refusal", b.acquire(&waits)).await.unwrap_err();
        assert!(fault.to_string().contains("another type"), "{fault}");
        b.abandon(&waits).await.unwrap();
        let value = get(&server, LOCK).unwrap().replacen('-', "*", 1);
        server.client().command(&["SET", LOCK, &value, "KEEPTTL"]);
        released(&a, &held).await;
        assert_eq!(get(&server, LOCK), None);
    }
}

/// t68: a forced release notifies the holder through its inbox, long before its next renewal, and the next
/// waiter gets the lock.
#[tokio::test]
async fn t68_the_former_holder_is_notified() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, redis(&server).await, redis(&server).await);
    let guard = a.lock("k").ttl(Duration::from_secs(300)).await.unwrap();
    eventually("its inbox to be open", || async { listeners(&server) == 1 }).await;
    let waiter = waiting(&server, &b, &claim("k", LONG)).await;
    let seen = c.inspect(&tenure_core::backend::Query::Key(guard.key().clone())).await.unwrap();
    let token = seen[0].holders[0].token.unwrap();
    let by = "ann: stuck";
    assert_eq!(c.force_release(guard.key(), token, by).await.unwrap(), Release::Freed);
    assert_eq!(within("the loss", guard.lost()).await, Loss::Forced(by.into()));
    within("the turn", waiter).await.unwrap();
}

/// `inspect` shows the waiters in order, with their labels.
#[tokio::test]
async fn the_queue_can_be_seen() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, locker(&server).await, locker(&server).await);
    let _guard = a.lock("k").await.unwrap();
    let mut waits = JoinSet::new();
    for (position, (locker, label)) in [(&b, "first"), (&c, "second")].into_iter().enumerate() {
        waits.spawn(locker.lock("k").label(label).into_future());
        eventually("it to wait", || async { queue_of(&a).await.len() == position + 1 }).await;
    }
    assert_eq!(queue_of(&a).await, ["first", "second"]);
}

async fn queue_of(locker: &Locker) -> Vec<String> {
    let info = locker.inspect("k").await.unwrap().unwrap();
    info.waiters.unwrap().into_iter().map(|waiting| waiting.label.unwrap()).collect()
}

/// t48: a thousand tasks in ten processes on one key: at most one claim and three connections per process,
/// and all of them acquire the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t48_a_thousand_tasks_in_ten_processes() {
    let server = RedisServer::start();
    let mut lockers = Vec::new();
    for _ in 0..10 {
        lockers.push(locker(&server).await);
    }
    let first = lockers[0].lock("k").await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..1_000 {
        let locker = lockers[task % 10].clone();
        tasks.spawn(async move { locker.lock("k").await.unwrap().release().await.unwrap() });
    }
    eventually("every process to wait", || async { queued(&server) == 9 }).await;
    first.release().await.unwrap();
    let watch = async {
        let mut most = 0;
        while !tasks.is_empty() {
            most = most.max(queued(&server));
            while let Some(done) = tasks.try_join_next() {
                done.unwrap();
            }
            tokio::task::yield_now().await;
        }
        most
    };
    assert!(within("everybody's turn", watch).await <= 10);
    assert_eq!(queued(&server), 0);
    assert!(clients(&server) + listeners(&server) <= 30);
}

fn queued(server: &RedisServer) -> usize {
    match server.client().command(&["ZCARD", QUEUE]) {
        Reply::Int(count) => usize::try_from(count).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A release that comes too late also removes the claim from the queue: an earlier heartbeat that was still
/// under way may have put it there.
#[tokio::test]
async fn a_late_release_leaves_no_ghost() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let ended = lease(&a, "k", Duration::from_millis(50)).await;
    eventually("its end", || async { get(&server, LOCK).is_none() }).await;
    let rival = lease(&b, "k", LONG).await;
    // The heartbeat, executed late.
    waiting(&server, &a, ended.claim()).await.abort();
    assert_eq!(a.release(&ended, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    assert_eq!(before(&server, ended.claim()), None);
    released(&b, &rival).await;
    assert_eq!(get(&server, LOCK), None);
}

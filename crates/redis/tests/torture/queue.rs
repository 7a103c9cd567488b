//! The queue: a lock is handed to the next that waits, who is told by one message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{Attempt, Backend, Grant, Loss, Release, Term, Then};
use tenure_core::{Claim, Key, Lease, Locker, Terms, Token};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, eventually_blocking, lapse, within};
use tokio::task::{JoinHandle, JoinSet};

use crate::relay::{Relay, Way};
use crate::support::{
    BEATS, QUEUE, SLACK, claim, clients, get, granted, kind, lease, locker, place, places, redis,
    requests,
};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";
/// The order in which connections are made behind a relay.
const INBOX: usize = 1;

type Waiter = JoinHandle<Grant>;

/// A claim that waits, and is known to the server.
async fn waiting(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> Waiter {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { kind(server, claim) == "push" }).await;
    waiter
}

/// How many come before it.
fn before(server: &RedisServer, claim: &Claim) -> Option<usize> {
    let is_its = |place: &String| place.starts_with(&claim.token().expose());
    places(server).iter().position(is_its)
}

async fn behind(relay: &Relay) -> Redis {
    Redis::builder(&relay.url()).connect().await.unwrap()
}

async fn released(store: &Redis, lease: &Arc<Lease>) {
    assert_eq!(store.release(lease, Then::Free).await.unwrap(), Release::Freed);
}

/// A9, A24: the lock goes to the next, who is told: neither of them asks for anything more. The first
/// time the holder takes the key for calm, and each script is sent by its text.
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

/// What a push tells counts from the heartbeat before it, which was sent before the grant.
#[tokio::test]
async fn a_pushed_lease_is_never_too_long() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, next) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = waiting(&server, &b, &next).await;
    let before = a.clock().now();
    released(&a, &held).await;
    let grant = within("the turn", waiter).await.unwrap();
    let Term::Lease { from, ttl } = grant.term else { panic!("{grant:?}") };
    assert!(from <= before && ttl == LONG);
}

/// A push that was held up until its grant had ended is not believed: its fence is below the stamp
/// of the heartbeat that came after.
#[tokio::test]
async fn a_late_push_is_not_believed() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (redis(&server).await, behind(&relay).await);
    let (held, late) = (lease(&a, "k", LONG).await, claim("k", Duration::from_millis(200)));
    let waiter = waiting(&server, &b, &late).await;
    relay.hold(INBOX, Way::Replies);
    // It neither hears nor asks, and so loses what it was given.
    waiter.abort();
    released(&a, &held).await;
    eventually("the grant to end", || async { get(&server, LOCK).is_none() }).await;
    let rival = lease(&a, "k", LONG).await;
    let again = waiting(&server, &b, &late).await;
    relay.let_go(INBOX);
    lapse(Duration::from_millis(300)).await;
    assert!(!again.is_finished(), "two would hold it");
    released(&a, &rival).await;
    let grant = within("the turn", again).await.unwrap();
    assert!(grant.fence > rival.fence().server());
}

/// One that cannot be told keeps its place, and those behind it are not kept waiting by it.
#[tokio::test]
async fn one_that_cannot_be_told_keeps_its_place() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b, c) = (redis(&server).await, behind(&relay).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let (first, second) = (claim("k", LONG), claim("k", LONG));
    let deaf = waiting(&server, &b, &first).await;
    let next = waiting(&server, &c, &second).await;
    // Its inbox is cut, and it has no time to come back.
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

/// A newcomer that finds the lock free, and those who wait out of reach, takes it with the flag.
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

/// A newcomer does not come before those who wait, also where the clock freed the lock.
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

/// A24: a process that died while it waited costs nothing, whoever else listens to everything.
#[tokio::test]
async fn a_dead_waiter_costs_nothing() {
    let server = RedisServer::start();
    let mut nosy = server.client();
    nosy.command(&["PSUBSCRIBE", "*"]);
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    waiting(&server, &b, &claim("k", Duration::from_secs(600))).await.abort();
    let next = waiting(&server, &c, &claim("k", LONG)).await;
    b.close().await;
    eventually("the inbox to be gone", || async { listeners(&server) == 2 }).await;
    released(&a, &held).await;
    within("the turn of the living", next).await.unwrap();
}

/// One that has not been heard of for long is dropped from the queue.
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

/// A10: a wait that is given up leaves the queue, and what it was just given goes to the next.
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

/// A grant for a claim that its process has given up is given back at once: a heartbeat was carried out
/// after the abandon.
#[tokio::test]
async fn a_grant_for_nobody_is_given_back() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    // Longer than the test would wait for its end.
    let late = claim("k", Duration::from_secs(600));
    waiting(&server, &b, &late).await.abort();
    let next = waiting(&server, &c, &claim("k", LONG)).await;
    let left = place(&server, &late).unwrap();
    b.abandon(&late).await.unwrap();
    server.client().command(&["ZADD", QUEUE, "1", &left]);
    server.client().command(&["HSET", BEATS, &late.token().expose(), "9000000000000 push"]);
    released(&a, &held).await;
    within("the turn of the next", next).await.unwrap();
}

/// Somebody who can read the lock's value and publish, and no more, cannot make its holder's process
/// release it: neither by a forged grant nor by a forged release by force.
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

/// t34: an inbox that is cut comes back by itself, and the wait goes on where it was.
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
    // A heartbeat comes every second, give or take a quarter.
    let most = Duration::from_millis(1_250) + SLACK;
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
}

/// A lock whose holder died with its process goes to the next when its ttl ends.
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

/// A9: where nobody may listen, whoever waits asks at its interval, and gets its turn in order.
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
    assert!(matches!(grant.term, Term::Lease { ttl, .. } if ttl == LONG));
    assert!(crate::support::pttl(&server, LOCK) > 295_000, "it lasts from the asking on");
}

/// A9: where no message can come, because the holder is a stranger or listening is not allowed, a waiter asks
/// at its retry interval, and does not spin.
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
            let terms = Terms::new(LONG).retry_interval(interval);
            let claim = Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms);
            let waiter = tokio::spawn(async move { store.acquire(&Arc::new(claim)).await });
            let first = requests(&server);
            eventually("it to have asked", || async { requests(&server) > first + 3 }).await;
            let (before, since) = (requests(&server), Instant::now());
            lapse(interval * 12).await;
            let (asked, passed) = (requests(&server) - before, since.elapsed().as_millis() as u64);
            waiter.abort();
            // Give or take a quarter; a slow machine makes the pauses longer.
            let every = interval.as_millis() as u64;
            let (least, most) = (passed / (every * 2) - 1, passed * 4 / (every * 3) + 2);
            assert!((least..=most).contains(&asked), "{key}: {asked} requests, {least} to {most}");
        }
    }
}

/// A script that may not publish frees the lock all the same, and those who wait find out.
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

/// Whatever became of the queue's keys, what is ours can be given back; and whoever would wait is
/// told what is wrong.
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

/// t68: a holder is told in its inbox that its lock was taken away, long before its next renewal;
/// and the next in the queue has it.
#[tokio::test]
async fn t68_the_former_holder_is_told() {
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

/// Whoever waits can be seen, in order, with what they said of themselves.
#[tokio::test]
async fn the_queue_can_be_seen() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, locker(&server).await, locker(&server).await);
    let _guard = a.lock("k").await.unwrap();
    let mut waits = JoinSet::new();
    for (place, (locker, label)) in [(&b, "first"), (&c, "second")].into_iter().enumerate() {
        waits.spawn(locker.lock("k").label(label).into_future());
        eventually("it to wait", || async { queue_of(&a).await.len() == place + 1 }).await;
    }
    assert_eq!(queue_of(&a).await, ["first", "second"]);
}

async fn queue_of(locker: &Locker) -> Vec<String> {
    let info = locker.inspect("k").await.unwrap().unwrap();
    info.waiters.unwrap().into_iter().map(|waiting| waiting.holder.label.unwrap()).collect()
}

/// t48: a thousand tasks in ten processes on one key: at most one claim for each process, three
/// connections each, and everybody is served.
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

/// A release that comes too late leaves the queue as well: a heartbeat that was under way before it
/// may have put its claim there.
#[tokio::test]
async fn a_late_release_leaves_no_ghost() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let ended = lease(&a, "k", Duration::from_millis(50)).await;
    eventually("its end", || async { get(&server, LOCK).is_none() }).await;
    let rival = lease(&b, "k", LONG).await;
    // The heartbeat, carried out late.
    waiting(&server, &a, ended.claim()).await.abort();
    assert_eq!(a.release(&ended, Then::Free).await.unwrap(), Release::NotHeld);
    assert_eq!(before(&server, ended.claim()), None);
    released(&b, &rival).await;
    assert_eq!(get(&server, LOCK), None);
}

//! Waiters, their notifications and their runtimes, in states that are rare: each was found by an attempt to break the
//! lock.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Attempt, Backend, Grant, Operator, Release, Validity};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Locker, Token};
use tenure_redis::{Client, Redis};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, in_time, lapse, within};
use tokio::task::JoinHandle;

use crate::relay::{Relay, Way};
use crate::support::{
    BEATS, Monitor, QUEUE, SLACK, TIMEOUT, claim, entry, get, granted, kind, lease, pttl, redis,
};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";

/// A client of a user that has all keys and these rights.
async fn limited(server: &RedisServer, rights: &[&str]) -> Redis {
    let base = ["ACL", "SETUSER", "limited", "reset", "on", ">hunter2", "~*"];
    assert_eq!(server.client().command(&[&base, rights].concat()), Reply::Text("OK".into()));
    let url = format!("redis://limited:hunter2@127.0.0.1:{}", server.port());
    Redis::connect(&url).await.unwrap()
}

/// Starts an acquire, and returns when its claim is in the queue.
async fn queued(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> JoinHandle<Grant> {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { waits_in_queue(server, claim) }).await;
    waiter
}

fn waits_in_queue(server: &RedisServer, claim: &Claim) -> bool {
    entry(server, claim).is_some()
}

/// A waiter that polls and finds the lock free gets it for the whole ttl.
#[tokio::test]
async fn a_poll_that_acquires_has_the_whole_ttl() {
    let server = RedisServer::start();
    let (a, deaf) = (redis(&server).await, limited(&server, &["+@all", "resetchannels"]).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = queued(&server, &deaf, &waits).await;
    server.client().command(&["DEL", LOCK]);
    let Validity::Lease { ttl, .. } = within("the turn", waiter).await.unwrap().validity else {
        panic!()
    };
    let left = Duration::from_millis(pttl(&server, LOCK).try_into().unwrap());
    assert!(left + Duration::from_secs(5) > ttl, "believed for {ttl:?}, kept for {left:?}");
}

/// A hand-over that fails after the waiter was notified does not take the lock from it.
#[tokio::test]
async fn a_notified_waiter_keeps_the_lock() {
    for missing in ["-hdel", "-zrem"] {
        let server = RedisServer::start();
        let rights = ["+@all", "allchannels", missing];
        let (a, b) = (limited(&server, &rights).await, redis(&server).await);
        let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
        let waiter = queued(&server, &b, &waits).await;
        let _ = a.release(&held, AfterRelease::Free).await;
        within("the turn", waiter).await.unwrap();
        let rival = a.try_acquire(&claim("k", LONG)).await;
        assert!(!matches!(rival, Ok(Attempt::Granted(_))), "{missing}: two hold it");
    }
}

/// A runtime of one thread.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// If the runtime that drives the inbox ends, the other waiters can soon be notified again.
#[test]
fn an_inbox_outlives_the_runtime_of_the_first_waiter() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = second.block_on(Client::connect(&server.url())).unwrap();
    let store = Redis::with(&client);
    let _held = second.block_on(lease(&store, "k", LONG));
    let _other = second.block_on(lease(&store, "other", LONG));
    // The first waiter opens the inbox.
    let brief = claim("other", LONG);
    first.block_on(async {
        let waiting = store.acquire(&brief);
        tokio::select! {
            _ = waiting => panic!("it is held"),
            () = eventually("the inbox", || async { listeners(&server) == 1 }) => {}
        }
    });
    let waits = claim("k", LONG);
    second.block_on(async {
        let _waiter = queued(&server, &store, &waits).await;
        std::thread::spawn(move || drop(first)).join().unwrap();
        eventually("it to ask", || async { kind(&server, &waits) == "poll" }).await;
        let subscribed = || async { kind(&server, &waits) == "push" };
        eventually("it to wait for a push again", subscribed).await;
    });
}

fn listeners(server: &RedisServer) -> usize {
    server.client().text(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap().lines().count()
}

/// A runtime that is not driven does not block the calls of another runtime for ever.
#[test]
fn a_runtime_that_stands_still_hangs_nobody() {
    let server = RedisServer::start();
    let (still, busy) = (runtime(), runtime());
    let locker = still.block_on(async {
        let locker = Locker::new(redis(&server).await);
        locker.lock("k").await.unwrap().release().await.unwrap();
        locker
    });
    busy.block_on(async {
        let got = async {
            while locker.try_lock("k").await.ok().flatten().is_none() {
                lapse(Duration::from_millis(50)).await;
            }
        };
        within("the lock", got).await;
        let trouble = async {
            server.pause();
            let error = locker.try_lock("j").await.unwrap_err();
            server.go_on();
            error
        };
        assert!(within("an answer", trouble).await.is_unknown());
    });
}

/// A process whose tasks hand a lock over locally is notified of a waiter that queued before them.
#[tokio::test]
async fn a_process_that_only_tried_learns_of_waiters() {
    let server = RedisServer::start();
    let (a, b) = (Locker::new(redis(&server).await), Locker::new(redis(&server).await));
    let guard = a.try_lock("k").await.unwrap().unwrap();
    let waits = tokio::spawn(b.lock("k").into_future());
    eventually("it to wait", || async { size_of_queue(&server) == 1 }).await;
    let hot: Vec<_> = (0..4)
        .map(|_| {
            let a = a.clone();
            tokio::spawn(async move {
                loop {
                    let guard = a.lock("k").await.unwrap();
                    lapse(Duration::from_millis(2)).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    lapse(Duration::from_millis(50)).await;
    guard.release().await.unwrap();
    let start = std::time::Instant::now();
    let _guard = within("the turn", waits).await.unwrap().unwrap();
    let took = start.elapsed();
    hot.iter().for_each(JoinHandle::abort);
    assert!(took < Duration::from_secs(3), "it took {took:?}, a third of the ttl");
}

fn size_of_queue(server: &RedisServer) -> i64 {
    match server.client().command(&["ZCARD", QUEUE]) {
        Reply::Int(size) => size,
        other => panic!("{other:?}"),
    }
}

/// A24: waiters whose heartbeats have stopped do not delay the waiters behind them, however many there are.
#[tokio::test]
async fn a_crowd_of_dead_waiters_is_passed_at_once() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    for dead in 0..100 {
        let entry = format!("{dead:032x} {dead:016x} 20000 3500 :h:1:u:p");
        server.client().command(&["ZADD", QUEUE, &dead.to_string(), &entry]);
    }
    let waits = claim("k", LONG);
    let _waiter = queued(&server, &b, &waits).await;
    assert_eq!(a.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    let value = get(&server, LOCK).unwrap_or_default();
    assert!(value.contains(&waits.token().expose()), "passed over: `{value}`");
}

/// A24: a script removes at most 256 dead waiters, and then makes a late one ask. The lock is not idle meanwhile, and
/// the next scripts remove the others.
#[tokio::test]
async fn thousands_of_dead_waiters() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let script = "for n = 1, 2000 do redis.call('ZADD', KEYS[1], n, \
                  string.format('%032x %016x 20000 3500 :h:1:u:p', n, n)) end";
    server.client().command(&["EVAL", script, "1", QUEUE]);
    let waits = claim("k", LONG);
    let waiter = queued(&server, &b, &waits).await;
    let monitor = Monitor::of(&server);
    assert_eq!(a.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    let grant = within("the turn of the living", waiter).await.unwrap();
    let commands = monitor.commands(&server);
    // In one script after the other: the removals before the next script belong to this one.
    let scripts = commands.split(|line| line.contains("\"EVALSHA\""));
    let removals = scripts.map(|of| of.iter().filter(|line| line.contains("\"ZREM\"")).count());
    let most = removals.max().unwrap();
    // The entries of the release and of the living are removed, too.
    assert!((256..=258).contains(&most), "{most} removals");
    assert!(size_of_queue(&server) > 1_000, "{}", size_of_queue(&server));
    let mut held = Arc::new(Lease::new(waits, grant, b.clock()));
    for _ in 0..4 {
        assert_eq!(b.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
        held = lease(&b, "k", LONG).await;
    }
    assert_eq!(size_of_queue(&server), 0);
}

/// A24: if more than 32 waiters have just died, the release frees the lock, and the next heartbeat of a live waiter
/// acquires it.
#[tokio::test]
async fn a_crowd_that_died_just_now_costs_a_heartbeat() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    for dead in 0..40 {
        // It counts as alive for long enough, and is not subscribed.
        let entry = format!("{dead:032x} {dead:016x} 600000 9000000000000 :h:1:u:p");
        server.client().command(&["ZADD", QUEUE, &dead.to_string(), &entry]);
    }
    let waiter = queued(&server, &b, &claim("k", LONG)).await;
    assert_eq!(a.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    // A heartbeat is sent every second, plus or minus a quarter.
    let most = Duration::from_millis(1_250) + SLACK;
    in_time(most, "the turn of the living", waiter).await.unwrap();
    assert_eq!(size_of_queue(&server), 40, "the dead keep their entries for a while");
}

fn unfenced(key: &str) -> Arc<Claim> {
    let terms = ClaimOptions::new(LONG).fenced(false).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// A claim without a fence that was queued, was resumed by another task and found the lock free leaves no
/// entry in the queue.
#[tokio::test]
async fn a_bare_grant_leaves_the_queue() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, unfenced("k"));
    queued(&server, &b, &waits).await.abort();
    server.client().command(&["DEL", LOCK]);
    let grant = within("the lock", b.acquire(&waits)).await.unwrap();
    let held = Arc::new(Lease::new(waits.clone(), grant, b.clock()));
    assert_eq!(b.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    assert!(!waits_in_queue(&server, &waits), "a ghost waits");
    granted(&a, &claim("k", LONG)).await;
}

/// t66: the server's error about an unknown command quotes our arguments; our errors do not show them.
#[tokio::test]
async fn t66_an_unknown_command_shows_no_token() {
    let server = RedisServer::start_with(&["--rename-command", "EVALSHA", "NOT-FOR-YOU"]);
    let store = Redis::builder(&server.url()).prefix("t").connect().await.unwrap();
    let waits = unfenced("k");
    let grant = granted(&store, &waits).await;
    let token = waits.token().expose();
    let lease = Arc::new(Lease::new(waits, grant, store.clock()));
    let said = std::sync::Mutex::new(String::new());
    let hear = |_: usize, answer| *said.lock().unwrap() += &format!("{answer:?}");
    store.renew(std::slice::from_ref(&lease), &hear).await;
    let release = store.release(&lease, AfterRelease::Free).await;
    let said = format!("{} {release:?}", said.lock().unwrap());
    assert!(said.contains("disabled or renamed"), "{said}");
    assert!(!said.contains(&token[..8]), "{said}");
}

/// A waiter keeps its position if one heartbeat is lost: a heartbeat counts for longer than the next one
/// takes to arrive.
#[tokio::test]
async fn one_lost_heartbeat_costs_no_queue_position() {
    let server = RedisServer::start();
    let timeout = Duration::from_secs(3);
    let (a, b) = (redis(&server).await, Redis::builder(&server.url()).response_timeout(timeout));
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let _waiter = queued(&server, &b.connect().await.unwrap(), &waits).await;
    eventually("it to wait for a push", || async { kind(&server, &waits) == "push" }).await;
    let (token, mut beat) = (waits.token().expose(), None);
    eventually("a heartbeat", || {
        beat = server.client().text(&["HGET", BEATS, &token]);
        let said = beat.is_some();
        async move { said }
    })
    .await;
    let good: u64 = beat.unwrap().split(' ').next().unwrap().parse().unwrap();
    let Reply::Many(time) = server.client().command(&["TIME"]) else { panic!() };
    let Reply::Text(now) = &time[0] else { panic!() };
    let good =
        Duration::from_millis(good).saturating_sub(Duration::from_secs(now.parse().unwrap()));
    let slowest = Duration::from_millis(1_250) + timeout;
    assert!(good > slowest, "believed for {good:?}, the next may take {slowest:?}");
}

/// A runtime that stops in the middle of connecting does not block another runtime from connecting.
#[test]
fn a_runtime_that_stops_while_connecting_hangs_nobody() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (still, busy) = (runtime(), runtime());
    let builder = Redis::builder(&relay.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let store = still.block_on(builder.connect()).unwrap();
    still.block_on(async {
        server.client().command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let (there, waits) = (store.clone(), claim("k", LONG));
        let before = relay.count();
        server.pause();
        tokio::spawn(async move { there.acquire(&waits).await });
        eventually("it and its inbox to connect", || async { relay.count() > before + 1 }).await;
    });
    server.go_on();
    busy.block_on(async {
        let got = async {
            while store.try_acquire(&claim("j", LONG)).await.is_err() {
                lapse(Duration::from_millis(50)).await;
            }
        };
        within("the lock", got).await;
    });
}

fn shared(key: &str, ttl: Duration) -> Arc<Claim> {
    let terms = ClaimOptions::new(ttl).shared_owner(Some("us".into()));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

async fn shared_lease(store: &Redis, ttl: Duration) -> Arc<Lease> {
    let claim = shared("k", ttl);
    let grant = granted(store, &claim).await;
    Arc::new(Lease::new(claim, grant, store.clock()))
}

/// If one of several shares of a lock is forced, the lock's ttl falls back to that of the remaining share:
/// the lock does not outlive its last holder.
#[tokio::test]
async fn a_forced_share_ends_with_the_others() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let long = shared_lease(&a, Duration::from_secs(600)).await;
    let _short = shared_lease(&b, LONG).await;
    let seen = long.claim().token();
    let key = Key::new("k").unwrap();
    assert_eq!(b.force_release(&key, seen, "me").await.unwrap(), Release::StillHeld(1));
    assert!(pttl(&server, LOCK) <= 300_000, "kept for {} ms", pttl(&server, LOCK));
}

/// If a share is released and the reply is lost, the result does not report the lock as freed.
#[tokio::test]
async fn a_lost_reply_does_not_free_what_others_hold() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (redis(&server).await, Redis::builder(&relay.url()).connect().await.unwrap());
    // Loads the script into the server, so that the release is one request.
    let any = shared_lease(&a, LONG).await;
    assert_eq!(a.release(&any, AfterRelease::Free).await.unwrap(), Release::Freed);
    let _mate = shared_lease(&a, LONG).await;
    let ours = shared_lease(&b, LONG).await;
    relay.hold(0, Way::Replies);
    let (there, lease) = (b.clone(), ours.clone());
    let releasing = tokio::spawn(async move { there.release(&lease, AfterRelease::Free).await });
    let holders = || server.client().text(&["ZCARD", "tenure:holders:k"]);
    eventually("it to be carried out", || async { holders().as_deref() == Some("1") }).await;
    relay.cut(0);
    let answer = within("an answer", releasing).await.unwrap();
    assert!(!matches!(answer, Ok(Release::Freed)), "{answer:?}");
}

/// A grant for an abandoned claim is released also if its owner is shared.
#[tokio::test]
async fn an_unwanted_share_is_released() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, shared("k", LONG * 30));
    let waiter = queued(&server, &b, &waits).await;
    eventually("it to wait for a push", || async { kind(&server, &waits) == "push" }).await;
    waiter.abort();
    // The state after a heartbeat that was executed later than the abandon.
    let stood = entry(&server, &waits).unwrap();
    b.abandon(&waits).await.unwrap();
    server.client().command(&["ZADD", QUEUE, "1", &stood]);
    let token = waits.token().expose();
    server.client().command(&["HSET", BEATS, &token, "9000000000000 push"]);
    let value = get(&server, LOCK).unwrap().replacen('-', "*", 1);
    server.client().command(&["SET", LOCK, &value, "KEEPTTL"]);
    assert_eq!(a.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    eventually("it to be free", || async { get(&server, LOCK).is_none() }).await;
}

/// A claim that is not renewed gets its whole ttl, also if it was granted by a push.
#[tokio::test]
async fn a_lock_without_renewal_has_the_whole_ttl() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let terms = ClaimOptions::new(Duration::from_secs(1)).renewed(false);
    let key = Key::new("k").unwrap();
    let waits = Arc::new(Claim::new(key, Token::random().unwrap(), terms));
    let waiter = queued(&server, &b, &waits).await;
    eventually("it to wait for a push", || async { kind(&server, &waits) == "push" }).await;
    let before = a.clock().now();
    assert_eq!(a.release(&held, AfterRelease::Free).await.unwrap(), Release::Freed);
    let grant = within("the turn", waiter).await.unwrap();
    let Validity::Lease { from, .. } = grant.validity else { panic!("{grant:?}") };
    assert!(from >= before, "a part of it had passed already");
}

/// An inbox stays open while the server refuses its pings, as it does when it cannot save.
#[tokio::test]
async fn an_inbox_is_kept_while_the_server_cannot_save() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let _held = lease(&a, "k", LONG).await;
    b.watch_contention(&_held);
    eventually("the inbox", || async { listeners(&server) == 1 }).await;
    server.client().command(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::remove_dir_all(server.dir()).unwrap();
    server.client().command(&["BGSAVE"]);
    let refused = || matches!(server.client().command(&["PING"]), Reply::Error(_));
    eventually("a refusal", || async { refused() }).await;
    lapse(Duration::from_millis(1_500)).await;
    server.client().command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    let waits = claim("k", LONG);
    let _waiter = queued(&server, &b, &waits).await;
    assert_eq!(kind(&server, &waits), "push");
}

/// A lock that was closed for a moment is acquired soon after: the waiter is notified to ask again, and does
/// not sleep until its next heartbeat.
#[tokio::test]
async fn a_closed_lock_is_acquired_soon_after() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let mut fastest = LONG;
    for _ in 0..3 {
        let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
        let waiter = queued(&server, &b, &waits).await;
        eventually("it to wait for a push", || async { kind(&server, &waits) == "push" }).await;
        let start = std::time::Instant::now();
        let closed = AfterRelease::Cooldown(Duration::from_millis(10));
        assert_eq!(a.release(&held, closed).await.unwrap(), Release::Freed);
        within("the turn", waiter).await.unwrap();
        fastest = fastest.min(start.elapsed());
        b.abandon(&waits).await.unwrap();
    }
    assert!(fastest < Duration::from_millis(500), "it took {fastest:?} at best, a heartbeat");
}

/// A holder is notified of an earlier waiter even if its process subscribed meanwhile, for another lock.
#[tokio::test]
async fn a_process_that_subscribes_late_learns_of_waiters() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let _waiter = queued(&server, &b, &waits).await;
    let mut notices = a.subscribe(LONG);
    let _other = lease(&b, "other", LONG).await;
    let (there, brief) = (a.clone(), claim("other", LONG));
    let _brief = tokio::spawn(async move { there.acquire(&brief).await });
    eventually("both to listen", || async { listeners(&server) == 2 }).await;
    lapse(Duration::from_millis(100)).await;
    a.watch_contention(&held);
    eventually("the waiter to be known", || async { held.is_contended() }).await;
    // A notice that renews all leases, for each lease that is watched, would be the square of their number.
    let notice = tokio::time::timeout(Duration::ZERO, notices.next()).await;
    assert!(notice.is_err(), "only this lock is looked at: {notice:?}");
}

//! What somebody who tried to break the lock has found, each as it was.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant, Release, Term, Then};
use tenure_core::{Claim, Key, Lease, Locker, Terms, Token};
use tenure_redis::{Client, Redis};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};
use tokio::task::JoinHandle;

use crate::relay::{Relay, Way};
use crate::support::{BEATS, QUEUE, TIMEOUT, claim, get, granted, kind, lease, place, pttl, redis};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const LOCK: &str = "tenure:lock:k";

/// A user of the server with these rights besides all keys.
async fn limited(server: &RedisServer, rights: &[&str]) -> Redis {
    let base = ["ACL", "SETUSER", "limited", "reset", "on", ">hunter2", "~*"];
    assert_eq!(server.client().command(&[&base, rights].concat()), Reply::Text("OK".into()));
    let url = format!("redis://limited:hunter2@127.0.0.1:{}", server.port());
    Redis::connect(&url).await.unwrap()
}

/// A claim that stands in the queue.
async fn queued(server: &RedisServer, store: &Redis, claim: &Arc<Claim>) -> JoinHandle<Grant> {
    let (there, waits) = (store.clone(), claim.clone());
    let waiter = tokio::spawn(async move { there.acquire(&waits).await.unwrap() });
    eventually("it to wait", || async { waits_in_queue(server, claim) }).await;
    waiter
}

fn waits_in_queue(server: &RedisServer, claim: &Claim) -> bool {
    place(server, claim).is_some()
}

/// One that asks instead of being told, and finds the lock free, has it for the whole of its ttl.
#[tokio::test]
async fn who_asks_and_gets_it_has_the_whole_ttl() {
    let server = RedisServer::start();
    let (a, deaf) = (redis(&server).await, limited(&server, &["+@all", "resetchannels"]).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let waiter = queued(&server, &deaf, &waits).await;
    server.client().command(&["DEL", LOCK]);
    let Term::Lease { ttl, .. } = within("the turn", waiter).await.unwrap().term else { panic!() };
    let left = Duration::from_millis(pttl(&server, LOCK).try_into().unwrap());
    assert!(left + Duration::from_secs(5) > ttl, "believed for {ttl:?}, kept for {left:?}");
}

/// A hand-over that stops after the waiter was told does not take the lock from it again.
#[tokio::test]
async fn who_was_told_keeps_the_lock() {
    for missing in ["-hdel", "-zrem"] {
        let server = RedisServer::start();
        let rights = ["+@all", "allchannels", missing];
        let (a, b) = (limited(&server, &rights).await, redis(&server).await);
        let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
        let waiter = queued(&server, &b, &waits).await;
        let _ = a.release(&held, Then::Free).await;
        within("the turn", waiter).await.unwrap();
        let rival = a.try_acquire(&claim("k", LONG)).await;
        assert!(!matches!(rival, Ok(Attempt::Granted(_))), "{missing}: two hold it");
    }
}

/// A runtime of one thread.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Who waits when the runtime of the inbox ends is told of its turn all the same, before long.
#[test]
fn an_inbox_outlives_the_runtime_of_the_first_waiter() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = second.block_on(Client::connect(&server.url())).unwrap();
    let store = Redis::with(&client);
    let _held = second.block_on(lease(&store, "k", LONG));
    let _other = second.block_on(lease(&store, "other", LONG));
    // The first who waits brings the inbox along.
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
        let told = || async { kind(&server, &waits) == "push" };
        eventually("it to be told again", told).await;
    });
}

fn listeners(server: &RedisServer) -> usize {
    server.client().text(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap().lines().count()
}

/// A runtime that nobody drives does not keep the calls of another waiting for ever.
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

/// A process whose tasks hand a lock on among themselves is told of one that waited before them.
#[tokio::test]
async fn a_process_that_only_tried_is_told_who_waits() {
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

/// Those who died in the queue keep nobody behind them waiting, however many.
#[tokio::test]
async fn a_crowd_of_dead_waiters_is_passed_at_once() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    for dead in 0..100 {
        let place = format!("{dead:032x} {dead:016x} 20000 3500 :h:1:u:p");
        server.client().command(&["ZADD", QUEUE, &dead.to_string(), &place]);
    }
    let waits = claim("k", LONG);
    let _waiter = queued(&server, &b, &waits).await;
    assert_eq!(a.release(&held, Then::Free).await.unwrap(), Release::Freed);
    let value = get(&server, LOCK).unwrap_or_default();
    assert!(value.contains(&waits.token().expose()), "passed over: `{value}`");
}

fn unfenced(key: &str) -> Arc<Claim> {
    let terms = Terms::new(LONG).fenced(false).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// A claim without a fence that waited, went on under another task and found the lock free leaves
/// nothing of itself in the queue.
#[tokio::test]
async fn a_bare_grant_leaves_the_queue() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (_held, waits) = (lease(&a, "k", LONG).await, unfenced("k"));
    queued(&server, &b, &waits).await.abort();
    server.client().command(&["DEL", LOCK]);
    let grant = within("the lock", b.acquire(&waits)).await.unwrap();
    let held = Arc::new(Lease::new(waits.clone(), grant, b.clock()));
    assert_eq!(b.release(&held, Then::Free).await.unwrap(), Release::Freed);
    assert!(!waits_in_queue(&server, &waits), "a ghost waits");
    granted(&a, &claim("k", LONG)).await;
}

/// t66: what a server says of a command that it does not know holds our words; none is shown.
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
    let release = store.release(&lease, Then::Free).await;
    let said = format!("{} {release:?}", said.lock().unwrap());
    assert!(said.contains("disabled or renamed"), "{said}");
    assert!(!said.contains(&token[..8]), "{said}");
}

/// One that waits keeps its place where one of its heartbeats is lost on the way: it is believed for
/// longer than the next takes after that.
#[tokio::test]
async fn one_lost_heartbeat_costs_no_place() {
    let server = RedisServer::start();
    let timeout = Duration::from_secs(3);
    let (a, b) = (redis(&server).await, Redis::builder(&server.url()).response_timeout(timeout));
    let (_held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let _waiter = queued(&server, &b.connect().await.unwrap(), &waits).await;
    eventually("it to be told", || async { kind(&server, &waits) == "push" }).await;
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

/// A runtime that stops in the middle of connecting keeps no other from connecting.
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
    let terms = Terms::new(ttl).shared_owner(Some("us".into()));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

async fn shared_lease(store: &Redis, ttl: Duration) -> Arc<Lease> {
    let claim = shared("k", ttl);
    let grant = granted(store, &claim).await;
    Arc::new(Lease::new(claim, grant, store.clock()))
}

/// Taking its share from one of several that share a lock does not leave the lock to nobody: it ends
/// with the last of them.
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

/// A share whose release was carried out, and whose reply was lost, is not said to have freed the lock.
#[tokio::test]
async fn a_lost_reply_does_not_free_what_others_hold() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port());
    let (a, b) = (redis(&server).await, Redis::builder(&relay.url()).connect().await.unwrap());
    // The server knows the script, so that one request is all there is.
    let any = shared_lease(&a, LONG).await;
    assert_eq!(a.release(&any, Then::Free).await.unwrap(), Release::Freed);
    let _mate = shared_lease(&a, LONG).await;
    let ours = shared_lease(&b, LONG).await;
    relay.hold(0, Way::Replies);
    let (there, lease) = (b.clone(), ours.clone());
    let releasing = tokio::spawn(async move { there.release(&lease, Then::Free).await });
    let holders = || server.client().text(&["ZCARD", "tenure:holders:k"]);
    eventually("it to be carried out", || async { holders().as_deref() == Some("1") }).await;
    relay.cut(0);
    let answer = within("an answer", releasing).await.unwrap();
    assert!(!matches!(answer, Ok(Release::Freed)), "{answer:?}");
}

/// What nobody wants any more is given back also where its owner is shared.
#[tokio::test]
async fn an_unwanted_share_is_given_back() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, shared("k", LONG * 30));
    let waiter = queued(&server, &b, &waits).await;
    eventually("it to be told", || async { kind(&server, &waits) == "push" }).await;
    waiter.abort();
    // As after an abandon that its last heartbeat has outlived.
    let stood = place(&server, &waits).unwrap();
    b.abandon(&waits).await.unwrap();
    server.client().command(&["ZADD", QUEUE, "1", &stood]);
    let token = waits.token().expose();
    server.client().command(&["HSET", BEATS, &token, "9000000000000 push"]);
    let value = get(&server, LOCK).unwrap().replacen('-', "*", 1);
    server.client().command(&["SET", LOCK, &value, "KEEPTTL"]);
    assert_eq!(a.release(&held, Then::Free).await.unwrap(), Release::Freed);
    eventually("it to be free", || async { get(&server, LOCK).is_none() }).await;
}

/// One that will not be renewed has the whole of its ttl, also where it was told of its turn.
#[tokio::test]
async fn who_does_not_renew_has_the_whole_ttl() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let held = lease(&a, "k", LONG).await;
    let terms = Terms::new(Duration::from_secs(1)).renewed(false);
    let key = Key::new("k").unwrap();
    let waits = Arc::new(Claim::new(key, Token::random().unwrap(), terms));
    let waiter = queued(&server, &b, &waits).await;
    eventually("it to be told", || async { kind(&server, &waits) == "push" }).await;
    let before = a.clock().now();
    assert_eq!(a.release(&held, Then::Free).await.unwrap(), Release::Freed);
    let grant = within("the turn", waiter).await.unwrap();
    let Term::Lease { from, .. } = grant.term else { panic!("{grant:?}") };
    assert!(from >= before, "a part of it had passed already");
}

/// An inbox is kept where the server refuses its signs of life, as it does when it cannot save.
#[tokio::test]
async fn an_inbox_is_kept_while_the_server_cannot_save() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let _held = lease(&a, "k", LONG).await;
    b.heed(&_held);
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

/// A lock that was closed for a moment is had soon after: who waits is told to look again, and does
/// not sleep until its next heartbeat.
#[tokio::test]
async fn a_closed_lock_is_not_left_lying() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let mut fastest = LONG;
    for _ in 0..3 {
        let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
        let waiter = queued(&server, &b, &waits).await;
        eventually("it to be told", || async { kind(&server, &waits) == "push" }).await;
        let start = std::time::Instant::now();
        let closed = Then::Closed(Duration::from_millis(10));
        assert_eq!(a.release(&held, closed).await.unwrap(), Release::Freed);
        within("the turn", waiter).await.unwrap();
        fastest = fastest.min(start.elapsed());
        b.abandon(&waits).await.unwrap();
    }
    assert!(fastest < Duration::from_millis(500), "it took {fastest:?} at best, a heartbeat");
}

/// The same where the inbox was opened meanwhile, for another lock.
#[tokio::test]
async fn a_process_that_came_to_listen_is_told_who_waits() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let (held, waits) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let _waiter = queued(&server, &b, &waits).await;
    let mut notices = a.notices();
    let _other = lease(&b, "other", LONG).await;
    let (there, brief) = (a.clone(), claim("other", LONG));
    let _brief = tokio::spawn(async move { there.acquire(&brief).await });
    eventually("both to listen", || async { listeners(&server) == 2 }).await;
    lapse(Duration::from_millis(100)).await;
    a.heed(&held);
    let told = within("a notice", notices.next()).await;
    assert_eq!(told, Some(tenure_core::backend::Notice::Reconnected));
}

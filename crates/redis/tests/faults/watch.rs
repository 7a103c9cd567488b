//! Watching: the server notifies of changes, and a lost connection does not hide a change whose result is
//! still visible.

use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, Operator};
use tenure_core::watch::{Event, EventKind};
use tenure_core::{Locker, Watch};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{claim, granted, lease, locker, redis};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);

async fn next(watch: &mut Watch) -> Event {
    within("an event", watch.next()).await.unwrap()
}

/// The next event, however often the server is unreachable meanwhile.
async fn next_at_last(watch: &mut Watch) -> Event {
    let calm = async {
        loop {
            match watch.next().await {
                Ok(event) => return event,
                Err(error) => assert!(error.is_unavailable() || error.is_unknown(), "{error:?}"),
            }
        }
    };
    within("an event", calm).await
}

fn named(event: &Event) -> (&str, &'static str) {
    (event.key.as_str(), event.what.as_str())
}

/// The id and the flags of each connection that the server notifies of changes.
fn eyes(server: &RedisServer) -> Vec<(String, String)> {
    let list = server.client().text(&["CLIENT", "LIST"]).unwrap();
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        fields.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned()).unwrap()
    };
    let all = list.lines().map(|line| (field(line, "id"), field(line, "flags")));
    all.filter(|(_, flags)| flags.contains('t')).collect()
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    let info = server.client().text(&["INFO", "commandstats"]).unwrap();
    let line =
        info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Only changed keys are read. The connection ends with the watch, and counts as a subscriber, so the server
/// limits its output buffer if it does not read.
#[tokio::test]
async fn only_changed_keys_are_read() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let mut watch = b.watch("*").await.unwrap();
    let connections = eyes(&server);
    assert_eq!(connections.len(), 1);
    assert!(connections[0].1.contains('P'), "a subscriber: {connections:?}");
    let (scans, gets) = (calls(&server, "scan"), calls(&server, "get"));
    let guard = a.lock("k").await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    let quiet = tokio::time::timeout(Duration::from_millis(500), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!((calls(&server, "scan"), calls(&server, "get")), (scans, gets + 1));
    guard.release().await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
    drop(watch);
    eventually("the connection to be closed", || async { eyes(&server).is_empty() }).await;
}

/// A hand-over is one event that names the old and the new holder.
#[tokio::test]
async fn hand_overs_are_reported() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, locker(&server).await, locker(&server).await);
    let guard = a.lock("k").label("a").await.unwrap();
    let waits = tokio::spawn(b.lock("k").label("b").into_future());
    eventually("it to wait", || async {
        let seen = c.inspect("k").await.unwrap().unwrap();
        seen.waiters.is_some_and(|queue| queue.len() == 1)
    })
    .await;
    let mut watch = c.watch("*").await.unwrap();
    guard.release().await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!(named(&event), ("k", "handed_over"));
    let label =
        |holder: Option<tenure_core::Holder>| holder.and_then(|holder| holder.label).unwrap();
    assert_eq!((label(event.from), label(event.holder)), ("a".into(), "b".into()));
    assert_eq!(event.waiters, Some(0));
    within("the turn", waits).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
}

/// t32: if a lease expires while another claim waits, the watch reports a loss and an acquire, not a hand-over.
#[tokio::test]
async fn t32_a_lost_lock_is_no_hand_over() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, locker(&server).await, locker(&server).await);
    let _dead = granted(&a, &claim("k", Duration::from_millis(700))).await;
    let mut watch = c.watch("*").await.unwrap();
    let next_one = within("the turn", b.lock("k").into_future());
    let events = async { [next(&mut watch).await, next(&mut watch).await] };
    let (guard, events) = tokio::join!(next_one, events);
    assert_eq!(events.each_ref().map(named), [("k", "lost"), ("k", "acquired")]);
    guard.unwrap().release().await.unwrap();
}

/// A25: a forced release is reported with its author, also to processes other than the holder, and no event
/// contains a token.
#[tokio::test]
async fn force_is_reported() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, locker(&server).await, locker(&server).await);
    let held = lease(&a, "k", LONG).await;
    let mut watch = c.watch("*").await.unwrap();
    b.force_release("k", held.claim().token(), "ann: stuck").await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!(event.what, EventKind::Forced("ann: stuck".into()));
    assert!(!format!("{event:?}").contains(&held.claim().token().expose()));
}

/// Kills the connection of the watch and runs `command`, atomically.
fn cut_and(server: &RedisServer, command: &[&str]) {
    let connections = eyes(server);
    let mut client = server.client();
    client.command(&["MULTI"]);
    for (id, _) in connections {
        client.command(&["CLIENT", "KILL", "ID", &id]);
    }
    client.command(command);
    let done = client.command(&["EXEC"]);
    assert!(matches!(&done, Reply::Many(replies) if replies.len() == 2), "{done:?}");
}

/// t44: changes while the connection is killed again and again are reported, as long as their result is visible.
#[tokio::test]
async fn t44_a_cut_loses_nothing_that_shows() {
    let server = RedisServer::start();
    let b = locker(&server).await;
    let mut watch = b.watch("*").await.unwrap();
    for n in 0..10 {
        let (key, lock) = (format!("k{n}"), format!("tenure:lock:k{n}"));
        cut_and(&server, &["SET", &lock, "another's", "PX", "60000"]);
        assert_eq!(named(&next_at_last(&mut watch).await), (key.as_str(), "acquired"));
        eventually("it to watch again", || async { eyes(&server).len() == 1 }).await;
        cut_and(&server, &["DEL", &lock]);
        assert_eq!(named(&next_at_last(&mut watch).await), (key.as_str(), "released"));
        eventually("it to watch again", || async { eyes(&server).len() == 1 }).await;
    }
}

/// t09, t15: a lock that the server lost is reported as ended, not as released, and the watch continues.
#[tokio::test]
async fn t15_what_the_server_forgot_is_not_called_released() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, locker(&server).await);
    let mut watch = b.watch("*").await.unwrap();
    for forget in [flush as fn(&RedisServer), RedisServer::restart] {
        let _held = lease(&a, "k", LONG).await;
        assert_eq!(named(&next_at_last(&mut watch).await), ("k", "acquired"));
        forget(&server);
        assert_eq!(named(&next_at_last(&mut watch).await), ("k", "ended"));
        eventually("it to watch again", || async { eyes(&server).len() == 1 }).await;
        eventually("the server to answer", || async { b.list("*").await.is_ok() }).await;
    }
    let held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next_at_last(&mut watch).await), ("k", "acquired"));
    a.release(&held, AfterRelease::Free).await.unwrap();
    assert_eq!(named(&next_at_last(&mut watch).await), ("k", "released"));
}

fn flush(server: &RedisServer) {
    server.client().command(&["FLUSHALL"]);
}

/// t63: without the right to be notified, the watch polls and reports the same events.
#[tokio::test]
async fn t63_without_the_right_to_subscribe() {
    let server = RedisServer::start();
    let rights = ["~*", "&*", "+@all", "-client|tracking"];
    let base = ["ACL", "SETUSER", "limited", "reset", "on", ">hunter2"];
    let made = server.client().command(&[&base[..], &rights].concat());
    assert_eq!(made, Reply::Text("OK".into()));
    let url = format!("redis://limited:hunter2@127.0.0.1:{}", server.port());
    let (a, b) = (redis(&server).await, Locker::new(Redis::connect(&url).await.unwrap()));
    let mut watch = b.watch("*").await.unwrap();
    assert!(eyes(&server).is_empty());
    let held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    a.release(&held, AfterRelease::Free).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
    // A busy machine may delay the poll by a quarter of a second; a loss is then reported as `Ended`.
    let mut ends = Vec::new();
    while ends.last() != Some(&EventKind::Lost) && ends.len() < 5 {
        let _dying = granted(&a, &claim("k", Duration::from_millis(900))).await;
        assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
        ends.push(next(&mut watch).await.what);
    }
    let lost = ends.pop();
    assert_eq!(lost, Some(EventKind::Lost), "five leases expired");
    assert!(ends.iter().all(|end| *end == EventKind::Ended), "{ends:?}");
    let held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    a.force_release(held.claim().key(), held.claim().token(), "ann").await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Forced("ann".into()));
}

/// t63: if the right is removed during a watch, the watch polls too.
#[tokio::test]
async fn t63_a_right_that_is_taken_away() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, locker(&server).await);
    let mut watch = b.watch("*").await.unwrap();
    server.client().command(&["ACL", "SETUSER", "default", "-client|tracking"]);
    let held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    for (id, _) in eyes(&server) {
        server.client().command(&["CLIENT", "KILL", "ID", &id]);
    }
    a.release(&held, AfterRelease::Free).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
    let _held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    assert!(eyes(&server).is_empty());
}

/// A watch that was not polled for a while reports the current state, and does not guess how it came about.
#[tokio::test]
async fn a_watch_that_was_not_asked_does_not_guess() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let mut watch = b.watch("*").await.unwrap();
    let ttl = Duration::from_millis(600);
    let guard = a.lock("renewed").ttl(ttl).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("renewed", "acquired"));
    // The lock is renewed, without the watch seeing it, until long after the end that the watch saw, and then
    // released.
    lapse(ttl * 2).await;
    guard.release().await.unwrap();
    lapse(Duration::from_millis(50)).await;
    assert_eq!(named(&next(&mut watch).await), ("renewed", "ended"));
    // A release that the watch was notified of in time is reported as one, however late it is polled.
    let guard = a.lock("released").ttl(ttl).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("released", "acquired"));
    guard.release().await.unwrap();
    lapse(ttl * 2).await;
    assert_eq!(named(&next(&mut watch).await), ("released", "released"));
}

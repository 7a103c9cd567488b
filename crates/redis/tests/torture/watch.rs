//! Watching: the server tells of changes, and whatever becomes of the connection, what still shows is told.

use std::time::Duration;

use tenure_core::backend::{Backend, Then};
use tenure_core::watch::{Event, What};
use tenure_core::{Locker, Watch};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{claim, granted, lease, locker, redis};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);

async fn next(watch: &mut Watch) -> Event {
    within("an event", watch.next()).await.unwrap()
}

/// The next event, however often the server is out of reach meanwhile.
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
    (event.key.as_str(), event.what.word())
}

/// The connections that the server tells of changes: number and flags.
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

/// Nothing is asked but what was told to have changed; the connection ends with the watch, and the
/// server bounds what it keeps for one that does not read.
#[tokio::test]
async fn the_server_tells() {
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

/// A lock that goes from hand to hand is told with both hands.
#[tokio::test]
async fn hand_overs_are_told() {
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

/// t32: a lease that ends while another waits is lost by the one and acquired by the other.
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

/// A25: force is told with who used it, to others than the holder too, and no event knows a token.
#[tokio::test]
async fn force_is_told() {
    let server = RedisServer::start();
    let (a, b, c) = (redis(&server).await, locker(&server).await, locker(&server).await);
    let held = lease(&a, "k", LONG).await;
    let mut watch = c.watch("*").await.unwrap();
    b.force_release("k", held.claim().token(), "ann: stuck").await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!(event.what, What::Forced("ann: stuck".into()));
    assert!(!format!("{event:?}").contains(&held.claim().token().expose()));
}

/// Cuts the watch and runs `command`, with no moment in between.
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

/// t44: what changes while the connection is cut, again and again, is told as far as it shows.
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

/// t09, t15: what the server forgot was not released, and nobody is told so; the watch goes on.
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
    a.release(&held, Then::Free).await.unwrap();
    assert_eq!(named(&next_at_last(&mut watch).await), ("k", "released"));
}

fn flush(server: &RedisServer) {
    server.client().command(&["FLUSHALL"]);
}

/// t63: where the server may not tell, the watch looks, and tells the same.
#[tokio::test]
async fn t63_without_the_right_to_be_told() {
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
    a.release(&held, Then::Free).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
    let _dying = granted(&a, &claim("k", Duration::from_millis(900))).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    assert_eq!(named(&next(&mut watch).await), ("k", "lost"));
    let held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    a.force_release(held.claim().key(), held.claim().token(), "ann").await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Forced("ann".into()));
}

/// t63: a right that is taken away in the middle of a watch makes it look, too.
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
    a.release(&held, Then::Free).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("k", "released"));
    let _held = lease(&a, "k", LONG).await;
    assert_eq!(named(&next(&mut watch).await), ("k", "acquired"));
    assert!(eyes(&server).is_empty());
}

/// A watch that nobody asks for a while sees what is there, and does not guess what was.
#[tokio::test]
async fn a_watch_that_was_not_asked_does_not_guess() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let mut watch = b.watch("*").await.unwrap();
    let ttl = Duration::from_millis(600);
    let guard = a.lock("renewed").ttl(ttl).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("renewed", "acquired"));
    // It is renewed, unseen, until long after the end that was seen, and then released.
    lapse(ttl * 2).await;
    guard.release().await.unwrap();
    lapse(Duration::from_millis(50)).await;
    assert_eq!(named(&next(&mut watch).await), ("renewed", "ended"));
    // A release that was heard of in time is one, however late we look.
    let guard = a.lock("released").ttl(ttl).await.unwrap();
    assert_eq!(named(&next(&mut watch).await), ("released", "acquired"));
    guard.release().await.unwrap();
    lapse(ttl * 2).await;
    assert_eq!(named(&next(&mut watch).await), ("released", "released"));
}

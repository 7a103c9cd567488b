//! Passwords and rights.

use std::error::Error as _;
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::doctor::Verdict;
use tenure_core::{Error, Locker, Owner};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{get, redis_at, whole};

const LOCK: &str = "tenure:lock:k";
const LONG: Duration = Duration::from_secs(300);

async fn locker_at(url: &str) -> Locker {
    Locker::new(redis_at(url).await)
}

async fn refused(url: &str) -> String {
    let error = within("a refusal", Redis::connect(url)).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?} {:?}", error.source()));
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    text
}

/// C8, t63, t66: a missing or wrong password is refused with an error that says which, and never shows it.
#[tokio::test]
async fn t63_passwords() {
    let server = RedisServer::start_with(&["--requirepass", "p@:/%"]);
    let at = format!("127.0.0.1:{}", server.port());
    let missing = refused(&server.url()).await;
    assert!(missing.contains("wants a password") && missing.contains(&at), "{missing}");
    let wrong = refused(&format!("redis://:hunter2@{at}")).await;
    assert!(wrong.contains("the user name or password is wrong"), "{wrong}");
    let wrong = refused(&format!("redis://nobody:hunter2@{at}")).await;
    assert!(wrong.contains("the user name or password is wrong"), "{wrong}");
    let right = Redis::connect(&format!("redis://:p%40%3A%2F%25@{at}")).await.unwrap();
    assert!(Locker::new(right).lock("k").await.unwrap().is_held());
}

/// A locker of a user with these rights.
async fn user(server: &RedisServer, rights: &[&str]) -> Locker {
    let base = ["ACL", "SETUSER", "limited", "reset", "on", ">hunter2"];
    let made = server.client().command(&[&base, rights].concat());
    assert_eq!(made, Reply::Text("OK".into()));
    Locker::new(Redis::connect(&limited(server)).await.unwrap())
}

fn limited(server: &RedisServer) -> String {
    format!("redis://limited:hunter2@127.0.0.1:{}", server.port())
}

fn names(error: &Error, right: &str) {
    assert!(error.is_refused(), "{error:?}");
    let text = whole(error);
    assert!(
        text.contains("lacks a right") && text.contains(right) && !text.contains("hunter2"),
        "{text}"
    );
}

/// t63: without the right to run scripts, an acquire is refused at once and the error names the right.
#[tokio::test]
async fn t63_no_scripts() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-eval", "-evalsha"]).await;
    let error = within("a refusal", locker.lock("k").into_future()).await.unwrap_err();
    names(&error, "'evalsha'");
}

/// t63: without the right to choose a database, connecting is refused and the error names the right.
#[tokio::test]
async fn t63_no_database() {
    let server = RedisServer::start();
    user(&server, &["~*", "&*", "+@all", "-select"]).await;
    let error = Redis::connect(&format!("{}/3", limited(&server))).await.unwrap_err();
    names(&error, "+select");
}

/// t63: without access to the fence counter, an acquire is refused and leaves no lock behind.
#[tokio::test]
async fn t63_no_fence() {
    let server = RedisServer::start();
    for rights in [&["~tenure:lock:*", "+@all"][..], &["~tenure:lock:*", "+@all", "-del"]] {
        let locker = user(&server, rights).await;
        names(&locker.try_lock("k").ttl(LONG).await.unwrap_err(), "~PREFIX:*");
        eventually("nothing to be left", || async { get(&server, LOCK).is_none() }).await;
    }
}

/// t63, t26: nothing is left behind if a grant must be undone and deleting is denied.
#[tokio::test]
async fn t63_undone_without_del() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-del"]).await;
    server.client().command(&["SET", "tenure:fence", "text"]);
    assert!(locker.try_lock("k").ttl(LONG).await.unwrap_err().is_refused());
    eventually("nothing to be left", || async { get(&server, LOCK).is_none() }).await;
}

/// t63: without the right to delete, the release fails and names the right; the ttl frees the lock.
#[tokio::test]
async fn t63_no_del() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-del"]).await;
    let ttl = std::time::Duration::from_millis(500);
    let guard = locker.lock("k").ttl(ttl).await.unwrap();
    names(&guard.release().await.unwrap_err(), "+del");
    let next = within("the lock", locker.lock("k").ttl(ttl).into_future()).await.unwrap();
    assert!(next.is_held());
}

/// The rights that a refusal names, as arguments of an ACL command.
async fn named_rights(server: &RedisServer) -> Vec<String> {
    let none = user(server, &["~*", "+info", "+client|id"]).await;
    let refusal = whole(&none.lock("k").await.unwrap_err());
    let named = refusal.split('`').find(|part| part.starts_with('~')).unwrap();
    named.replace("PREFIX", "tenure").split(' ').map(Into::into).collect()
}

/// How often the server executed a command, also from scripts; subcommands are counted if the server counts them.
fn calls(stats: &str, command: &str) -> u64 {
    let count = |name: &str| {
        let start = format!("cmdstat_{name}:calls=");
        stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
    };
    count(command).or(count(command.split('|').next().unwrap())).unwrap_or(0)
}

/// The commands that the server has denied to users.
fn denied(server: &RedisServer) -> Vec<Reply> {
    match server.client().command(&["ACL", "LOG"]) {
        Reply::Many(entries) => entries,
        other => panic!("{other:?}"),
    }
}

/// The rights that a refusal names are enough for everything that locks do, also in another database and with
/// replicas, and each of them is used. The server lets users subscribe to every channel, as is the default
/// before version 7.
#[tokio::test(flavor = "multi_thread")]
async fn t63_the_rights_named_are_enough() {
    let server = RedisServer::start_with(&["--acl-pubsub-default", "allchannels"]);
    let named = named_rights(&server).await;
    let page = include_str!("../../../../docs/engines/redis.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&named.join(" ")), "docs/engines/redis.md has another line");
    user(&server, &named.iter().map(String::as_str).collect::<Vec<_>>()).await;
    server.client().command(&["ACL", "LOG", "RESET"]);
    server.client().command(&["CONFIG", "RESETSTAT"]);
    let url = format!("{}/3", limited(&server));
    let (a, b) = (locker_at(&url).await, locker_at(&url).await);
    let mut watch = a.watch("*").await.unwrap();
    let watched = b.lock("watched").await.unwrap();
    within("an event", watch.next()).await.unwrap();
    watched.release().await.unwrap();

    // Renew, wait, inspect and hand over, by the fast scripts and by the full ones.
    for waits in [Duration::ZERO, Duration::from_millis(1_500)] {
        let guard = a.lock("k").ttl(Duration::from_millis(600)).await.unwrap();
        let next = tokio::spawn(b.lock("k").into_future());
        eventually("the next to wait", || async {
            a.list("*").await.unwrap()[0].waiters.as_ref().is_some_and(|queue| queue.len() == 1)
        })
        .await;
        lapse(waits).await;
        guard.release().await.unwrap();
        within("the lock", next).await.unwrap().unwrap().release().await.unwrap();
    }

    // A shared owner, a closed lock, a lock without a fence, a forced release.
    let owner = Owner::shared("run");
    let mut share = a.lock("shared").owner(owner.clone()).await.unwrap();
    for locker in [&b, &a] {
        let other = locker.lock("shared").owner(owner.clone()).await.unwrap();
        share.release().await.unwrap();
        share = other;
    }
    share.release().await.unwrap();
    let closed = a.lock("closed").min_hold(Duration::from_millis(200)).await.unwrap();
    closed.release().await.unwrap();
    let bare = b.lock("closed").fencing(false).into_future();
    within("a closed lock", bare).await.unwrap().release().await.unwrap();
    let held = a.lock("forced").ttl(LONG).await.unwrap();
    let seen = b.inspect("forced").await.unwrap().unwrap().holders[0].token.unwrap();
    b.force_release("forced", seen, "ann").await.unwrap();
    assert_eq!(within("the loss", held.lost()).await, Loss::Forced("ann".into()));

    // A replaced connection is closed at the server; a grant waits for replicas.
    server.pause();
    assert!(a.try_lock("late").ttl(LONG).await.unwrap_err().is_unknown());
    server.go_on();
    eventually("a late grant to be undone", || async {
        b.inspect("late").await.is_ok_and(|info| info.is_none())
    })
    .await;
    let careful = locker_at(&format!("{url}?replicas=1")).await;
    let few = careful.lock("k").await.unwrap_err();
    assert!(whole(&few).contains("0 of 1 replicas"), "{}", whole(&few));

    assert_eq!(denied(&server), []);
    let stats = server.client().text(&["INFO", "commandstats"]).unwrap();
    for command in named.iter().filter_map(|right| right.strip_prefix('+')) {
        assert!(calls(&stats, command) > 0, "`{command}` is not needed");
    }
    let findings = a.diagnose().await.unwrap();
    let rights = findings.iter().find(|finding| finding.check == "rights").unwrap();
    assert_eq!(rights.verdict, Verdict::Good, "{rights:?}");
}

/// t63: a right that is missing inside a script is named, on every version of the server.
#[tokio::test]
async fn t63_a_right_missing_inside_a_script() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "&*", "+@all", "-exists"]).await;
    names(&locker.try_lock("k").await.unwrap_err(), "+exists");
}

/// t05, t63: without the right to close our connections, a late grant is undone all the same.
#[tokio::test]
async fn t05_a_late_grant_is_undone_without_client_kill() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-client|kill"]).await;
    server.pause();
    let ttl = std::time::Duration::from_secs(60);
    assert!(locker.try_lock("k").ttl(ttl).await.unwrap_err().is_unknown());
    server.go_on();
    eventually("nothing to be left", || async { get(&server, LOCK).is_none() }).await;
}

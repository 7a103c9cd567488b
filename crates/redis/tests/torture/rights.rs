//! Passwords and rights.

use std::error::Error as _;

use tenure_core::{Error, Locker};
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::within;

use crate::support::{get, whole};

const LOCK: &str = "tenure:lock:k";

async fn refused(url: &str) -> String {
    let error = within("a refusal", Redis::connect(url)).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?} {:?}", error.source()));
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    text
}

/// t63, t66: a missing or wrong password is a refusal that says which, and never shows it.
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

/// t63: a user who may not run scripts is told so, at once.
#[tokio::test]
async fn t63_no_scripts() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-eval", "-evalsha"]).await;
    let error = within("a refusal", locker.lock("k").into_future()).await.unwrap_err();
    names(&error, "'evalsha'");
}

/// t63: a user who may not touch the fence gets no lock, and leaves none behind.
#[tokio::test]
async fn t63_no_fence() {
    let server = RedisServer::start();
    for rights in [&["~tenure:lock:*", "+@all"][..], &["~tenure:lock:*", "+@all", "-del"]] {
        let locker = user(&server, rights).await;
        names(&locker.try_lock("k").await.unwrap_err(), "~PREFIX:*");
        tenure_testkit::wait::eventually("nothing to be left", || async {
            get(&server, LOCK).is_none()
        })
        .await;
    }
}

/// t63, t26: nothing is left behind where a grant has to be undone and deleting is denied.
#[tokio::test]
async fn t63_undone_without_del() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-del"]).await;
    server.client().command(&["SET", "tenure:fence", "text"]);
    assert!(locker.try_lock("k").await.unwrap_err().is_refused());
    tenure_testkit::wait::eventually("nothing to be left", || async {
        get(&server, LOCK).is_none()
    })
    .await;
}

/// t63: a user who may not delete is told so at the release; the ttl frees the lock.
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

/// The rights that a refusal names are enough, and no more is needed.
#[tokio::test]
async fn t63_the_rights_named_are_enough() {
    let server = RedisServer::start();
    let none = user(&server, &["~*", "+info", "+client"]).await;
    let refusal = whole(&none.lock("k").await.unwrap_err());
    let named = refusal.split('`').find(|part| part.starts_with('~')).unwrap();
    let named = named.replace("PREFIX", "tenure");
    let locker = user(&server, &named.split(' ').collect::<Vec<_>>()).await;
    let guard = locker.lock("k").ttl(std::time::Duration::from_millis(600)).await.unwrap();
    tenure_testkit::wait::lapse(std::time::Duration::from_millis(900)).await;
    assert!(guard.is_held(), "renewed");
    let next = Locker::new(Redis::connect(&limited(&server)).await.unwrap());
    let next = tokio::spawn(next.lock("k").into_future());
    tenure_testkit::wait::eventually("the next to wait", || async {
        locker.list("*").await.unwrap()[0].waiters.as_ref().is_some_and(|queue| queue.len() == 1)
    })
    .await;
    guard.release().await.unwrap();
    let next = within("the lock", next).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// t05, t63: where connections may not be closed for us, a late grant is undone all the same.
#[tokio::test]
async fn t05_a_late_grant_is_undone_without_client_kill() {
    let server = RedisServer::start();
    let locker = user(&server, &["~*", "+@all", "-client|kill"]).await;
    server.pause();
    let ttl = std::time::Duration::from_secs(60);
    assert!(locker.try_lock("k").ttl(ttl).await.unwrap_err().is_unknown());
    server.go_on();
    tenure_testkit::wait::eventually("nothing to be left", || async {
        get(&server, LOCK).is_none()
    })
    .await;
}

//! Users, passwords and rights; and that no secret is ever shown.

use std::error::Error as _;
use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_etcd::{Builder, Etcd};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::wait::{lapse, within};

use crate::support::{SHORT, claims_are, whole};

/// With the characters that mean something in a URL.
const PASSWORD: &str = "hunter2@:/%";
const ENCODED: &str = "hunter2%40%3A%2F%25";

/// With the usual time-outs: checking a password is made slow on purpose.
fn builder(url: &str) -> Builder {
    Etcd::builder(url)
}

fn server() -> EtcdServer {
    server_with(&[])
}

fn server_with(args: &[&str]) -> EtcdServer {
    let server = EtcdServer::start_with(args);
    server.enable_auth("root-secret");
    server.add_user("app", PASSWORD, "tenure/");
    server
}

fn url(server: &EtcdServer, login: &str) -> String {
    format!("etcd://{login}@127.0.0.1:{}", server.port())
}

fn app(server: &EtcdServer) -> String {
    url(server, &format!("app:{ENCODED}"))
}

async fn locker(server: &EtcdServer, ttl: Duration) -> Locker {
    let connected = builder(&app(server)).connect().await.expect("the password is right");
    Locker::builder(connected).ttl(ttl).build().unwrap()
}

/// The text of a refusal, which shows no secret.
fn refused(error: &Error) -> String {
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(error), format!("{error:?} {:?}", error.source()));
    for secret in ["hunter2", "root-secret"] {
        assert!(!text.contains(secret) && !debug.contains(secret), "{text} {debug}");
    }
    text
}

async fn refusal(url: &str) -> String {
    match within("a refusal", builder(url).connect()).await {
        Err(error) => refused(&error),
        // What is refused may be found out by the first lock.
        Ok(connected) => {
            let locker = Locker::new(connected);
            let tried = within("a refusal", locker.try_lock("k").into_future()).await;
            refused(&tried.unwrap_err())
        }
    }
}

/// A user with the right to our keys, and no other, does everything.
#[tokio::test]
async fn a_user_of_our_own() {
    let server = server();
    let (a, b) = (locker(&server, SHORT).await, locker(&server, SHORT).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    lapse(SHORT * 2).await;
    assert!(guard.is_held(), "keep-alives are allowed too");
    assert_eq!(a.list("*").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    let next = within("the next one's turn", waiting).await.unwrap().unwrap();
    let seen = a.inspect("k").await.unwrap().unwrap().holders[0].token.unwrap();
    a.force_release("k", seen, "eve").await.unwrap();
    within("the loss", next.lost()).await;
}

/// t63, t66: a missing or wrong password is a refusal that never shows it.
#[tokio::test]
async fn t63_passwords() {
    let server = server();
    let missing = refusal(&server.url()).await;
    assert!(missing.contains("password") || missing.contains("user"), "{missing}");
    let wrong = refusal(&url(&server, "app:hunter2")).await;
    assert!(wrong.contains("password"), "{wrong}");
    let nobody = refusal(&url(&server, "nobody:hunter2")).await;
    assert!(nobody.contains("password"), "{nobody}");
}

/// t63: a user without a right to our keys is told so, and leaves nothing behind.
#[tokio::test]
async fn t63_no_right() {
    let server = server();
    server.add_user("guest", "hunter2", "elsewhere/");
    let text = refusal(&url(&server, "guest:hunter2")).await;
    assert!(text.contains("right") || text.contains("permission"), "{text}");
    assert!(server.keys("tenure/").is_empty());
}

/// t63: a user who may only read cannot lock, but look.
#[tokio::test]
async fn t63_read_only() {
    let server = server();
    server.ctl(&["user", "add", "reader:hunter2"]);
    server.ctl(&["role", "add", "reader"]);
    server.ctl(&["role", "grant-permission", "reader", "read", "tenure/", "--prefix=true"]);
    server.ctl(&["user", "grant-role", "reader", "reader"]);
    let a = locker(&server, SHORT).await;
    let _guard = a.lock("k").await.unwrap();
    let reader = builder(&url(&server, "reader:hunter2")).connect().await.unwrap();
    let reader = Locker::new(reader);
    assert_eq!(reader.list("*").await.unwrap().len(), 1);
    let tried = within("a refusal", reader.try_lock("other").into_future()).await;
    refused(&tried.unwrap_err());
    assert_eq!(server.keys("tenure/lock/").len(), 1);
}

/// A login that the server forgets is made anew: nothing is lost, and a lock is had again.
#[tokio::test]
async fn a_token_that_expires() {
    let server = server_with(&["--auth-token-ttl=1"]);
    let a = locker(&server, Duration::from_secs(6)).await;
    let guard = a.lock("k").await.unwrap();
    for _ in 0..3 {
        lapse(Duration::from_millis(2_500)).await;
        let other = within("a lock", a.lock("other").into_future()).await.unwrap();
        within("a release", other.release()).await.unwrap();
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(server.keys("tenure/lock/").is_empty());
}

/// The same while somebody waits: the watch outlives the token, or is made anew.
#[tokio::test]
async fn a_token_that_expires_while_waiting() {
    let server = server_with(&["--auth-token-ttl=1"]);
    let ttl = Duration::from_secs(6);
    let (a, b) = (locker(&server, ttl).await, locker(&server, ttl).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    lapse(Duration::from_secs(4)).await;
    guard.release().await.unwrap();
    let next = within("the next one's turn", waiting).await.unwrap().unwrap();
    within("a release", next.release()).await.unwrap();
}

/// A change of users makes every login old: it is renewed, and what is held stays so.
#[tokio::test]
async fn users_that_change() {
    let server = server();
    let (a, b) = (locker(&server, SHORT).await, locker(&server, SHORT).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    for number in 0..4 {
        server.add_user(&format!("user{number}"), "hunter2", "elsewhere/");
        let other = within("a lock", a.lock("other").into_future()).await.unwrap();
        within("a release", other.release()).await.unwrap();
        lapse(SHORT / 3).await;
    }
    lapse(SHORT).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(within("the next one's turn", waiting).await.unwrap().unwrap().is_held());
}

/// t63: a right that is taken away while the lock is held is a loss or a refusal, never a hang.
#[tokio::test]
async fn t63_a_right_taken_away() {
    let server = server();
    let a = locker(&server, SHORT).await;
    let guard = a.lock("k").await.unwrap();
    server.ctl(&["role", "revoke-permission", "app", "tenure/", "--prefix=true"]);
    let tried = within("a refusal", a.try_lock("other").into_future()).await;
    refused(&tried.unwrap_err());
    let _ = within("an answer", guard.release()).await;
    server.ctl(&["role", "grant-permission", "app", "readwrite", "tenure/", "--prefix=true"]);
    assert!(within("a lock", a.lock("other").into_future()).await.unwrap().is_held());
}

/// A server that wants nobody's password takes one all the same.
#[tokio::test]
async fn a_password_that_nobody_wants() {
    let server = EtcdServer::start();
    let connected = builder(&url(&server, "app:hunter2")).connect().await.unwrap();
    let a = Locker::new(connected);
    let guard = a.lock("k").await.unwrap();
    guard.release().await.unwrap();
    claims_are(&server, "k", 0).await;
}

/// t66: neither a builder nor a client shows what it was given.
#[tokio::test]
async fn t66_debug_shows_no_secret() {
    let server = server();
    let builder = builder(&app(&server));
    let shown = format!("{builder:?}");
    let connected = builder.connect().await.unwrap();
    let shown = format!("{shown} {connected:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

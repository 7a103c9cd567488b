//! Users, passwords and rights. No secret is ever shown.

use std::error::Error as _;
use std::time::Duration;

use tenure_core::{Error, Locker};
use tenure_etcd::{Builder, Etcd};
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::wait::{lapse, within};

use crate::support::{SHORT, claims_are, whole};

/// With the characters that are special in a URL.
const PASSWORD: &str = "hunter2@:/%";
const ENCODED: &str = "hunter2%40%3A%2F%25";

/// With the default time-outs: a server checks passwords slowly on purpose.
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

/// The text of a refusal, checked to contain no secret.
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
        // The first lock may be the first request that is refused.
        Ok(connected) => {
            let locker = Locker::new(connected);
            let tried = within("a refusal", locker.try_lock("k").into_future()).await;
            refused(&tried.unwrap_err())
        }
    }
}

/// Members and login as values, as an application has them for its own client, without a URL's encoding. One
/// builder makes several lockers, which exclude each other.
#[tokio::test]
async fn members_and_login_as_values() {
    let server = server();
    let values = builder("etcd://").endpoints([server.endpoint()]).login("app", PASSWORD);
    let (a, b) = (values.clone().connect().await.unwrap(), values.connect().await.unwrap());
    let (a, b) = (Locker::new(a), Locker::new(b));
    let guard = a.lock("k").await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_none());
    guard.release().await.unwrap();
    let wrong = builder("etcd://").endpoints([server.endpoint()]).login("app", "hunter2");
    refused(&within("a refusal", wrong.connect()).await.unwrap_err());
}

/// A user with rights to our keys only can use all functions.
#[tokio::test]
async fn a_user_with_rights_to_our_keys() {
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

/// C8, t63, t66: a missing or wrong password is refused without showing it.
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

/// t63: a user without rights to our keys gets an error about that, and leaves nothing behind.
#[tokio::test]
async fn t63_no_right() {
    let server = server();
    server.add_user("guest", "hunter2", "elsewhere/");
    let text = refusal(&url(&server, "guest:hunter2")).await;
    assert!(text.contains("right") || text.contains("permission"), "{text}");
    assert!(server.keys("tenure/").is_empty());
}

/// t63: a user with read rights only cannot lock, but can inspect.
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

/// When the server forgets a login, the client logs in again: nothing is lost, and locks can be acquired.
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

/// The login expires while a process waits: the watch outlives the token, or is begun again.
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

/// A change of users invalidates every login: the client logs in again, and held locks stay held.
#[tokio::test]
async fn users_that_change() {
    let server = server();
    // A login takes the server a tenth of a second of processor time, so a busy machine needs more than the least.
    let ttl = SHORT * 3;
    let (a, b) = (locker(&server, ttl).await, locker(&server, ttl).await);
    let guard = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    for number in 0..4 {
        server.add_user(&format!("user{number}"), "hunter2", "elsewhere/");
        let other = within("a lock", a.lock("other").into_future()).await.unwrap();
        within("a release", other.release()).await.unwrap();
        lapse(ttl / 6).await;
    }
    lapse(ttl).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(within("the next one's turn", waiting).await.unwrap().unwrap().is_held());
}

/// t63: a right that is revoked while the lock is held causes a loss or a refusal, and never a hang.
#[tokio::test]
async fn t63_a_revoked_right() {
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

/// A server without authentication accepts a client with a password.
#[tokio::test]
async fn a_password_without_authentication() {
    let server = EtcdServer::start();
    let connected = builder(&url(&server, "app:hunter2")).connect().await.unwrap();
    let a = Locker::new(connected);
    let guard = a.lock("k").await.unwrap();
    guard.release().await.unwrap();
    claims_are(&server, "k", 0).await;
}

/// t66: the `Debug` output of a builder and of a client contains no secret.
#[tokio::test]
async fn t66_debug_shows_no_secret() {
    let server = server();
    let builder = builder(&app(&server));
    let shown = format!("{builder:?}");
    let connected = builder.connect().await.unwrap();
    let shown = format!("{shown} {connected:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

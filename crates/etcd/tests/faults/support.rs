//! Shared parts of these tests: servers, clients, claims without an engine.

use std::error::Error as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant, Loss};
use tenure_core::time::Clock;
use tenure_core::{Claim, ClaimOptions, Error, Guard, Key, Locker, Mode, Token};
use tenure_etcd::{Builder, Etcd};
use tenure_testkit::servers::proxy::Proxy;
use tenure_testkit::servers::{EtcdCluster, EtcdServer};
use tenure_testkit::wait::{eventually, within};
use tokio::sync::{Mutex, MutexGuard};

/// Short, so that a test of a time-out does not take long.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);
/// The shortest valid ttl.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// So long that it ends during no test: a lock that becomes free was released or undone.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// How late an expected event may come on a slow machine: less than a second, so that a delay of a second is
/// detected.
pub(crate) const SLACK: Duration = Duration::from_millis(800);
/// The prefix of all claims.
pub(crate) const LOCKS: &str = "tenure/lock/";

/// A builder for the server at `url`, with short time-outs.
pub(crate) fn builder(url: &str) -> Builder {
    Etcd::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT)
}

/// A client of the server at `url`.
pub(crate) async fn etcd(url: &str) -> Etcd {
    builder(url).connect().await.expect("the server can be used")
}

/// A separate process on the server at `url`, with a session of a long ttl.
pub(crate) async fn locker(url: &str) -> Locker {
    of_ttl(url, LONG).await
}

/// Like [`locker`], with a session of this ttl.
pub(crate) async fn of_ttl(url: &str, ttl: Duration) -> Locker {
    Locker::builder(etcd(url).await).ttl(ttl).build().expect("a sound ttl")
}

/// A server behind a proxy.
pub(crate) fn proxied() -> (EtcdServer, Proxy) {
    let server = EtcdServer::start();
    let proxy = Proxy::raw(server.port());
    (server, proxy)
}

/// The URL of a proxy in front of a server.
pub(crate) fn through(proxy: &Proxy) -> String {
    format!("etcd://127.0.0.1:{}", proxy.port())
}

/// The only cluster of these tests, with all members healthy, for one test at a time: several clusters at
/// once would slow each other down so much that leaders change.
pub(crate) async fn cluster() -> MutexGuard<'static, EtcdCluster> {
    static SHARED: OnceLock<Mutex<EtcdCluster>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| Mutex::new(EtcdCluster::start()));
    let cluster = shared.lock().await;
    cluster.heal();
    cluster
}

/// A claim on `key` for `ttl`.
pub(crate) fn claim(key: &str, ttl: Duration) -> Arc<Claim> {
    labelled(key, ttl, None)
}

/// A claim with a label by which its requests can be found in the traffic.
pub(crate) fn labelled(key: &str, ttl: Duration, label: Option<&str>) -> Arc<Claim> {
    let terms = ClaimOptions::new(ttl).retry_interval(Duration::from_millis(10));
    let terms = terms.label(label.map(Arc::from));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// A labelled claim on `k` in this mode.
pub(crate) fn claim_as(mode: Mode, ttl: Duration) -> Arc<Claim> {
    marked(ClaimOptions::new(ttl).mode(mode))
}

/// A labelled claim on `k` for numbered permits.
pub(crate) fn numbered(mode: Mode) -> Arc<Claim> {
    marked(ClaimOptions::new(LONG).mode(mode).numbered(true))
}

fn marked(options: ClaimOptions) -> Arc<Claim> {
    let options = options.retry_interval(Duration::from_millis(10));
    let options = options.label(Some("marked-claim".into()));
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), options))
}

pub(crate) fn permits(permits: u32, capacity: u32) -> Mode {
    Mode::Permits { permits, capacity }
}

/// Tries once, and expects a grant.
pub(crate) async fn granted(store: &Etcd, claim: &Arc<Claim>) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(holder) => panic!("held by {holder}"),
    }
}

/// An error with all its causes, as a user sees it.
pub(crate) fn whole(error: &Error) -> String {
    let mut text = format!("{error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The claims on `key`, the oldest first.
pub(crate) fn claims(server: &EtcdServer, key: &str) -> Vec<String> {
    let found = server.oldest_first(&format!("{LOCKS}{key}/")).expect("the server answers");
    found.into_iter().map(|(name, _)| name).collect()
}

/// Waits until there are `count` claims on `key` at the server.
pub(crate) async fn claims_are(server: &EtcdServer, key: &str, count: usize) {
    let what = format!("{count} claims on `{key}`");
    eventually(&what, || async { claims(server, key).len() == count }).await;
}

/// The lease of a claim, in the form of `etcdctl`.
pub(crate) fn lease_of(server: &EtcdServer, claim: &str) -> String {
    let said = server.ctl(&["get", "--write-out=fields", claim]);
    let lease = said.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
    // As `etcdctl lease list` prints it: with leading zeros.
    format!("{:016x}", lease.expect("a lease").parse::<i64>().expect("a number"))
}

/// Waits for the loss of a lock that is no longer renewed. It must come when the lease ends by our clock,
/// neither earlier nor later.
pub(crate) async fn lost_on_time(guard: &Guard) -> Loss {
    let loss = within("the loss", guard.lost()).await;
    let (now, until) = (Clock::system().now(), guard.valid_until());
    assert!(!guard.is_held() && now >= until, "{:?} too early", until.since(now));
    assert!(now <= until.after(SLACK), "{:?} too late", now.since(until));
    loss
}

/// Asserts that at most one of the two guards is held.
pub(crate) fn exclude(one: &Guard, other: &Guard) {
    assert!(!(one.is_held() && other.is_held()), "two holders at once");
}

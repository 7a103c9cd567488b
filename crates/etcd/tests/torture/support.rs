//! What these tests share: servers, clients of them, claims below the engine.

use std::error::Error as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Grant, Loss};
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Guard, Key, Locker, Terms, Token};
use tenure_etcd::{Builder, Etcd};
use tenure_testkit::servers::proxy::Proxy;
use tenure_testkit::servers::{EtcdCluster, EtcdServer};
use tenure_testkit::wait::{eventually, within};
use tokio::sync::{Mutex, MutexGuard};

/// Short, so that a test of a time-out does not take long.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);
/// The shortest ttl that there is.
pub(crate) const SHORT: Duration = Duration::from_secs(2);
/// So long that no test ends in time because of it: what is freed was undone.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// How late something that is promised for a moment may come on a slow machine: less than a second, so that a second too
/// late is found.
pub(crate) const SLACK: Duration = Duration::from_millis(800);
/// What all claims are under.
pub(crate) const LOCKS: &str = "tenure/lock/";

/// How to reach what is at `url`, with short time-outs.
pub(crate) fn builder(url: &str) -> Builder {
    Etcd::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT)
}

/// A client of whatever is at `url`.
pub(crate) async fn etcd(url: &str) -> Etcd {
    builder(url).connect().await.expect("the server can be used")
}

/// A process of its own on whatever is at `url`, with a long session by default.
pub(crate) async fn locker(url: &str) -> Locker {
    of_ttl(url, LONG).await
}

/// The same with a session of this ttl.
pub(crate) async fn of_ttl(url: &str, ttl: Duration) -> Locker {
    Locker::builder(etcd(url).await).ttl(ttl).build().expect("a sound ttl")
}

/// A server behind a proxy.
pub(crate) fn proxied() -> (EtcdServer, Proxy) {
    let server = EtcdServer::start();
    let proxy = Proxy::raw(server.port());
    (server, proxy)
}

/// The address of a proxy in front of a server.
pub(crate) fn through(proxy: &Proxy) -> String {
    format!("etcd://127.0.0.1:{}", proxy.port())
}

/// The one cluster of these tests, whole, and for one test at a time: three at once would starve each
/// other into elections.
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

/// A claim with a word by which its traffic can be told.
pub(crate) fn labelled(key: &str, ttl: Duration, label: Option<&str>) -> Arc<Claim> {
    let terms = Terms::new(ttl).retry_interval(Duration::from_millis(10));
    let terms = terms.label(label.map(Arc::from));
    Arc::new(Claim::new(Key::new(key).unwrap(), Token::random().unwrap(), terms))
}

/// Asks once, and expects a yes.
pub(crate) async fn granted(store: &Etcd, claim: &Arc<Claim>) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(holder) => panic!("held by {holder}"),
    }
}

/// An error with all its causes, as a reader would see it.
pub(crate) fn whole(error: &Error) -> String {
    let mut text = format!("{error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The claims on `key`, in the order in which they came.
pub(crate) fn claims(server: &EtcdServer, key: &str) -> Vec<String> {
    let found = server.oldest_first(&format!("{LOCKS}{key}/")).expect("the server answers");
    found.into_iter().map(|(name, _)| name).collect()
}

/// Waits until so many claims on `key` are at the server.
pub(crate) async fn claims_are(server: &EtcdServer, key: &str, count: usize) {
    let what = format!("{count} claims on `{key}`");
    eventually(&what, || async { claims(server, key).len() == count }).await;
}

/// The lease of a claim, as `etcdctl` calls it.
pub(crate) fn lease_of(server: &EtcdServer, claim: &str) -> String {
    let said = server.ctl(&["get", "--write-out=fields", claim]);
    let lease = said.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
    format!("{:x}", lease.expect("a lease").parse::<i64>().expect("a number"))
}

/// Waits for the loss of a lock that nobody renews any more. It comes when the lease ends by our clock, neither before nor
/// later.
pub(crate) async fn lost_on_time(guard: &Guard) -> Loss {
    let loss = within("the loss", guard.lost()).await;
    let (now, until) = (Clock::system().now(), guard.valid_until());
    assert!(!guard.is_held() && now >= until, "{:?} too early", until.since(now));
    assert!(now <= until.after(SLACK), "{:?} too late", now.since(until));
    loss
}

/// Not both at once.
pub(crate) fn exclude(one: &Guard, other: &Guard) {
    assert!(!(one.is_held() && other.is_held()), "two holders at once");
}

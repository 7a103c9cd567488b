//! The events that a watcher gets.

use std::time::Duration;

use tenure_core::watch::EventKind;
use tenure_core::{Locker, Watch};
use tenure_etcd::Etcd;
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::wait::within;

use crate::support::{LONG, SHORT, claim, etcd, granted, locker, proxied, through};

/// A response time-out longer than `LATE`.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longer than a session of `SHORT`, and shorter than the watcher's time-out.
const LATE: Duration = Duration::from_secs(3);

/// A process that watches through a proxy, with a long time-out.
async fn watcher(proxy: &Proxy) -> Locker {
    let etcd = Etcd::builder(&through(proxy)).response_timeout(PATIENCE).connect().await;
    Locker::new(etcd.unwrap())
}

async fn next(watch: &mut Watch) -> EventKind {
    within("an event", watch.next()).await.unwrap().what
}

/// Delays all replies to the watcher from the next one on.
fn delay_replies(proxy: &Proxy) {
    proxy.rule(Rule::on(Way::Replies, Action::Delay(LATE)).once());
}

/// A released lock is reported as released, however late the event comes, and whether or not its session is
/// gone by then.
#[tokio::test]
async fn a_late_event_of_a_release() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, watcher(&proxy).await);
    let mut watch = b.watch("*").await.unwrap();
    for ttl in [SHORT, LONG] {
        let guard = a.lock("k").ttl(ttl).await.unwrap();
        assert_eq!(next(&mut watch).await, EventKind::Acquired);
        delay_replies(&proxy);
        guard.release().await.unwrap();
        assert_eq!(next(&mut watch).await, EventKind::Released);
    }
}

/// An expired lock is reported as lost to all watchers.
#[tokio::test]
async fn a_late_event_of_a_loss() {
    let (server, proxy) = proxied();
    let (store, b) = (etcd(&server.url()).await, watcher(&proxy).await);
    let mut watches = [b.watch("*").await.unwrap(), b.watch("k").await.unwrap()];
    granted(&store, &claim("k", SHORT)).await;
    for watch in &mut watches {
        assert_eq!(next(watch).await, EventKind::Acquired);
    }
    delay_replies(&proxy);
    for watch in &mut watches {
        assert_eq!(next(watch).await, EventKind::Lost);
    }
}

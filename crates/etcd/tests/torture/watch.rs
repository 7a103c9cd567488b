//! What whoever watches is told.

use std::time::Duration;

use tenure_core::watch::What;
use tenure_core::{Locker, Watch};
use tenure_etcd::Etcd;
use tenure_testkit::servers::proxy::{Deed, Proxy, Rule, Way};
use tenure_testkit::wait::within;

use crate::support::{LONG, SHORT, claim, etcd, granted, locker, proxied, through};

/// The longest time-out that there is.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longer than a session of `SHORT` lasts, and not too long for the onlooker's patience.
const LATE: Duration = Duration::from_secs(3);

/// A process that looks on from behind a proxy, and is patient.
async fn onlooker(proxy: &Proxy) -> Locker {
    let etcd = Etcd::builder(&through(proxy)).response_timeout(PATIENCE).connect().await;
    Locker::new(etcd.unwrap())
}

async fn next(watch: &mut Watch) -> What {
    within("an event", watch.next()).await.unwrap().what
}

/// From the next answer on, all that the onlooker hears comes late.
fn hear_late(proxy: &Proxy) {
    proxy.rule(Rule::on(Way::Replies, Deed::Delay(LATE)).once());
}

/// A lock that was given back is told so, however late that is heard and whether or not its session is
/// gone by then.
#[tokio::test]
async fn a_release_that_is_heard_late() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, onlooker(&proxy).await);
    let mut watch = b.watch("*").await.unwrap();
    for ttl in [SHORT, LONG] {
        let guard = a.lock("k").ttl(ttl).await.unwrap();
        assert_eq!(next(&mut watch).await, What::Acquired);
        hear_late(&proxy);
        guard.release().await.unwrap();
        assert_eq!(next(&mut watch).await, What::Released);
    }
}

/// One that ran out is told as lost, to everybody who watches.
#[tokio::test]
async fn a_loss_that_is_heard_late() {
    let (server, proxy) = proxied();
    let (store, b) = (etcd(&server.url()).await, onlooker(&proxy).await);
    let mut watches = [b.watch("*").await.unwrap(), b.watch("k").await.unwrap()];
    granted(&store, &claim("k", SHORT)).await;
    for watch in &mut watches {
        assert_eq!(next(watch).await, What::Acquired);
    }
    hear_late(&proxy);
    for watch in &mut watches {
        assert_eq!(next(watch).await, What::Lost);
    }
}

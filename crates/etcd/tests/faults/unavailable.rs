//! A server that is unavailable while tasks of a process ask.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Locker;
use tenure_etcd::Etcd;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::unavailable::{TIMEOUT, bounds_are_kept, nothing_to_undo};

/// G6: the server is killed and restarted. The session of the waiters ends meanwhile, and their claims with it.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_on_etcd() {
    let server = EtcdServer::start();
    let etcd = Etcd::builder(&server.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let locker = Locker::builder(etcd.connect().await.unwrap()).ttl(Duration::from_secs(3));
    let locker = locker.build().unwrap();
    bounds_are_kept(&locker, || server.kill(), || server.start_again()).await;
}

/// A claim whose request never left has nothing to undo, also beside a lock whose session is alive.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_to_undo_on_a_dead_server() {
    let server = EtcdServer::start();
    let etcd = Etcd::builder(&server.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    nothing_to_undo(Arc::new(etcd.connect().await.unwrap()), || server.kill()).await;
}

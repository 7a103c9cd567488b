//! Lockers on a client that the caller made (G4).

use std::time::Duration;

use tenure_core::Locker;
use tenure_etcd::{Client, Etcd};
use tenure_testkit::wait::eventually;

use crate::support::{LONG, builder, claims, proxied, through};

const DRAIN: Duration = Duration::from_secs(5);

/// Two lockers share the connection for requests, and exclude each other as usual. A locker that shuts down leaves the
/// connection to the other; the caller closes it.
#[tokio::test]
async fn g4_lockers_share_a_client() {
    let (server, proxy) = proxied();
    let client = builder(&through(&proxy)).client().await.unwrap();
    let shared = proxy.connections();
    assert_eq!(shared.len(), 1);
    let locker = |client: &Client| Locker::builder(Etcd::with(client)).ttl(LONG).build().unwrap();
    let (a, b) = (locker(&client), locker(&client));
    let held = a.lock("k").await.unwrap();
    assert!(b.try_lock("k").await.unwrap().is_none(), "two lockers are two processes");
    let kept = b.lock("kept").await.unwrap();
    held.renew().await.unwrap();
    kept.renew().await.unwrap();
    assert_eq!(proxy.accepted(), 3, "one for requests, and one for the renewals of each locker");
    drop(held);
    a.shutdown(DRAIN).await;
    assert_eq!(claims(&server, "k").len(), 0, "what the locker held was released");
    eventually("a's renewals to be gone", || async { proxy.connections().len() == 2 }).await;
    assert!(proxy.connections().contains(&shared[0]), "the very same connection");
    b.lock("k").await.unwrap().release().await.unwrap();
    kept.release().await.unwrap();
    b.shutdown(DRAIN).await;
    eventually("b's renewals to be gone", || async { proxy.connections() == shared }).await;
    client.close();
    eventually("the client to be gone", || async { proxy.connections().is_empty() }).await;
}

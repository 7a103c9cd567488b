//! `etcd:` passes the conformance suite of all engines.

#![allow(clippy::expect_used, reason = "test code, also outside of `#[test]` functions")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_etcd::Etcd;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::EtcdServer;

/// Keys that no other test uses, on the server that all tests share.
struct Place(String);

impl Place {
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Place(format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    async fn connect(&self) -> Etcd {
        let builder = Etcd::builder(&EtcdServer::shared().url()).prefix(self.0.as_str());
        builder.connect().await.expect("the server can be used")
    }
}

impl Fixture for Place {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }
}

tenure_testkit::conformance!(Place::fresh());

//! `redis+sentinel:` does what every engine must do. One Sentinel and no replicas: what is asked for
//! here needs no failover, which the tests of the crate `tenure-redis` have.

#![allow(clippy::expect_used, reason = "test code, also outside of `#[test]` functions")]

use std::sync::Arc;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Redis;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::SentinelSet;

/// Servers that no other test uses, gone afterwards.
struct Set(SentinelSet);

impl Set {
    fn fresh() -> Self {
        Set(SentinelSet::start_small())
    }

    async fn connect(&self) -> Redis {
        Redis::connect(&self.0.url()).await.expect("the master can be used")
    }
}

impl Fixture for Set {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }
}

mod redis_sentinel {
    use super::Set;

    tenure_testkit::conformance!(Set::fresh());
}

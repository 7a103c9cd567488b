//! `redis+sentinel:` passes the conformance suite of all engines. There is one Sentinel and no replica: the
//! cases need no failover, which `tests/faults_sentinel` covers.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Redis;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::SentinelSet;

/// Servers that no other test uses; they are stopped when this is dropped.
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

tenure_testkit::conformance!(Set::fresh());

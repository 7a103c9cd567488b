//! `redis-cluster:` passes the conformance suite of all engines. All cases share one cluster, each under a
//! prefix of its own: they need no failover, which `tests/faults_cluster` covers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Cluster;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::RedisCluster;

static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start_masters);
static CASES: AtomicU32 = AtomicU32::new(0);

/// A part of the cluster that no other case uses.
struct Part {
    url: String,
    prefix: String,
}

impl Part {
    fn fresh() -> Self {
        let prefix = format!("case{}", CASES.fetch_add(1, Ordering::Relaxed));
        Part { url: CLUSTER.url(), prefix }
    }

    async fn connect(&self) -> Cluster {
        let cluster = Cluster::builder(&self.url).prefix(&self.prefix).cluster().await;
        cluster.expect("the cluster can be used")
    }
}

impl Fixture for Part {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }
}

tenure_testkit::conformance!(Part::fresh());

//! `redis+quorum:` passes the conformance suite of all engines.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Quorum;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::RedisServer;

/// Five servers, reached with the default options, as a program would use them.
struct Five(Vec<RedisServer>);

impl Five {
    fn fresh() -> Self {
        Five((0..5).map(|_| RedisServer::start()).collect())
    }

    async fn connect(&self) -> Quorum {
        let hosts: Vec<_> =
            self.0.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let url = format!("redis+quorum://{}?restarted=trusted", hosts.join(","));
        Quorum::connect(&url).await.expect("the nodes can be used")
    }
}

impl Fixture for Five {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }
}

tenure_testkit::conformance!(Five::fresh());

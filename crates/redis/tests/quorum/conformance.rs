//! `redis+quorum:` does what every engine must do.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Quorum;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::RedisServer;

use crate::support::url_of;

/// Five servers, used as a program would: with the defaults.
struct Five(Vec<RedisServer>);

impl Five {
    fn fresh() -> Self {
        Five((0..5).map(|_| RedisServer::start()).collect())
    }

    async fn connect(&self) -> Quorum {
        let url = url_of(self.0.iter().map(RedisServer::port)) + "?restarted=trusted";
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

mod quorum {
    use super::Five;

    tenure_testkit::conformance!(Five::fresh());
}

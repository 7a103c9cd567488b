//! `redis:` passes the conformance suite of all engines.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_redis::Redis;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::RedisServer;

/// A server that no other test uses; it is stopped when this is dropped.
struct Server(RedisServer);

impl Server {
    fn fresh() -> Self {
        Server(RedisServer::start())
    }

    async fn connect(&self) -> Redis {
        Redis::connect(&self.0.url()).await.expect("the server can be used")
    }
}

impl Fixture for Server {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }
}

tenure_testkit::conformance!(Server::fresh());

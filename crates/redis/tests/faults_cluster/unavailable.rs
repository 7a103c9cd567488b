//! Nodes that are unavailable while tasks of a process ask.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_redis::Cluster;
use tenure_testkit::servers::{RedisCluster, RedisServer};
use tenure_testkit::unavailable::{TIMEOUT, bounds_are_kept, nothing_to_undo};

use crate::support::cluster_at;

/// G6: every node is stopped and continued.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_in_a_cluster() {
    let nodes = RedisCluster::start();
    let cluster = Cluster::builder(&nodes.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let locker = Locker::new(cluster.cluster().await.unwrap());
    let (stop, go_on) = (
        || nodes.nodes().iter().for_each(RedisServer::pause),
        || nodes.nodes().iter().for_each(RedisServer::go_on),
    );
    bounds_are_kept(&locker, stop, go_on).await;
}

/// A claim that was never sent to a cluster of dead nodes is abandoned at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_undo_in_a_dead_cluster() {
    let nodes = RedisCluster::start();
    let kill = || nodes.nodes().iter().for_each(RedisServer::kill);
    nothing_to_undo(Arc::new(cluster_at(&nodes.url()).await.unwrap()), kill).await;
}

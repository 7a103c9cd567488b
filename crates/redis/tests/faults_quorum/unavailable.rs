//! A majority that is unavailable while tasks of a process ask.

use std::sync::Arc;

use tenure_core::Locker;
use tenure_redis::Quorum;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Cut, Proxy};
use tenure_testkit::unavailable::{TIMEOUT, bounds_are_kept, nothing_to_undo};

use crate::support::Nodes;

/// G6: two of three nodes are disconnected.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_on_a_quorum() {
    let nodes = [(); 3].map(|()| RedisServer::start());
    let proxies = nodes.each_ref().map(|node| Proxy::to(node.port()));
    let hosts = proxies.each_ref().map(|proxy| format!("127.0.0.1:{}", proxy.port())).join(",");
    let quorum = Quorum::builder(&format!("redis+quorum://{hosts}?restarted=trusted"))
        .connect_timeout(TIMEOUT)
        .response_timeout(TIMEOUT);
    let locker = Locker::new(quorum.quorum().await.unwrap());
    let cut = || {
        for proxy in &proxies[..2] {
            proxy.refuse();
            proxy.cut(Cut::Reset);
        }
    };
    bounds_are_kept(&locker, cut, || proxies.iter().for_each(Proxy::heal)).await;
}

/// A claim that was never sent to a quorum of dead nodes is abandoned at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_undo_on_dead_nodes() {
    let nodes = Nodes::start();
    let kill = || nodes.0.iter().for_each(RedisServer::kill);
    nothing_to_undo(Arc::new(nodes.connect().await), kill).await;
}

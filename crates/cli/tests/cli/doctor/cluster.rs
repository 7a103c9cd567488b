//! Redis Cluster: its masters, and whether every slot has one.

use tenure_testkit::servers::{RedisCluster, RedisServer};
use tenure_testkit::wait::eventually_blocking;

use super::doctor;

fn set(node: &RedisServer, name: &str, value: &str) {
    let reply = node.client().command(&["CONFIG", "SET", name, value]);
    assert!(format!("{reply:?}").contains("OK"), "{name}: {reply:?}");
}

/// t37: durable masters that notice lost replicas: 0. Otherwise there is a warning for each master.
#[test]
fn t37_masters_with_replicas() {
    let cluster = RedisCluster::start();
    let found = doctor(&cluster.url());
    found.has("slots", "good", "16384 of 16384");
    found.has("role", "good", "master");
    found.has("replication", "warning", "1 replica, and `min-replicas-to-write 0`.+");
    found.has("persistence", "warning", ".+");
    found.has("lock", "good", "granted with fence .+");
    assert_eq!((found.all("reachable").len(), found.all("eviction").len()), (3, 3));
    found.ends_with(1);
    for node in cluster.nodes() {
        set(node, "appendfsync", "always");
        set(node, "appendonly", "yes");
        set(node, "min-replicas-to-write", "1");
    }
    let found = doctor(&cluster.url());
    found.all_are("good");
    found.ends_with(0);
}

/// t37: a master without a replica, and a dead master, whose slots have no owner.
#[test]
fn t37_a_master_that_nobody_replaces() {
    let cluster = RedisCluster::start_masters();
    let found = doctor(&cluster.url());
    found.has("replication", "warning", "no replica: nothing can replace the master");
    found.ends_with(1);
    let (dead, lives) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    dead.kill();
    eventually_blocking("the others to take it for dead", || {
        let said = lives.client().command(&["CLUSTER", "NODES"]);
        format!("{said:?}").contains("master,fail ")
    });
    let found = doctor(&cluster.url());
    found.has("reachable", "unsafe", ".+cannot connect: Connection refused.+");
    found.has("slots", "unsafe", r"\d+ of 16384: no lock in the others can be acquired");
    assert!(found.all("lock").is_empty());
    found.ends_with(2);
}

/// t58: a cluster node is rejected as a single server, and a single server as a cluster node.
#[test]
fn t58_one_for_the_other() {
    let server = RedisServer::start();
    let found = doctor(&format!("redis-cluster://127.0.0.1:{}", server.port()));
    found.has("reachable", "unsafe", ".+it is no node of a cluster.+");
    found.ends_with(2);
    let cluster = RedisCluster::start_masters();
    let found = doctor(&format!("redis://127.0.0.1:{}", cluster.nodes()[0].port()));
    let role = found.has("role", "unsafe", "it runs in cluster mode");
    assert!(role["advice"].as_str().unwrap().contains("`redis-cluster://HOST`"), "{role}");
    found.ends_with(2);
}

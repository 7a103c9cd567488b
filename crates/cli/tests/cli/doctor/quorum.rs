//! A quorum of Redis servers: each node, and all nodes together.

use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::Proxy;

use crate::common::{bare, done};

use super::doctor;

/// Nodes that count although they have just started.
const TRUSTED: &str = "?restarted=trusted";

fn url(ports: &[u16], rest: &str) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+quorum://{}{rest}", hosts.join(","))
}

fn three() -> [RedisServer; 3] {
    [(); 3].map(|()| RedisServer::start_persistent())
}

fn ports(nodes: &[RedisServer]) -> Vec<u16> {
    nodes.iter().map(RedisServer::port).collect()
}

/// t16, t17: durable nodes: 0. One of three may fail, two may not.
#[test]
fn t16_t17_nodes_that_go() {
    let nodes = three();
    let url = url(&ports(&nodes), TRUSTED);
    let found = doctor(&url);
    found.all_are("good");
    found.has("majority", "good", "3 of 3");
    found.has("distinct", "good", "3 different servers");
    found.has("lock", "good", "granted with fence .+");
    assert_eq!((found.all("reachable").len(), found.all("eviction").len()), (3, 3));
    found.ends_with(0);
    nodes[2].kill();
    let found = doctor(&url);
    found.has("reachable", "warning", ".+cannot connect: Connection refused.+");
    found.has("majority", "warning", "2 of 3: no more than 0 may still fail");
    found.has("distinct", "warning", "2 of 3 could be compared");
    found.has("lock", "good", "granted .+");
    found.ends_with(1);
    nodes[1].kill();
    let found = doctor(&url);
    found.has("reachable", "unsafe", ".+cannot connect: Connection refused.+");
    found.has("majority", "unsafe", "1 of 3, and 2 are needed: no lock can be acquired");
    assert!(found.all("lock").is_empty());
    found.ends_with(2);
}

/// t15: the vote of a node that has just started does not count, unless restarted nodes are trusted. To trust
/// nodes that lose their data is unsafe.
#[test]
fn t15_nodes_that_restarted() {
    let nodes = three();
    let found = doctor(&url(&ports(&nodes), ""));
    found.has("restarted", "warning", r"it has run for \d+s: its vote counts after 30s");
    found.has("lock", "unsafe", ".+its vote counts after 30s.+");
    found.ends_with(2);
    let forgetful = [(); 3].map(|()| RedisServer::start());
    let nothing = "nothing is saved: a restart forgets every lock";
    let found = doctor(&url(&ports(&forgetful), TRUSTED));
    let flaw =
        found.has("persistence", "unsafe", &format!("{nothing}; and its vote counts at once"));
    assert!(
        flaw["advice"].as_str().unwrap().starts_with("leave `restarted=trusted` out"),
        "{flaw}"
    );
    found.ends_with(2);
    let found = doctor(&url(&ports(&forgetful), ""));
    let seen = format!("{nothing}; after a restart its vote does not count for a while");
    found.has("persistence", "good", &seen);
}

/// t19: one server under two names, a replica, and a server that evicts keys are not valid nodes.
#[test]
fn t19_nodes_that_are_none() {
    let [a, b, c] = three();
    let again = Proxy::to(a.port());
    let found = doctor(&url(&[a.port(), b.port(), again.port()], TRUSTED));
    let twins = format!("127.0.0.1:{} and 127.0.0.1:{}", a.port(), again.port());
    found.has("distinct", "unsafe", &format!("{twins} are the same server"));
    assert!(found.all("lock").is_empty());
    found.ends_with(2);
    c.client().command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    c.client().command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let found = doctor(&url(&[a.port(), b.port(), c.port()], TRUSTED));
    found.has("eviction", "unsafe", "`allkeys-lru` with .+");
    found.ends_with(2);
    let replica = a.start_replica();
    let found = doctor(&url(&[a.port(), b.port(), replica.port()], TRUSTED));
    found.has("role", "unsafe", "replica of .+");
    found.ends_with(2);
}

/// t61: an invalid number of nodes is a usage error, as in every command.
#[test]
fn t61_numbers_of_nodes() {
    for hosts in ["a", "a,b", "a,b,c,d", "a,b,a"] {
        let run = done(bare(["doctor", "-u", &format!("redis+quorum://{hosts}")]));
        assert_eq!((run.code, run.out.as_str()), (Some(64), ""), "{run:?}");
        assert!(run.err.contains("invalid quorum url: "), "{run:?}");
    }
}

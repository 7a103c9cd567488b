//! An etcd cluster: each member, all members together, and our rights.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tenure::fence::next_server_fence;
use tenure::time::UnixMillis;
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::servers::{EtcdCluster, EtcdServer};
use tenure_testkit::wait::eventually_blocking;

use super::{Checkup, doctor, doctor_with};

/// A proxy that changes the version in the server's replies: the installed versions have known bugs.
fn said_to_be(server: &EtcdServer, version: &str) -> Proxy {
    let proxy = Proxy::raw(server.port());
    let (major, minor, patch) = server.version();
    let real = format!("{major}.{minor}.{patch}");
    assert_eq!(real.len(), version.len(), "this test rewrites {real}");
    let rewrite = Action::Rewrite(real.clone().into(), version.into());
    proxy.rule(Rule::on(Way::Replies, rewrite).containing(&real));
    proxy
}

fn at(port: u16) -> String {
    format!("etcd://127.0.0.1:{port}")
}

/// Everything is good except the version, which depends on the installed etcd.
#[track_caller]
fn is_good_otherwise(found: &Checkup) {
    let others = found.findings.iter().filter(|one| one["check"] != "version");
    let bad: Vec<_> = others.filter(|one| one["verdict"] != "good").collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A server of a version without known bugs: everything is good, 0. Only a lease is left, which expires.
#[test]
fn a_server_in_good_health() {
    let server = EtcdServer::start();
    let proxy = said_to_be(&server, "3.4.38");
    let found = doctor(&at(proxy.port()));
    found.all_are("good");
    found.ends_with(0);
    found.has("reachable", "good", "it answers");
    found.has("version", "good", "etcd 3.4.38");
    found.has("cluster", "good", "all of them belong to [0-9a-f]+");
    found.has("leader", "good", "each of them has one");
    found.has("alarms", "good", "none");
    found.has("space", "good", r"\d+ of 2048 MiB \(unless it was set: this version does not say\)");
    found.has("auth", "good", "allowed, and no user was given");
    found.has("latency", "good", "median .+");
    found.has("lock", "good", "granted with fence .+");
    assert!(found.all("clock").is_empty(), "clocks do not matter here");
    assert_eq!(server.keys("tenure/lock/"), [""; 0]);
}

/// A base of fences that a clock has once raised is a warning: on another engine, fences would fall.
#[test]
fn fences_ahead_of_the_clock() {
    let server = EtcdServer::start();
    let hour_ahead = next_server_fence(0, UnixMillis(UnixMillis::now().0 + 3_600_000)).unwrap();
    server.ctl(&["put", "tenure/epoch", &hour_ahead.to_string()]);
    let found = doctor(&server.url());
    let seen = r"granted with fence \d+, .+; the fence is 3(600|59\d)s ahead of our clock";
    found.has("lock", "warning", seen);
}

/// C1, t64, t124: versions with known bugs, and too old ones.
#[test]
fn t64_versions() {
    let server = EtcdServer::start();
    let found = doctor(&at(said_to_be(&server, "3.5.22").port()));
    let flaw = found.has("version", "warning", "etcd 3.5.22 has known bugs: a lease can end .+");
    assert_eq!(flaw["advice"], "upgrade to 3.5.23 or later (etcd issues 20547, 15247)");
    found.ends_with(1);
    let found = doctor(&at(said_to_be(&server, "3.3.27").port()));
    found.has("version", "unsafe", "etcd 3.3.27");
    found.ends_with(2);
}

/// One member down, no majority, and no member at all.
#[test]
fn members_that_go() {
    let cluster = EtcdCluster::start();
    let found = doctor(&cluster.url());
    is_good_otherwise(&found);
    assert_eq!((found.all("reachable").len(), found.all("version").len()), (3, 3));
    cluster.kill(2);
    let found = doctor(&cluster.url());
    let flaw = found.has("reachable", "warning", ".+cannot connect: Connection refused.+");
    assert_eq!(flaw["advice"], "start it, open the way to it, or take it out of the URL");
    found.ends_with(1);
    cluster.kill(1);
    let mut last = doctor(&cluster.url());
    eventually_blocking("the last to have no leader", || {
        last = doctor(&cluster.url());
        last.all("leader")[0]["verdict"] == "unsafe"
    });
    last.has("leader", "unsafe", "none of them has one");
    last.ends_with(2);
    cluster.kill(0);
    let found = doctor(&cluster.url());
    found.has("reachable", "unsafe", ".+");
    assert_eq!(found.findings.len(), 3);
    found.ends_with(2);
}

/// A member that is cut off from the others has no leader: a warning.
#[test]
fn a_member_that_is_cut_off() {
    let cluster = EtcdCluster::start();
    let follower = cluster.follower();
    cluster.isolate(follower);
    let mut last = doctor(&cluster.url());
    eventually_blocking("the member to have no leader", || {
        last = doctor(&cluster.url());
        last.all("leader")[0]["verdict"] == "warning"
    });
    let port = cluster.member(follower).port();
    last.has("leader", "warning", &format!("127.0.0.1:{port} has none"));
}

/// Endpoints of two clusters do not exclude each other: unsafe.
#[test]
fn two_clusters() {
    let (one, other) =
        (EtcdServer::start(), EtcdServer::start_with(&["--initial-cluster-token=other"]));
    let found = doctor(&format!("etcd://127.0.0.1:{},127.0.0.1:{}", one.port(), other.port()));
    found.has("cluster", "unsafe", "they belong to several: .+");
    assert!(found.all("lock").is_empty());
    found.ends_with(2);
}

/// A full server grants no lock, and raises an alarm; so does a server with corrupt data.
#[test]
fn alarms() {
    let server = EtcdServer::start_with(&["--quota-backend-bytes=200000"]);
    let text = "x".repeat(50_000);
    eventually_blocking("the server to be full", || {
        server.try_ctl(&["put", "big", &text]).is_err()
    });
    let found = doctor(&server.url());
    let flaw = found.has("alarms", "unsafe", &format!("NOSPACE at 127.0.0.1:{}", server.port()));
    assert!(flaw["advice"].as_str().unwrap().contains("alarm disarm"), "{flaw}");
    found.ends_with(2);
    let server = EtcdServer::start();
    raise_corrupt(&server);
    let found = doctor(&server.url());
    found.has("alarms", "unsafe", "CORRUPT at .+");
    found.ends_with(2);
}

/// Raises an alarm by the server's HTTP interface, because `etcdctl` cannot.
fn raise_corrupt(server: &EtcdServer) {
    let listed = server.ctl(&["member", "list"]);
    let id = u64::from_str_radix(listed.split(',').next().unwrap(), 16).unwrap();
    let body = format!("{{\"action\":\"ACTIVATE\",\"memberID\":\"{id}\",\"alarm\":\"CORRUPT\"}}");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let length = body.len();
    let head = format!("POST /v3/maintenance/alarm HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.contains("CORRUPT"), "{said}");
}

/// t63, t66: users: none, a wrong password, too few rights, the right ones, and a user for a cluster without
/// authentication.
#[test]
fn t63_t66_users() {
    let server = EtcdServer::start();
    let as_user = |name: &str, password: &str| {
        format!("etcd://{name}:{password}@127.0.0.1:{}", server.port())
    };
    let found = doctor(&as_user("app", "hunter2"));
    let seen = "allowed, and the cluster does not ask for passwords: `app` is not checked";
    found.has("auth", "warning", seen);
    found.ends_with(1);
    server.enable_auth("root-secret");
    server.add_user("app", "hunter2", "tenure/");
    server.add_user("other", "hunter2", "elsewhere/");
    server.add_user("reader", "hunter2", "elsewhere/");
    server.ctl(&["role", "grant-permission", "reader", "read", "tenure/", "--prefix=true"]);
    let found = doctor(&as_user("app", "hunter2"));
    found.has("auth", "good", "allowed, as `app`");
    is_good_otherwise(&found);
    let found = doctor(&server.url());
    found.has("auth", "unsafe", ".+the server wants a user and a password.+");
    found.ends_with(2);
    let advised = "`etcdctl role grant-permission ROLE --prefix=true readwrite tenure/`";
    let found = doctor(&as_user("other", "hunter2"));
    let flaw = found.has("auth", "unsafe", ".+the user lacks a right.+");
    assert!(flaw["advice"].as_str().unwrap().contains(advised), "{flaw}");
    let found = doctor(&as_user("reader", "hunter2"));
    let flaw = found.has("lock", "unsafe", ".+the user lacks a right.+");
    assert!(flaw["advice"].as_str().unwrap().contains(advised), "{flaw}");
    found.ends_with(2);
    let found = doctor(&as_user("app", "wrong-secret"));
    found.has("reachable", "unsafe", ".+the user name or password is wrong.+");
    assert!(!format!("{found:?}").contains("wrong-secret"));
    found.ends_with(2);
}

/// t56: how much latency is too much depends on the ttl.
#[test]
fn t56_latency() {
    let server = EtcdServer::start();
    let proxy = Proxy::raw(server.port());
    let late = Action::Delay(std::time::Duration::from_millis(100));
    proxy.rule(Rule::on(Way::Replies, late));
    let found = doctor_with(&at(proxy.port()), &["--ttl", "2s"]);
    found.has(
        "latency",
        "warning",
        r"median \S+, slowest \S+ of 11; a ttl of 2s is \d+ times the median",
    );
    doctor_with(&at(proxy.port()), &["--ttl", "1m"]).has("latency", "good", "median .+");
}

//! The handles of the servers do what they promise, checked with `etcdctl`.

use super::{EtcdCluster, EtcdServer};
use crate::wait::eventually_blocking;

/// A server serves when `start` returns, restarts with or without its data, and ends when dropped.
#[test]
fn start_restart_drop() {
    let server = EtcdServer::start();
    assert_eq!(server.ctl(&["put", "a", "1"]), "OK");
    server.restart();
    assert_eq!(server.keys(""), ["a"]);
    server.restart_empty();
    assert!(server.keys("").is_empty());
    let (port, dir) = (server.port(), server.dir().to_owned());
    drop(server);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!dir.exists());
}

/// Keys, leases and revisions can be read and deleted, and the metrics count the calls.
#[test]
fn operators_means() {
    let server = EtcdServer::start();
    let before = server.metrics();
    let granted = server.ctl(&["lease", "grant", "60"]);
    let lease = granted.split(' ').nth(1).expect("`lease 32695… granted with TTL(60s)`");
    assert_eq!(server.leases(), [lease]);
    server.ctl(&["put", "a", "1", "--lease", lease]);
    server.ctl(&["put", "b", "1"]);
    let after = server.metrics();
    assert_eq!(after.calls("Put") - before.calls("Put"), 2);
    assert_eq!(after.writes() - before.writes(), 2);
    server.revoke(lease);
    assert_eq!((server.keys(""), server.leases().len()), (vec!["b".to_owned()], 0));
    let old = server.revision();
    server.delete("b");
    server.compact();
    let refused = server.try_ctl(&["get", "b", &format!("--rev={old}")]);
    assert!(refused.unwrap_err().contains("compacted"));
    server.is_rid_of("");
}

/// With authentication, access needs a password, and each user reaches only the allowed keys.
#[test]
fn users() {
    let server = EtcdServer::start();
    server.enable_auth("secret");
    server.add_user("app", "hers", "app/");
    assert_eq!(server.ctl(&["put", "a", "1"]), "OK");
    assert_eq!(server.ctl(&["--user", "app:hers", "put", "app/a", "1"]), "OK");
    let refused = server.try_ctl(&["--user", "app:hers", "put", "a", "1"]).unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    let refused = server.try_ctl(&["--user", "app:his", "get", "a"]).unwrap_err();
    assert!(refused.contains("invalid user ID or password"), "{refused}");
}

/// A restore brings back the saved data without later writes, and revisions go back too.
#[test]
fn backups() {
    let server = EtcdServer::start();
    server.ctl(&["put", "a", "1"]);
    let (backup, saved_at) = (server.save(), server.revision());
    server.ctl(&["put", "b", "1"]);
    server.restore(&backup);
    assert_eq!((server.keys(""), server.revision()), (vec!["a".into()], saved_at));
}

/// A cluster works without any one of its members, but not without two.
#[test]
fn a_leader_is_killed_and_paused() {
    let cluster = EtcdCluster::start();
    let first = cluster.leader();
    cluster.kill(first);
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.member(second).ctl(&["put", "a", "1"]);
    cluster.start_again(first);
    cluster.is_whole();
    assert_eq!(cluster.member(first).keys(""), ["a"]);
    cluster.pause(second);
    let third = cluster.leader();
    assert_ne!(second, third);
    cluster.any().ctl(&["put", "b", "1"]);
    cluster.go_on(second);
    cluster.is_whole();
    assert_eq!(cluster.member(second).keys(""), ["a", "b"]);
    let others = [0, 1, 2].into_iter().filter(|index| *index != second);
    others.for_each(|index| cluster.kill(index));
    eventually_blocking("one alone not to serve", || !cluster.member(second).is_healthy());
}

/// An isolated leader is replaced, steps down, and follows when it rejoins; an isolated follower does not
/// stop the cluster.
#[test]
fn a_member_is_cut_off() {
    let cluster = EtcdCluster::start();
    let first = cluster.leader();
    cluster.isolate(first);
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.any().ctl(&["put", "a", "1"]);
    eventually_blocking("the old one to step down", || !cluster.member(first).is_leader());
    assert!(!cluster.member(first).is_healthy());
    cluster.rejoin(first);
    cluster.is_whole();
    assert_eq!(cluster.member(first).keys(""), ["a"]);
    let follower = cluster.follower();
    cluster.isolate(follower);
    eventually_blocking("it to notice", || !cluster.member(follower).is_healthy());
    cluster.any().ctl(&["put", "b", "1"]);
    cluster.rejoin(follower);
    cluster.is_whole();
    assert_eq!(cluster.member(follower).keys(""), ["a", "b"]);
}

/// A member is replaced by one that starts empty and receives all data.
#[test]
fn a_member_is_replaced() {
    let cluster = EtcdCluster::start();
    cluster.any().ctl(&["put", "a", "1"]);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.replace(leader);
    assert_eq!(cluster.member(leader).keys(""), ["a"]);
    cluster.replace(follower);
    cluster.is_whole();
    assert_eq!(cluster.member(follower).keys(""), ["a"]);
    assert_eq!(cluster.any().ctl(&["member", "list"]).lines().count(), 3);
    cluster.isolate(follower);
    eventually_blocking("the new one to be cut off", || !cluster.member(follower).is_healthy());
    cluster.rejoin(follower);
    cluster.is_whole();
    // Ask for the leader now, because the isolated member may have led until then.
    let leader = cluster.leader();
    assert!(cluster.hand_on());
    eventually_blocking("another to lead", || cluster.leader() != leader);
}

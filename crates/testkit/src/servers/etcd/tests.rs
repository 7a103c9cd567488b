//! The servers do what their handles say, seen through `etcdctl`.

use super::{EtcdCluster, EtcdServer, Gone, Past};
use crate::wait::eventually_blocking;

/// A server serves when `start` returns, comes back with or without its data, and is gone when
/// dropped.
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

/// Keys, leases and revisions can be looked at and taken away, and what happened is counted.
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

/// What went is read back: all of a lease at one revision, what was deleted by hand alone; also after what
/// was read is compacted.
#[test]
fn what_went_and_when() {
    let server = EtcdServer::start();
    let granted = server.ctl(&["lease", "grant", "60"]);
    let lease = granted.split(' ').nth(1).expect("`lease 32695… granted with TTL(60s)`");
    server.ctl(&["put", "a/1", "t1:held:x::1000", "--lease", lease]);
    server.ctl(&["put", "a/2", "1", "--lease", lease]);
    server.revoke(lease);
    let mut past = server.past("a/", 0).expect("it tells");
    assert!(server.try_compact_to(past.until));
    server.ctl(&["put", "a/1", "1"]);
    server.delete("a/1");
    past.extend(server.past("a/", past.until).expect("it tells"));
    let lease = i64::from_str_radix(lease, 16).expect("a number");
    let gone =
        |revision, key: &str, number, lease| Gone { revision, key: key.into(), number, lease };
    let expected = [gone(4, "a/1", 1_002, lease), gone(4, "a/2", 3, lease), gone(6, "a/1", 5, 0)];
    assert_eq!((past.until, past.gone), (6, expected.into()));
    assert_eq!(server.past("a/", 6), Some(Past { until: 6, gone: vec![] }));
}

/// Who had a lease end is read from the log: a member that was asked to, or the leader, by itself.
#[test]
fn who_ended_a_lease() {
    let cluster = EtcdCluster::start();
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let grant = |ttl: &str| {
        let granted = cluster.any().ctl(&["lease", "grant", ttl]);
        let lease = granted.split(' ').nth(1).expect("`lease 32695… granted with TTL(60s)`");
        (lease.to_owned(), i64::from_str_radix(lease, 16).expect("a number"))
    };
    let ((_, short), (name, long)) = (grant("2"), grant("60"));
    cluster.member(follower).revoke(&name);
    eventually_blocking("the other to run out", || cluster.any().leases().is_empty());
    let ended = cluster.any().who_ended();
    assert_eq!(ended[&short].by, cluster.asker(leader));
    assert_eq!(ended[&long].by, cluster.asker(follower));
    let agreed = cluster.member(leader).metrics().agreed();
    assert!(ended[&long].index < ended[&short].index && ended[&short].index <= agreed);
}

/// With users, nobody gets in without a password, and each to what is theirs.
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

/// What was saved comes back, and what came after it does not: revisions go back too.
#[test]
fn backups() {
    let server = EtcdServer::start();
    server.ctl(&["put", "a", "1"]);
    let (backup, saved_at) = (server.save(), server.revision());
    server.ctl(&["put", "b", "1"]);
    server.restore(&backup);
    assert_eq!((server.keys(""), server.revision()), (vec!["a".into()], saved_at));
}

/// A cluster does without any one of its members, and only then.
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

/// A leader that is cut off is succeeded, steps down, and follows when it is back; a follower that
/// is cut off is not missed.
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

/// A member is replaced by one that starts with nothing and gets everything.
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
    // Now, since the one that was cut off may have led until then.
    let leader = cluster.leader();
    assert!(cluster.hand_on());
    eventually_blocking("another to lead", || cluster.leader() != leader);
}

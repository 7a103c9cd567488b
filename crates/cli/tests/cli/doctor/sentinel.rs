//! Sentinels: each of them, all together, and the master that they name.

use tenure_testkit::servers::SentinelSet;
use tenure_testkit::wait::eventually_blocking;

use super::{doctor, doctor_with};

/// The URL of some of the Sentinels.
fn url(ports: &[u16], service: &str) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis+sentinel://{}/{service}", hosts.join(","))
}

fn ports(set: &SentinelSet) -> Vec<u16> {
    set.sentinels().iter().map(|sentinel| sentinel.port()).collect()
}

/// Three Sentinels and durable servers: 0. Then one Sentinel fails, and then two.
#[test]
fn sentinels_that_go() {
    let set = SentinelSet::start();
    for node in set.nodes() {
        for (name, value) in
            [("appendonly", "yes"), ("appendfsync", "always"), ("min-replicas-to-write", "1")]
        {
            node.client().command(&["CONFIG", "SET", name, value]);
        }
    }
    let found = doctor(&set.url());
    found.all_are("good");
    found.ends_with(0);
    assert_eq!(found.all("sentinel").len(), 3);
    let master = format!("127.0.0.1:{}", set.master().port());
    found.has("sentinel", "good", &format!(r"names {master} as the master \(epoch 0\)"));
    found.has("sentinels-agree", "good", &format!(r"3 of them name {master} \(epoch 0\)"));
    found.has("sentinels-named", "good", "the URL names 3, and they know of 3");
    found.has("failover-votes", "good", "OK 3 usable Sentinels.+");
    found.has("failover-time", "good", "a dead master is noticed after 1s; a lease lasts 30s");
    found.has("replication", "good", "2 replicas; a write needs 1 of them up to date");

    let found = doctor_with(&set.url(), &["--ttl", "1s"]);
    found.has("failover-time", "warning", ".+: it ends before another server can renew it");

    let some = doctor(&url(&ports(&set)[..1], "locks"));
    let seen = "the URL names 1 of 3: those that are not named are not asked";
    some.has("sentinels-named", "warning", seen);
    some.ends_with(1);

    set.sentinels()[2].kill();
    let found = doctor(&set.url());
    found.has("sentinel", "warning", ".+cannot connect: Connection refused.+");
    found.ends_with(1);
    set.sentinels()[1].kill();
    let mut last = doctor(&set.url());
    eventually_blocking("the last to notice", || {
        last = doctor(&set.url());
        last.all("failover-votes")[0]["verdict"] == "warning"
    });
    last.has("failover-votes", "warning", ".*NOQUORUM.+");
    last.has("sentinel", "unsafe", ".+cannot connect: Connection refused.+");
    last.ends_with(2);
}

/// One Sentinel and no replica are too few. Sentinels of two masters do not agree. A Sentinel is not a server
/// for locks, and does not know a service that it does not monitor.
#[test]
fn sentinels_that_are_too_few_or_others() {
    let (one, other) = (SentinelSet::start_small(), SentinelSet::start_small());
    let found = doctor(&one.url());
    found.has(
        "sentinels-named",
        "warning",
        "1 in all: fewer than 3 cannot fail over when one is gone",
    );
    found.has("replication", "warning", "no replica: nothing can replace the master");
    found.ends_with(1);
    let both = url(&[ports(&one)[0], ports(&other)[0]], "locks");
    let found = doctor(&both);
    let names = r"127.0.0.1:\d+ names 127.0.0.1:\d+ \(epoch 0\)";
    found.has("sentinels-agree", "warning", &format!("{names}, {names}"));
    let found = doctor(&format!("redis://127.0.0.1:{}", ports(&one)[0]));
    found.has("role", "unsafe", "it is a Sentinel");
    found.ends_with(2);
    let found = doctor(&url(&ports(&one), "other"));
    found.has("reachable", "unsafe", ".+the Sentinel knows no service `other`");
    found.has("sentinel", "unsafe", ".+the Sentinel knows no service `other`");
    found.ends_with(2);
}

/// t66: a wrong Sentinel password is not shown.
#[test]
fn t66_passwords() {
    let set = SentinelSet::start_secret("master-secret", "sentinel-secret");
    let bare = url(&ports(&set), "locks").replace("://", "://:master-secret@");
    let right = doctor(&format!("{bare}?sentinel_password=sentinel-secret"));
    right.has("sentinel", "good", "names .+");
    right.has("lock", "good", "granted .+");
    let wrong = doctor(&format!("{bare}?sentinel_password=hunter2"));
    wrong.has("sentinel", "unsafe", ".+the user name or password is wrong.+");
    wrong.ends_with(2);
    for secret in ["hunter2", "master-secret", "sentinel-secret"] {
        assert!(!format!("{right:?} {wrong:?}").contains(secret));
    }
}

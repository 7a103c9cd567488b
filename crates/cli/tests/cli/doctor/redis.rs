//! One Redis server: its role, and whether it keeps the locks that it granted.

use tenure::fence::next_server_fence;
use tenure::time::UnixMillis;
use tenure_testkit::servers::proxy::{Action, Proxy, Rule, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::eventually_blocking;

use crate::common::assert_matches;

use super::{doctor, doctor_with, printed};

fn set(server: &RedisServer, name: &str, value: &str) {
    let done = server.client().command(&["CONFIG", "SET", name, value]);
    assert_eq!(done, Reply::Text("OK".into()), "{name} {value}");
}

fn info(server: &RedisServer, section: &str) -> String {
    server.client().text(&["INFO", section]).unwrap()
}

/// A durable server: everything is good, 0. The checks leave no key except the fence.
#[test]
fn a_server_in_good_health() {
    let server = RedisServer::start_persistent();
    let run = printed(&server.url());
    assert_eq!(run.code, Some(0), "{run:?}");
    let at = format!("127.0.0.1:{}", server.port());
    assert_matches(
        &run.out,
        &format!(
            "good  reachable    {at}  connect, log in, agree on RESP3: connected in [^\n]+\n\
             good  latency      {at}  PING, 11 times: median \\S+, slowest \\S+ of 11; a ttl of 30s is \\d+ times the median\n\
             good  version      {at}  INFO server: Redis \\S+\n\
             good  role         {at}  INFO server, INFO replication: master\n\
             good  clock        {at}  TIME: \\S+ (ahead of|behind) ours\n\
             good  persistence  {at}  INFO persistence, CONFIG GET appendonly, appendfsync, save: \
             the append-only file is synced with every write\n\
             good  eviction     {at}  INFO memory, CONFIG GET maxmemory, maxmemory-policy: `noeviction`, and no limit\n\
             good  replication  {at}  INFO replication, CONFIG GET min-replicas-to-write, min-replicas-max-lag: no replica\n\
             good  pub-sub      {at}  SUBSCRIBE on a second connection \\(RESP3\\), PUBLISH on the first: \
             the message arrived, all in \\S+\n\
             good  rights       {at}  send every command that locks need, on keys of our own, in a form that \
             changes nothing: all of them are allowed\n\
             good  lock         redis +acquire a lock of our own, ask for it again, renew and release it: \
             granted with fence \\d+, renewed and released in \\S+\n"
        ),
    );
    assert_eq!(run.err, "tenure: 11 checks: 11 good\n");
    doctor(&server.url()).all_are("good");
    let keys = server.client().command(&["KEYS", "*"]);
    assert_eq!(keys, Reply::Many(vec![Reply::Text("tenure:fence".into())]));
}

/// A count of fences that a clock has once raised is a warning: on another engine, fences would fall.
#[test]
fn fences_ahead_of_the_clock() {
    let server = RedisServer::start();
    let hour_ahead = next_server_fence(0, UnixMillis(UnixMillis::now().0 + 3_600_000)).unwrap();
    server.client().command(&["SET", "tenure:fence", &hour_ahead.to_string()]);
    let found = doctor(&server.url());
    let seen = r"granted with fence \d+, .+; the fence is 3(600|59\d)s ahead of our clock";
    let flaw = found.has("lock", "warning", seen);
    assert_eq!(
        flaw["advice"],
        "set the clocks right; before you move to another engine wait for so long, or its fences are lower"
    );
    found.ends_with(1);
}

/// What a restart would lose: everything, the time since the last snapshot, or the last second.
#[test]
fn persistence() {
    let server = RedisServer::start();
    let found = doctor(&server.url());
    let flaw =
        found.has("persistence", "warning", "nothing is saved: a restart forgets every lock");
    assert_eq!(
        flaw["advice"],
        "set `appendonly yes` and `appendfsync always`, or have the resource check fences"
    );
    found.ends_with(1);
    set(&server, "save", "3600 1");
    let seen = r"snapshots only \(`save 3600 1`\): a restart forgets the locks since the last";
    doctor(&server.url()).has("persistence", "warning", seen);
    set(&server, "appendonly", "yes");
    set(&server, "appendfsync", "everysec");
    let seen = "the append-only file is synced every second: .+";
    doctor(&server.url()).has("persistence", "warning", seen);
    set(&server, "appendfsync", "no");
    let seen = r"the append-only file is synced when the system decides \(`appendfsync no`\): .+";
    doctor(&server.url()).has("persistence", "warning", seen);
}

/// A server that cannot save rejects writes, so no lock can be acquired.
#[test]
fn a_save_that_failed() {
    let server = RedisServer::start();
    set(&server, "save", "3600 1");
    std::fs::remove_dir_all(server.dir()).unwrap();
    server.client().command(&["BGSAVE"]);
    eventually_blocking("the save to fail", || {
        info(&server, "persistence").contains("rdb_last_bgsave_status:err")
    });
    let found = doctor(&server.url());
    found.has("persistence", "unsafe", r"the last save failed \(`rdb_last_bgsave_status:err`\)");
    found.has("lock", "unsafe", ".+cannot save its data and refuses all writes: MISCONF.+");
    found.ends_with(2);
}

/// F3, t10: a server that would evict locks when full: a warning without a memory limit, unsafe with one.
#[test]
fn t10_eviction_is_warned_about() {
    for policy in ["volatile-lru", "volatile-ttl", "allkeys-lru"] {
        let server = RedisServer::start_with(&["--maxmemory-policy", policy]);
        let found = doctor(&server.url());
        let seen =
            format!("`{policy}`, and no limit yet: with `maxmemory` set, locks would be evicted");
        found.has("eviction", "warning", &seen);
        found.ends_with(1);
        set(&server, "maxmemory", "100mb");
        let found = doctor(&server.url());
        let seen = format!(
            "`{policy}` with `maxmemory 104857600`: a full server evicts locks that are held"
        );
        let flaw = found.has("eviction", "unsafe", &seen);
        assert!(
            flaw["advice"].as_str().unwrap().contains("`maxmemory-policy noeviction`"),
            "{flaw}"
        );
        found.ends_with(2);
    }
}

/// t41: `noeviction` is good until the server is nearly full; when it is full, no lock can be acquired.
#[test]
fn t41_a_server_that_fills_up() {
    let server = RedisServer::start_with(&["--maxmemory", "1gb"]);
    doctor(&server.url()).has("eviction", "good", "`noeviction`: a full server refuses .+");
    server.client().command(&["SETRANGE", "big", "20000000", "x"]);
    let said = info(&server, "memory");
    let used = said.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let used: u64 = used.trim().parse().unwrap();
    set(&server, "maxmemory", &(used * 100 / 95).to_string());
    let found = doctor(&server.url());
    found.has("eviction", "warning", r"`noeviction`, and 9\d % of `maxmemory` is in use: .+");
    found.ends_with(1);
    set(&server, "maxmemory", "1mb");
    let found = doctor(&server.url());
    found.has("lock", "unsafe", r".+the server is full \(maxmemory\): OOM.+");
    found.ends_with(2);
}

/// Replicas without `min-replicas-to-write`, with it, and with it but no replica in time.
#[test]
fn replication() {
    let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.start_replica();
    let found = doctor(&server.url());
    let flaw = found.has("replication", "warning", "1 replica, and `min-replicas-to-write 0`: .+");
    assert!(flaw["advice"].as_str().unwrap().contains("`min-replicas-to-write 1`"), "{flaw}");
    set(&server, "min-replicas-max-lag", "10");
    set(&server, "min-replicas-to-write", "1");
    eventually_blocking("the replica to be in time", || {
        info(&server, "replication").contains("min_slaves_good_slaves:1")
    });
    let seen = "1 replica; a write needs 1 of them up to date";
    doctor(&server.url()).has("replication", "good", seen);
    replica.kill();
    eventually_blocking("the replica to be missed", || {
        info(&server, "replication").contains("min_slaves_good_slaves:0")
    });
    let found = doctor(&server.url());
    let seen = "no replica in time, and `min-replicas-to-write` is 1: every write is refused";
    found.has("replication", "unsafe", seen);
    found.has("lock", "unsafe", ".+too few replicas and refuses all writes: NOREPLICAS.+");
    found.ends_with(2);
}

/// t38: a replica and a cluster node cannot be used as a single server.
#[test]
fn t38_roles() {
    let server = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.start_replica();
    let found = doctor(&replica.url());
    found.has("role", "unsafe", &format!("replica of 127.0.0.1:{}", server.port()));
    assert!(found.all("lock").is_empty(), "there is no use in trying one");
    found.ends_with(2);
    let cluster = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let found = doctor(&cluster.url());
    found.has("role", "unsafe", "it runs in cluster mode");
    found.ends_with(2);
}

/// C1, t64, t124: an old server. A proxy changes the version of a real one, because no old one is installed.
#[test]
fn t64_versions() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let rewrite = Action::Rewrite(b"redis_version:7.0".into(), b"redis_version:6.0".into());
    proxy.rule(Rule::on(Way::Replies, rewrite).containing("redis_version"));
    let found = doctor(&proxy.url());
    let flaw = found.has("version", "unsafe", r"Redis 6\.0\.\d+");
    assert_eq!(flaw["advice"], "use version 6.2 or later: an older one is refused");
    found.ends_with(2);
    proxy.heal();
    let unknown = Action::Rewrite(b"HELLO".into(), b"OLLEH".into());
    proxy.rule(Rule::on(Way::Requests, unknown).containing("HELLO"));
    let named = Action::Rewrite(b"'OLLEH'".into(), b"'HELLO'".into());
    proxy.rule(Rule::on(Way::Replies, named).containing("OLLEH"));
    let found = doctor(&proxy.url());
    found.has("reachable", "unsafe", ".+too old: version 6.2 or later is needed");
    found.ends_with(2);
}

/// t11, t12: a server whose clock is ahead or behind.
#[test]
fn t11_t12_clocks() {
    let server = RedisServer::start_with_clock(&["--appendonly", "yes", "--appendfsync", "always"]);
    for (offset, way) in [("+60s", "ahead of"), ("-60s", "behind")] {
        server.clock().set(offset);
        let found = doctor(&server.url());
        found.has("clock", "warning", &format!(r"(59|60)\.\ds {way} ours"));
        found.ends_with(1);
    }
}

/// t56: how much latency is too much depends on the ttl: a warning, unsafe, and no reply at all.
#[test]
fn t56_latency() {
    let server = RedisServer::start_persistent();
    let proxy = Proxy::to(server.port());
    let pongs = |millis| {
        proxy.heal();
        let late = Action::Delay(std::time::Duration::from_millis(millis));
        proxy.rule(Rule::on(Way::Replies, late).containing("PONG"));
    };
    pongs(60);
    let found = doctor_with(&proxy.url(), &["--ttl", "1s"]);
    found.has(
        "latency",
        "warning",
        r"median \d+\.\dms, slowest \S+ of 11; a ttl of 1s is \d+ times the median",
    );
    found.ends_with(1);
    doctor_with(&proxy.url(), &["--ttl", "1m"]).all_are("good");
    pongs(350);
    doctor_with(&proxy.url(), &["--ttl", "1s"]).has("latency", "unsafe", "median .+");
    proxy.heal();
    proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing("PONG"));
    doctor(&proxy.url()).has("latency", "unsafe", ".+no answer within 2s");
}

/// Waiters are notified by messages; if messages do not arrive, there is a warning.
#[test]
fn messages_that_do_not_arrive() {
    let server = RedisServer::start_persistent();
    let proxy = Proxy::to(server.port());
    proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing("$7\r\nmessage\r\n"));
    let found = doctor(&proxy.url());
    found.has("pub-sub", "warning", "the message did not arrive: waiters poll .+");
    found.ends_with(1);
}

/// An unreachable or paused server is a finding like any other: 2.
#[test]
fn no_server_is_there() {
    let server = RedisServer::start();
    let url = server.url();
    server.pause();
    let found = doctor(&url);
    found.has("reachable", "unsafe", ".+no connection within 2s");
    server.go_on();
    drop(server);
    let found = doctor(&url);
    let flaw =
        found.has("reachable", "unsafe", r".+cannot connect: Connection refused \(os error 111\)");
    assert_eq!(flaw["advice"], "start the server, open the way to it, or correct host and port");
    assert_eq!(found.findings.len(), 1);
    found.ends_with(2);
    let run = printed(&url);
    assert_eq!((run.code, run.err.as_str()), (Some(2), "tenure: 1 check: 1 unsafe\n"));
}

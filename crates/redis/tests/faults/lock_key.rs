//! Locks under the names that existing `SET NX PX` clients use. The scripts are copied verbatim from the
//! documents D1, D3 and D4.

use std::time::Duration;

use tenure_core::Locker;
use tenure_core::doctor::Verdict;
use tenure_core::watch::EventKind;
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisClient, RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{TIMEOUT, get, pttl, whole};

/// So long that no renewal and no expiry happens while a test waits.
const LONG: Duration = Duration::from_secs(300);

/// A group of programs that acquire their locks with `SET NX PX`.
struct Fleet {
    template: &'static str,
    /// The key of the lock `order:1`.
    lock: &'static str,
    /// The value that one of its processes writes.
    value: &'static str,
    release: &'static str,
    /// The script, and its time argument.
    renewal: Option<(&'static str, &'static str)>,
}

const D1: Fleet = Fleet {
    template: "distributed_lock:{key}",
    lock: "distributed_lock:order:1",
    value: "1f0c7a52-6a0e-4f43-8f4e-3f0a5f6f2f10:17",
    release: "if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
else
    return 0
end",
    renewal: Some((
        "if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('pexpire', KEYS[1], ARGV[2])
else
    return 0
end",
        "600000",
    )),
};

const D3: Fleet = Fleet {
    template: "{key}",
    lock: "order:1",
    value: "trace-42",
    release: r#"
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
else
    return 0
end
"#,
    renewal: Some((
        r#"
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("expire", KEYS[1], ARGV[2])
else
    return 0
end
"#,
        "600",
    )),
};

const D4: Fleet = Fleet {
    template: "{key}",
    lock: "order:1",
    value: "b7b1f2fe-57c9-4d2c-9a55-0d3f3c1a2d11:1",
    release: r#"if redis.call("get",KEYS[1]) == ARGV[1] then
    return redis.call("del",KEYS[1])
else
    return 0
end"#,
    renewal: None,
};

impl Fleet {
    /// Whether it got the lock.
    fn take(&self, client: &mut RedisClient, ttl: &str) -> bool {
        match client.command(&["SET", self.lock, self.value, "NX", "PX", ttl]) {
            Reply::Text(ok) => ok == "OK",
            Reply::Nil => false,
            other => panic!("{other:?}"),
        }
    }

    fn release(&self, client: &mut RedisClient) -> Reply {
        client.command(&["EVAL", self.release, "1", self.lock, self.value])
    }

    /// Renews the lock. A fleet that never renews sends nothing and returns `expected`.
    fn renew(&self, client: &mut RedisClient, expected: i64) -> Reply {
        match self.renewal {
            Some((script, time)) => {
                client.command(&["EVAL", script, "1", self.lock, self.value, time])
            }
            None => Reply::Int(expected),
        }
    }
}

/// A locker of its own, whose locks are named by the template.
async fn locker(server: &RedisServer, template: &str) -> Locker {
    let builder = Redis::builder(&server.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    Locker::new(builder.lock_key(template).connect().await.unwrap())
}

/// D1, D3, D4: our lock keeps the fleet out, and the fleet's release and renewal do not change it.
#[tokio::test]
async fn ours_keeps_a_fleet_out() {
    let (server, ttl) = (RedisServer::start(), Duration::from_secs(60));
    for fleet in [D1, D3, D4] {
        let (ours, mut theirs) = (locker(&server, fleet.template).await, server.client());
        let guard = ours.lock("order:1").ttl(ttl).await.unwrap();
        let value = get(&server, fleet.lock).unwrap();
        assert!(!fleet.take(&mut theirs, "60000"));
        assert_eq!(fleet.renew(&mut theirs, 0), Reply::Int(0));
        assert!(pttl(&server, fleet.lock) <= 60_000, "their renewal does not lengthen ours");
        assert_eq!(fleet.release(&mut theirs), Reply::Int(0));
        assert_eq!(get(&server, fleet.lock), Some(value));
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        assert!(fleet.take(&mut theirs, "60000"), "a released lock is theirs to take");
        assert_eq!(fleet.release(&mut theirs), Reply::Int(1));
    }
}

/// D1, D3, D4, G3: the fleet's lock keeps us out and is not changed. We get the lock when the fleet releases it, with a
/// higher fence than before.
#[tokio::test]
async fn a_fleets_lock_is_waited_for() {
    let server = RedisServer::start();
    for fleet in [D1, D3, D4] {
        let (ours, mut theirs) = (locker(&server, fleet.template).await, server.client());
        let guard = ours.lock("order:1").await.unwrap();
        let before = guard.fence();
        guard.release().await.unwrap();
        assert!(fleet.take(&mut theirs, "60000"));
        assert!(ours.try_lock("order:1").await.unwrap().is_none());
        let holder = ours.inspect("order:1").await.unwrap().expect("it is held").holders.remove(0);
        assert_eq!((holder.token, holder.fence, holder.holder.process), (None, None, None));
        let waiting = tokio::spawn(ours.lock("order:1").into_future());
        assert_eq!(fleet.renew(&mut theirs, 1), Reply::Int(1));
        assert!(pttl(&server, fleet.lock) > 500_000 || fleet.renewal.is_none());
        assert_eq!(get(&server, fleet.lock).as_deref(), Some(fleet.value));
        assert!(!waiting.is_finished());
        assert_eq!(fleet.release(&mut theirs), Reply::Int(1));
        let guard = within("the lock", waiting).await.unwrap().unwrap();
        assert!(guard.fence() > before);
        guard.release().await.unwrap();
    }
}

/// D1, D3, D4: if a process of the fleet dies, we wait until its lock expires, and no longer.
#[tokio::test]
async fn a_fleets_lock_expires() {
    let server = RedisServer::start();
    for fleet in [D1, D3, D4] {
        let (ours, mut theirs) = (locker(&server, fleet.template).await, server.client());
        assert!(fleet.take(&mut theirs, "500"));
        let guard = within("the lock", ours.lock("order:1").into_future()).await.unwrap();
        assert_eq!(fleet.release(&mut theirs), Reply::Int(0), "it is ours by now");
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
}

/// D1, D3, D4: if the fleet takes over a lock that we lost, we neither renew nor release it.
#[tokio::test]
async fn what_was_lost_to_a_fleet_is_theirs() {
    let server = RedisServer::start();
    for fleet in [D1, D3, D4] {
        let (ours, mut theirs) = (locker(&server, fleet.template).await, server.client());
        let renewed = ours.lock("order:1").ttl(LONG).await.unwrap();
        theirs.command(&["DEL", fleet.lock]);
        assert!(fleet.take(&mut theirs, "60000"));
        assert!(renewed.renew().await.unwrap_err().is_lost());
        assert!(renewed.release().await.unwrap_err().is_lost());
        assert_eq!(get(&server, fleet.lock).as_deref(), Some(fleet.value));
        assert!(pttl(&server, fleet.lock) <= 60_000);
        assert_eq!(fleet.release(&mut theirs), Reply::Int(1));

        let released = ours.lock("order:1").ttl(LONG).await.unwrap();
        theirs.command(&["DEL", fleet.lock]);
        assert!(fleet.take(&mut theirs, "60000"));
        assert!(released.release().await.is_err());
        assert_eq!(get(&server, fleet.lock).as_deref(), Some(fleet.value));
        theirs.command(&["DEL", fleet.lock]);
    }
}

/// Our processes share one queue for a key, whichever template leads to it. A lock without a template whose
/// name is the same has another queue.
#[tokio::test(flavor = "multi_thread")]
async fn one_queue_for_each_lock() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server, D1.template).await, locker(&server, "{key}").await);
    let plain = Locker::new(Redis::connect(&server.url()).await.unwrap());
    let (other, unnamed) =
        (plain.lock(D1.lock).await.unwrap(), plain.lock("order:1").await.unwrap());
    let guard = a.lock("order:1").ttl(LONG).await.unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn(b.lock(D1.lock).ttl(LONG).into_future());
    let queue = format!("tenure:named:queue:{}", D1.lock);
    eventually("b to wait", || async {
        server.client().command(&["ZCARD", &queue]) == Reply::Int(1)
    })
    .await;
    assert!(get(&server, D1.lock).unwrap().starts_with('*'), "the holder is marked as contended");
    other.release().await.unwrap();
    unnamed.release().await.unwrap();
    assert!(plain.try_lock(D1.lock).await.unwrap().is_some(), "nobody waits for that one");
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    let next = within("the turn of b", waiting).await.unwrap().unwrap();
    assert!(next.fence() > fence);
    assert!(a.try_lock("order:1").await.unwrap().is_none());
    next.release().await.unwrap();
}

/// A lock whose key would be one of tenure's own keys is refused before anything is sent, and is not shown.
#[tokio::test]
async fn our_own_keys_are_no_locks() {
    let server = RedisServer::start();
    let ours = locker(&server, "{key}").await;
    ours.lock("order:1").await.unwrap().release().await.unwrap();
    for name in ["tenure:fence", "tenure:lock:order:1", "tenure:named:queue:order:1"] {
        let before = get(&server, name);
        for refused in [ours.lock(name).await.unwrap_err(), ours.try_lock(name).await.unwrap_err()]
        {
            assert!(refused.is_invalid(), "{refused:?}");
            let why = format!("the key `{name}` starts with `tenure:`, as tenure's own do");
            assert!(whole(&refused).ends_with(&why), "{}", whole(&refused));
        }
        assert!(ours.inspect(name).await.unwrap().is_none(), "{name}");
        assert_eq!(get(&server, name), before);
    }
}

/// If any key may be a lock, a list and a watch show only our locks and no other keys of the server.
/// `inspect` shows a key with any holder.
#[tokio::test(flavor = "multi_thread")]
async fn other_keys_are_not_listed() {
    let server = RedisServer::start();
    let (ours, other) = (locker(&server, "{key}").await, locker(&server, "{key}").await);
    let mut client = server.client();
    client.command(&["SET", "cache", "x", "PX", "600000"]);
    client.command(&["LPUSH", "list", "x"]);
    let mut watch = ours.watch("*").await.unwrap();
    assert_eq!(watch.held(), 0);
    client.command(&["SET", "another", "x", "PX", "600000"]);
    let guard = other.lock("order:1").ttl(LONG).await.unwrap();
    let event = within("an event", watch.next()).await.unwrap();
    assert_eq!((event.key.as_str(), event.what), ("order:1", EventKind::Acquired));
    assert_eq!(event.fence, Some(guard.fence()));
    let listed = ours.list("*").await.unwrap();
    assert_eq!(listed.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["order:1"]);
    assert!(ours.inspect("cache").await.unwrap().is_some());
    client.command(&["DEL", "another"]);
    guard.release().await.unwrap();
    let event = within("an event", watch.next()).await.unwrap();
    assert_eq!((event.key.as_str(), event.what), ("order:1", EventKind::Released));
}

/// G3: if the template distinguishes locks from other keys, a list shows the locks of the fleet too.
#[tokio::test]
async fn a_fleets_locks_are_listed() {
    let server = RedisServer::start();
    let ours = locker(&server, "{key}:lock").await;
    let mut client = server.client();
    client.command(&["SET", "order:2:lock", "theirs", "PX", "600000"]);
    client.command(&["SET", "order:3:value", "x", "PX", "600000"]);
    let _guard = ours.lock("order:1").await.unwrap();
    let mut listed: Vec<_> = ours.list("order:*").await.unwrap();
    listed.sort_by(|one, other| one.key.cmp(&other.key));
    let names: Vec<_> = listed.iter().map(|info| info.key.as_str()).collect();
    assert_eq!(names, ["order:1", "order:2"]);
    assert!(listed[0].holders[0].token.is_some() && listed[1].holders[0].token.is_none());
}

/// The URL accepts the same template as the builder. If they differ, or the template is invalid, the error quotes it.
#[tokio::test]
async fn set_by_the_url() {
    let server = RedisServer::start();
    let url = format!("{}?lock_key=distributed_lock:{{key}}", server.url());
    let guard = Locker::new(Redis::connect(&url).await.unwrap()).lock("order:1").await.unwrap();
    assert!(get(&server, D1.lock).is_some());
    guard.release().await.unwrap();
    let escaped = format!("{}?lock_key=%7Bkey%7D", server.url());
    let refused = |url: &str, template: &str| {
        let builder = Redis::builder(url).lock_key(template);
        builder.connect_later().map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&escaped, D1.template),
        "lock_key `distributed_lock:{key}` is not that of the url, `{key}`"
    );
    assert!(Redis::builder(&escaped).lock_key("{key}").connect_later().is_ok());
    assert_eq!(
        refused(&server.url(), "tenure:fence:{key}"),
        "invalid lock_key `tenure:fence:{key}`: `tenure:` starts tenure's own keys; choose another `prefix`"
    );
    let without = Redis::builder(&format!("{}?lock_key=order", server.url())).connect_later();
    assert_eq!(
        without.map(drop).unwrap_err().to_string(),
        "invalid lock_key `order`: expected `{key}` once, as in `distributed_lock:{key}`"
    );
}

/// The doctor names the rights on the keys of the template too; these rights are enough to wait and to get the lock.
#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_a_template() {
    let server = RedisServer::start();
    let base = ["ACL", "SETUSER", "limited", "reset", "on", ">p", "~tenure:*", "+@all"];
    server.client().command(&base);
    let url = format!("redis://limited:p@127.0.0.1:{}", server.port());
    let connect = || async {
        let builder = Redis::builder(&url).lock_key(D1.template);
        Locker::new(builder.connect().await.unwrap())
    };
    let ours = connect().await;
    let findings = ours.diagnose().await.unwrap();
    let rights = findings.iter().find(|finding| finding.check == "rights").unwrap();
    assert_eq!(rights.verdict, Verdict::Unsafe, "{rights:?}");
    let advice = rights.advice.as_deref().unwrap();
    let line = advice.split('`').find(|part| part.starts_with("ACL ")).unwrap();
    assert!(line.contains(" ~tenure:* ~distributed_lock:* "), "{line}");
    let words: Vec<_> = ["ACL", "SETUSER", "limited", "reset", "on", ">p"]
        .into_iter()
        .chain(line.split(' ').skip(3))
        .collect();
    assert_eq!(server.client().command(&words), Reply::Text("OK".into()));
    server.client().command(&["ACL", "LOG", "RESET"]);
    let (a, b) = (connect().await, connect().await);
    let guard = a.lock("order:1").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("order:1").ttl(LONG).into_future());
    eventually("b to wait", || async {
        get(&server, D1.lock).is_some_and(|value| value.starts_with('*'))
    })
    .await;
    guard.release().await.unwrap();
    within("the turn of b", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(server.client().command(&["ACL", "LOG"]), Reply::Many(Vec::new()));
}

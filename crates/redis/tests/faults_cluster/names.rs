//! Which slot a lock is in, and which other clients use it there.

use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{LONG, ask, calls, cluster_at, home, keys, lock, lock_key, locker_at, slot};

/// t58: names with braces are held, waited for and handed over like any others, and all keys of a lock are in
/// the slot that the server computes for the lock's own key.
#[tokio::test(flavor = "multi_thread")]
async fn t58_names_with_braces() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    for name in ["order:1", "{}", "}{", "}x", "a}b{c", "{a}{b}", "a{b}c", "{", "{}{x}", "ü{é}"] {
        let (there, home) = (slot(&cluster, name), home(&cluster, name));
        let held = a.lock(name).ttl(LONG).await.unwrap();
        let waiting = tokio::spawn(b.lock(name).ttl(LONG).into_future());
        let is_there = |key: &&String| cluster.slot_of(key) == there;
        let ours = || async { keys(home).iter().filter(is_there).count() >= 4 };
        eventually("lock, fence, queue and beats in one slot", ours).await;
        let all: Vec<_> = cluster.nodes().iter().flat_map(keys).collect();
        let with_name = all.iter().filter(|key| key.ends_with(&format!(":{name}")));
        with_name.for_each(|key| assert_eq!(cluster.slot_of(key), there, "{key}"));
        let fence = held.fence();
        held.release().await.unwrap();
        let next = within("b's turn", waiting).await.unwrap().unwrap();
        assert!(next.fence() > fence, "{name}");
        next.release().await.unwrap();
        assert_eq!(lock(home, name), None);
    }
}

/// A plain client that uses `SET NX` shares locks with us, both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_shares_locks() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    let set =
        |node: &RedisServer| ask(node, &["SET", &lock_key("k"), "theirs", "NX", "PX", "60000"]);
    let held = a.lock("k").await.unwrap();
    assert_eq!(set(home(&cluster, "k")), Reply::Nil);
    held.release().await.unwrap();
    assert_eq!(set(home(&cluster, "k")), Reply::Text("OK".into()));
    assert!(a.try_lock("k").await.unwrap().is_none());
}

/// A template names the key of a lock, which determines its slot, also by braces of the template. A plain
/// client shares the lock there, and all other keys of the lock are in the same slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_decides_on_the_slot() {
    let cluster = RedisCluster::start_masters();
    for (template, key) in
        [("{key}", "order:1"), ("l:{{key}}", "l:{order:1}"), ("{t}{key}:x", "{t}order:1:x")]
    {
        let url = format!("{}?lock_key={template}", cluster.url());
        let (a, b) = (locker_at(&url).await, locker_at(&url).await);
        let there = cluster.slot_of(key);
        let home = cluster.owner(there);
        let set = || ask(home, &["SET", key, "theirs", "NX", "PX", "60000"]);
        let held = a.lock("order:1").ttl(LONG).await.unwrap();
        assert_eq!(set(), Reply::Nil);
        let waiting = tokio::spawn(b.lock("order:1").ttl(LONG).into_future());
        let ours = || async { keys(home).iter().filter(|name| name.ends_with(key)).count() >= 3 };
        eventually("lock, queue and beats", ours).await;
        let all: Vec<_> = cluster.nodes().iter().flat_map(keys).collect();
        for name in all.iter().filter(|name| name.ends_with(key)) {
            assert_eq!(cluster.slot_of(name), there, "{name}");
        }
        held.release().await.unwrap();
        let next = within("b's turn", waiting).await.unwrap().unwrap();
        let info = a.inspect("order:1").await.unwrap().expect("it is held");
        assert_eq!(info.holders[0].fence, Some(next.fence()));
        next.release().await.unwrap();
        assert_eq!(set(), Reply::Text("OK".into()));
        assert!(a.try_lock("order:1").await.unwrap().is_none());
        assert_eq!(ask(home, &["DEL", key]), Reply::Int(1));
    }
}

/// Requests are spread over the masters as the slots are.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_spread() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    for n in 0..600 {
        a.lock(format!("k:{n}")).await.unwrap().release().await.unwrap();
    }
    let calls: Vec<_> = cluster.masters().iter().map(|node| calls(node, "evalsha")).collect();
    let all: u64 = calls.iter().sum();
    assert!(calls.iter().all(|calls| *calls > all / 4), "{calls:?}");
    assert!(all < 1_400, "two requests for each: {calls:?}");
}

/// A server that is not in a cluster is refused with the scheme to use; a prefix with braces is refused too.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used() {
    let server = RedisServer::start();
    let url = format!("redis-cluster://127.0.0.1:{}", server.port());
    let refused = cluster_at(&url).await.unwrap_err();
    assert!(refused.is_unsupported(), "{refused:?}");
    let said = format!("{refused:?}");
    assert!(said.contains("it is no node of a cluster; `redis://HOST` is for it"), "{said}");
    let braces = tenure_redis::Cluster::builder(&url).prefix("a{b").cluster_later().unwrap_err();
    assert_eq!(
        braces.to_string(),
        "invalid prefix `a{b`: in a cluster, braces would put all locks into one slot"
    );
    let down = cluster_at("redis-cluster://127.0.0.1:1").await.unwrap_err();
    assert!(down.is_unavailable(), "{down:?}");
}

/// A cluster node used as a single server is refused with the scheme to use.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_no_server() {
    let cluster = RedisCluster::start_masters();
    let refused = tenure_redis::Redis::connect(&cluster.nodes()[0].url()).await.unwrap_err();
    assert!(refused.is_unsupported(), "{refused:?}");
    assert!(format!("{refused:?}").contains("`redis-cluster://HOST` is for it"), "{refused:?}");
}

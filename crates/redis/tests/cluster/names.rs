//! Which slot a lock is in, and who else meets it there.

use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{LONG, ask, calls, cluster_at, home, keys, lock, lock_key, locker_at, slot};

/// t58: names with braces are held, waited for and handed over as any others, and all keys of a lock are
/// in the slot that the server counts for its own key.
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

/// A plain client that takes `SET NX` shares locks with us, both ways.
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

/// What is no cluster is refused with what is for it; a prefix with braces is refused too.
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

/// A node that is asked as if it stood alone says what is for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_no_server() {
    let cluster = RedisCluster::start_masters();
    let refused = tenure_redis::Redis::connect(&cluster.nodes()[0].url()).await.unwrap_err();
    assert!(refused.is_unsupported(), "{refused:?}");
    assert!(format!("{refused:?}").contains("`redis-cluster://HOST` is for it"), "{refused:?}");
}

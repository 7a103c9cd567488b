//! A fleet that moves to another engine and back: `docs/guide/moving.md`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use tenure::{Fence, Locker};
use tenure_testkit::register::Register;
use tenure_testkit::servers::{EtcdServer, RedisCluster, RedisServer, SentinelSet};
use tenure_testkit::wait::{lapse, within};

/// The guide asks for a pause of more than a second between the engines.
const PAUSE: Duration = Duration::from_millis(1_100);
const KEY: &str = "order:42";

/// Acquires the lock, and updates the protected resource.
async fn update(locker: &Locker, register: &Register) -> (Fence, bool) {
    let guard = within("the lock", locker.lock(KEY).into_future()).await.unwrap();
    let fence = guard.fence();
    let seen = register.read(KEY, fence);
    let accepted = seen.was_accepted() && register.write(KEY, seen);
    guard.release().await.unwrap();
    (fence, accepted)
}

/// One stage of the move: a new locker, some updates, and no lock held at the end.
async fn leg(url: &str, register: &Register) -> Fence {
    let locker = tenure::connect(url).await.unwrap();
    let mut last = Fence::NONE;
    for _ in 0..3 {
        let (fence, accepted) = update(&locker, register).await;
        assert!(accepted, "{url}: fence {fence} was refused");
        assert!(fence > last, "{url}: {fence} after {last}");
        last = fence;
    }
    assert!(locker.list("*").await.unwrap().is_empty(), "nobody holds a lock");
    locker.shutdown(Duration::from_secs(5)).await;
    lapse(PAUSE).await;
    last
}

/// G5: from Redis to etcd, back, and to etcd again: the resource accepts every newer holder, also after etcd has lost
/// its data.
#[tokio::test]
async fn a_fleet_moves_between_redis_and_etcd() {
    let (redis, etcd) = (RedisServer::start(), EtcdServer::start());
    let register = Register::new();
    let mut fences = Vec::new();
    for url in [redis.url(), etcd.url(), redis.url(), etcd.url()] {
        fences.push(leg(&url, &register).await);
    }
    etcd.restart_empty();
    for url in [etcd.url(), redis.url()] {
        fences.push(leg(&url, &register).await);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    let tally = register.tally();
    assert_eq!((tally.fenced_writes, tally.refused), (18, 0), "{tally:?}");
    assert_eq!(tally.fenced_lost(), 0, "{tally:?}");
}

/// G5: files and memory count on the same scale: a resource accepts a holder on each of them after one on Redis, and
/// back.
#[tokio::test]
async fn files_and_memory_are_on_the_same_scale() {
    let (redis, dir) = (RedisServer::start(), tempfile::tempdir().unwrap());
    let file = format!("file:{}", dir.path().join("locks").display());
    let (register, mut fences) = (Register::new(), Vec::new());
    for url in [&redis.url(), &file, "memory:moving", &redis.url(), "memory:moving", &file] {
        fences.push(leg(url, &register).await);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert_eq!(register.tally().refused, 0);
}

/// G5: the engines of several Redis servers count on the same scale: a fleet moves from one server to a quorum, to
/// Sentinels, to a cluster, and from each of them back.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_moves_between_the_engines_of_redis() {
    let (one, nodes) = (RedisServer::start(), [(); 3].map(|()| RedisServer::start()));
    let hosts = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port())).join(",");
    let quorum = format!("redis+quorum://{hosts}?restarted=trusted");
    let (sentinels, cluster) = (SentinelSet::start_small(), RedisCluster::start_masters());
    let (one, sentinels, cluster) = (one.url(), sentinels.url(), cluster.url());
    let (register, mut fences) = (Register::new(), Vec::new());
    for url in [&one, &quorum, &one, &sentinels, &quorum, &cluster, &sentinels, &cluster, &quorum] {
        fences.push(leg(url, &register).await);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    assert_eq!(register.tally().refused, 0);
}

/// Why the guide asks for new lockers: a locker on etcd that stays open continues with its old base. Its
/// fences are behind those that Redis granted meanwhile, and the resource rejects it.
#[tokio::test]
async fn a_locker_that_stays_open_is_refused_after_the_way_back() {
    let (redis, etcd) = (RedisServer::start(), EtcdServer::start());
    let register = Register::new();
    let kept = tenure::connect(&etcd.url()).await.unwrap();
    assert!(update(&kept, &register).await.1);
    lapse(PAUSE).await;
    leg(&redis.url(), &register).await;
    let (fence, accepted) = update(&kept, &register).await;
    assert!(!accepted, "fence {fence} was accepted: then say so in docs/guide/moving.md");
    kept.shutdown(Duration::from_secs(5)).await;
    leg(&etcd.url(), &register).await;
}

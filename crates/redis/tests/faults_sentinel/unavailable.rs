//! Sentinels and a master that are unavailable while tasks of a process ask.

use tenure_core::Locker;
use tenure_redis::Redis;
use tenure_testkit::servers::{RedisServer, Sentinel, SentinelSet};
use tenure_testkit::unavailable::{TIMEOUT, bounds_are_kept};

/// G6: the Sentinels and all servers are stopped and continued.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_with_sentinels() {
    let set = SentinelSet::start();
    let redis = Redis::builder(&set.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let locker = Locker::new(redis.connect().await.unwrap());
    let stop = || {
        set.sentinels().iter().for_each(Sentinel::pause);
        set.nodes().iter().for_each(RedisServer::pause);
    };
    let go_on = || {
        set.nodes().iter().for_each(RedisServer::go_on);
        set.sentinels().iter().for_each(Sentinel::go_on);
    };
    bounds_are_kept(&locker, stop, go_on).await;
}

/// G6: only the master is killed, and comes back. There is no replica that could take over.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_kept_without_a_master() {
    let set = SentinelSet::start_small();
    let redis = Redis::builder(&set.url()).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
    let locker = Locker::new(redis.connect().await.unwrap());
    let master = &set.nodes()[0];
    bounds_are_kept(&locker, || master.kill(), || master.restart()).await;
}

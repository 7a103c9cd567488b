//! Tokio's paused time with a server: connecting is refused, because its time-outs would end at once.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use tenure::redis::KvExt;
use tenure_testkit::servers::RedisServer;

/// Under paused time `connect` is refused for every engine.
#[tokio::test(start_paused = true)]
async fn paused_time_is_refused_on_every_engine() {
    let servers = ["redis+quorum://a,b,c", "redis-cluster://a", "redis+sentinel://a/s", "etcd://a"];
    for url in ["memory:paused", "file:/no/such/dir"].into_iter().chain(servers) {
        let refused = tenure::connect(url).await.unwrap_err();
        assert!(refused.is_invalid(), "{url}: {refused}");
        assert!(refused.to_string().starts_with("tokio's time is paused here, "), "{refused}");
    }
    for url in ["memory:paused", "file:/no/such/dir", "redis://a"] {
        let refused = tenure::Config::default().url(url).diagnose().await.unwrap_err();
        assert!(refused.is_invalid(), "{url}: {refused}");
    }
    let quorum = tenure::redis::Redis::builder("redis+quorum://a,b,c").quorum().await;
    assert!(quorum.unwrap_err().is_invalid());
}

/// Under paused time `connect` and `lock` are refused, and the error has the reason; afterwards both work.
#[tokio::test(start_paused = true)]
async fn paused_time_is_refused_on_redis() {
    let server = RedisServer::start();
    let refused = tenure::connect(&server.url()).await.unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    assert!(refused.to_string().starts_with("tokio's time is paused here, "), "{refused}");
    let later = tenure::Config::default().url(server.url()).connect_later().unwrap();
    let refused = later.lock("k").await.unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    tokio::time::resume();
    let locker = tenure::connect(&server.url()).await.unwrap();
    let exported = locker.lock("exported").await.unwrap().detach().export().await.unwrap();
    let values = tenure::redis::Client::connect(&server.url()).await.unwrap();
    tokio::time::pause();
    let refused = values.set("k", &1).await.unwrap_err().to_string();
    assert!(refused.contains("tokio's time is paused here, "), "{refused}");
    let refused = locker.adopt(&exported).await.unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    tokio::time::resume();
    locker.adopt(&exported).await.unwrap().release().await.unwrap();
    later.lock("k").await.unwrap().release().await.unwrap();
}

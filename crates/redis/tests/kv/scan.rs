//! Keys by prefix, page by page.

use std::collections::BTreeSet;

use tenure_core::Locker;
use tenure_redis::kv::Bytes;
use tenure_redis::{Client, Kv, KvExt, Redis};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::eventually;

use crate::support::{calls, client};

/// More than a page.
const MANY: usize = 5_000;

async fn keys(redis: &dyn Kv, prefix: &str) -> Vec<String> {
    let (mut scan, mut found) = (redis.scan(prefix), Vec::new());
    while let Some(key) = scan.next().await.unwrap() {
        found.push(key);
    }
    found
}

fn fill(server: &RedisServer) {
    let script = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'tenure:user:' .. i, i) end";
    server.client().command(&["EVAL", script, "0", &MANY.to_string()]);
}

/// Every key is found, without the prefix, and the scan reads one page at a time.
#[tokio::test]
async fn all_keys_in_pages() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    fill(&server);
    server.client().command(&["SET", "other:user:0", "x"]);
    redis.set("order:1", &1).await.unwrap();
    let mut scan = redis.scan::<String>("user:");
    assert!(scan.next().await.unwrap().is_some());
    assert_eq!(calls(&server, "scan"), 1, "the first page is enough for the first key");
    let found: BTreeSet<String> = keys(&redis, "user:").await.into_iter().collect();
    let expected: BTreeSet<String> = (1..=MANY).map(|id| format!("user:{id}")).collect();
    assert_eq!(found, expected);
    assert!(calls(&server, "scan") > 4, "{} pages", calls(&server, "scan"));
    assert_eq!(keys(&redis, "order:1").await, ["order:1"]);
    assert!(keys(&redis, "none").await.is_empty());
}

/// The keys of the locks are not among the values, and cannot be scanned.
#[tokio::test]
async fn locks_are_left_out() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let locker = Locker::new(Redis::with(&redis));
    let guard = locker.lock("order:1").await.unwrap();
    redis.set("locked", &1).fenced(guard.fence()).await.unwrap();
    assert!(matches!(server.client().command(&["DBSIZE"]), Reply::Int(4..)));
    for prefix in ["", "lo"] {
        assert_eq!(keys(&redis, prefix).await, ["locked"], "`{prefix}`");
    }
    for prefix in ["lock:", "lock:order", "fence", "queue:"] {
        let error = redis.scan::<String>(prefix).next().await.unwrap_err();
        assert!(error.is_invalid(), "{prefix}: {error}");
    }
    guard.release().await.unwrap();
}

/// A prefix is literal, even if it looks like a pattern, and may be any bytes.
#[tokio::test]
async fn a_prefix_is_no_pattern() {
    let server = RedisServer::start();
    let redis = Client::builder(&server.url()).prefix("a*[b]").client().await.unwrap();
    for key in ["k*1", "kx1", "k[1]", "k1", "k?", "k\\1"] {
        redis.set(key, &1).await.unwrap();
    }
    for (prefix, key) in [("k*", "k*1"), ("k[", "k[1]"), ("k?", "k?"), ("k\\", "k\\1")] {
        assert_eq!(keys(&redis, prefix).await, [key]);
    }
    let odd = b"\xff\x00*";
    redis.set(odd, &1).await.unwrap();
    let mut scan = redis.scan::<Bytes>(b"\xff");
    assert_eq!(scan.next().await.unwrap(), Some(Bytes(odd.to_vec())));
    assert_eq!(scan.next().await.unwrap(), None);
    assert_eq!(scan.next().await.unwrap(), None, "the end stays the end");
    let mut scan = redis.scan::<String>(b"\xff");
    assert!(scan.next().await.unwrap_err().is_undecodable());
    assert_eq!(scan.next().await.unwrap(), None, "it goes on behind what is no text");
}

/// A key that exists during the whole scan is found, whatever is deleted and written meanwhile.
#[tokio::test]
async fn keys_that_come_and_go() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    fill(&server);
    let (mut scan, mut found) = (redis.scan::<String>("user:"), BTreeSet::new());
    let mut step = 0;
    while let Some(key) = scan.next().await.unwrap() {
        step += 1;
        let number: usize = key.strip_prefix("user:").unwrap().parse().unwrap();
        if number.is_multiple_of(2) && number <= MANY {
            redis.delete(&key).await.unwrap();
            redis.set(&format!("user:{}", MANY + step), &step).await.unwrap();
        }
        found.insert(number);
        assert!(step < 20 * MANY, "it ends");
    }
    let missed: Vec<_> = (1..=MANY).step_by(2).filter(|number| !found.contains(number)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// A server that restarts has another order of keys: the scan fails, and a new scan finds all keys.
#[tokio::test]
async fn a_restart_ends_a_scan() {
    let server = RedisServer::start_persistent();
    let redis = client(&server).await;
    fill(&server);
    let mut scan = redis.scan::<String>("user:");
    scan.next().await.unwrap();
    server.restart();
    eventually("the server to be back", || async { redis.exists("k").await.is_ok() }).await;
    let error = loop {
        match scan.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends as if nothing was missed"),
            Err(error) => break error,
        }
    };
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(
        error.to_string(),
        "scan `user:`: server unavailable: the scan began on a server that restarted or was replaced: \
         start it again"
    );
    assert!(scan.next().await.unwrap_err().is_unavailable(), "and stays so");
    let found: BTreeSet<String> = keys(&redis, "user:").await.into_iter().collect();
    assert_eq!(found.len(), MANY);
}

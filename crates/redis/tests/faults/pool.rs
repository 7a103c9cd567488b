//! Several connections for commands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, Release};
use tenure_redis::Redis;
use tenure_testkit::servers::RedisServer;

use crate::support::{Monitor, claim, granted, lease};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
const KEYS: usize = 40;

/// Which connections sent scripts about which key.
fn senders(commands: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut senders = BTreeMap::<_, BTreeSet<_>>::new();
    for line in commands {
        let sender = line.split(['[', ']']).nth(1).unwrap_or_default();
        let key = line.split('"').find(|word| word.starts_with("tenure:lock:"));
        if let (Some(key), false) = (key, sender.ends_with("lua")) {
            senders.entry(key.into()).or_default().insert(sender.into());
        }
    }
    senders
}

/// All requests about a key use one connection, so none overtakes an earlier one; the keys are spread over
/// all connections.
#[tokio::test]
async fn a_key_has_one_connection() {
    let server = RedisServer::start();
    let store = Redis::builder(&server.url()).pool_size(4).connect().await.unwrap();
    let monitor = Monitor::of(&server);
    for round in 0..3 {
        for key in 0..KEYS {
            let key = format!("k{key}");
            if round == 1 {
                let lease = lease(&store, &key, LONG).await;
                assert_eq!(
                    store.release(&lease, AfterRelease::Free).await.unwrap(),
                    Release::Freed
                );
            } else {
                let claim = claim(&key, LONG);
                granted(&store, &claim).await;
                store.abandon(&claim).await.unwrap();
            }
        }
    }
    let senders = senders(&monitor.commands(&server));
    assert_eq!(senders.len(), KEYS);
    assert!(senders.values().all(|senders| senders.len() == 1), "{senders:?}");
    assert_eq!(senders.values().flatten().collect::<BTreeSet<_>>().len(), 4);
}

/// C8: connections are made when they are needed, and closed all together.
#[tokio::test]
async fn a_pool_is_closed_as_one() {
    let server = RedisServer::start();
    let store = Redis::builder(&server.url()).pool_size(3).connect().await.unwrap();
    for key in 0..KEYS {
        granted(&store, &claim(&format!("k{key}"), LONG)).await;
    }
    assert_eq!(crate::support::clients(&server), 3);
    store.close().await;
    let gone = || async { crate::support::clients(&server) == 0 };
    tenure_testkit::wait::eventually("the connections to be gone", gone).await;
}

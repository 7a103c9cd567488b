//! Several connections for commands.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tenure_core::backend::{Backend, Release, Then};
use tenure_redis::Redis;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::DEADLINE;

use crate::support::{claim, granted, lease};

/// Far beyond the deadline of any wait: what is freed was given back, and did not expire.
const LONG: Duration = Duration::from_secs(300);
const KEYS: usize = 40;

/// Tells of every command that the server runs.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn of(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Monitor(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// Which connections sent scripts about which key, up to the command `end`.
    fn senders(mut self, end: &str) -> BTreeMap<String, BTreeSet<String>> {
        let mut senders = BTreeMap::<_, BTreeSet<_>>::new();
        loop {
            let line = self.line();
            if line.contains(end) {
                return senders;
            }
            let sender = line.split(['[', ']']).nth(1).unwrap_or_default();
            let key = line.split('"').find(|word| word.starts_with("tenure:lock:"));
            // What a script does itself is shown as sent by `lua`.
            if let (Some(key), false) = (key, sender.ends_with("lua")) {
                senders.entry(key.into()).or_default().insert(sender.into());
            }
        }
    }
}

/// Everything about a key travels on one connection, so nothing overtakes what came before it; the
/// keys are spread over all of them.
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
                assert_eq!(store.release(&lease, Then::Free).await.unwrap(), Release::Freed);
            } else {
                let claim = claim(&key, LONG);
                granted(&store, &claim).await;
                store.abandon(&claim).await.unwrap();
            }
        }
    }
    server.client().command(&["ECHO", "finis"]);
    let senders = monitor.senders("finis");
    assert_eq!(senders.len(), KEYS);
    assert!(senders.values().all(|senders| senders.len() == 1), "{senders:?}");
    assert_eq!(senders.values().flatten().collect::<BTreeSet<_>>().len(), 4);
}

/// Connections are made as they are needed, and closed all together.
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

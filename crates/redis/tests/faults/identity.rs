//! All connections of a client lead to the same server, and move to another one together.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Lease;
use tenure_core::backend::{
    AfterRelease, Backend, FaultKind, Loss, Notice, Notices, Operator, Release, Renewal,
};
use tenure_redis::Redis;
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};

use crate::relay::{Relay, Way};
use crate::support::{claim, get, granted, lease};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);
/// The order in which the connections are made here.
const COMMANDS: usize = 0;
const RENEWALS: usize = 1;

/// Two servers, and a client whose two connections both lead to the first one.
struct Town {
    old: RedisServer,
    new: RedisServer,
    relay: Relay,
    store: Redis,
    lease: Arc<Lease>,
    notices: Notices,
}

impl Town {
    async fn new() -> Self {
        let (old, new) = (RedisServer::start(), RedisServer::start());
        let relay = Relay::to(old.port());
        let store = Redis::builder(&relay.url()).response_timeout(Duration::from_secs(4));
        let store = store.connect().await.unwrap();
        // The server knows the scripts from here on, so each is one request.
        let warm = lease(&store, "warm", LONG).await;
        assert_eq!(store.release(&warm, AfterRelease::Free).await.unwrap(), Release::Freed);
        let lease = lease(&store, "k", LONG).await;
        let renewed = renewals(&store, std::slice::from_ref(&lease)).await;
        assert!(matches!(renewed[..], [Some(Renewal::Renewed { .. })]), "{renewed:?}");
        assert_eq!(relay.count(), 2);
        let notices = store.subscribe(LONG);
        Town { old, new, relay, store, lease, notices }
    }

    /// Redirects the address to the new server; the connection for renewals is the first to notice.
    async fn move_renewals(&self) {
        self.relay.lead_to(self.new.port());
        self.relay.cut(RENEWALS);
        eventually("renewals to reach the new server", || async {
            let answers = renewals(&self.store, std::slice::from_ref(&self.lease)).await;
            matches!(answers[..], [Some(Renewal::Lost(Loss::Gone))])
        })
        .await;
    }

    /// How often a reconnect was reported.
    async fn times_back(&mut self) -> usize {
        // A notice of another kind marks the end.
        let last = claim("last", LONG);
        granted(&self.store, &last).await;
        self.store.force_release(last.key(), last.token(), "the test").await.unwrap();
        let mut back = 0;
        while let Some(Notice::Reconnected) = within("a notice", self.notices.next()).await {
            back += 1;
        }
        back
    }
}

/// If one connection finds another server at the address, the other connections follow, and one reconnect is reported.
#[tokio::test]
async fn connections_move_together() {
    let mut town = Town::new().await;
    town.move_renewals().await;
    granted(&town.store, &claim("next", LONG)).await;
    assert!(get(&town.new, "tenure:lock:next").is_some());
    assert_eq!(get(&town.old, "tenure:lock:next"), None, "nobody asks the old one any more");
    eventually("the old connection to be closed", || async { town.relay.is_over(COMMANDS) }).await;
    assert_eq!(town.times_back().await, 1);
}

/// A reply of the old server that arrives after the other connections have left it counts as unknown.
#[tokio::test]
async fn an_answer_from_the_server_before_is_unknown() {
    let town = Arc::new(Town::new().await);
    town.relay.hold(COMMANDS, Way::Replies);
    let there = town.clone();
    let release =
        tokio::spawn(async move { there.store.release(&there.lease, AfterRelease::Free).await });
    eventually("the release to be done", || async { get(&town.old, "tenure:lock:k").is_none() })
        .await;
    town.move_renewals().await;
    town.relay.forward(COMMANDS);
    let fault = within("an answer", release).await.unwrap().unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}");
    assert!(fault.to_string().contains("left for another"), "{fault}");
}

/// A reconnect to the same server does not move the other connections.
#[tokio::test]
async fn the_same_server_moves_nobody() {
    let mut town = Town::new().await;
    town.relay.cut(RENEWALS);
    eventually("renewals to be back", || async {
        let answers = renewals(&town.store, std::slice::from_ref(&town.lease)).await;
        matches!(answers[..], [Some(Renewal::Renewed { .. })])
    })
    .await;
    granted(&town.store, &claim("next", LONG)).await;
    assert!(!town.relay.is_over(COMMANDS));
    assert_eq!((town.relay.count(), town.times_back().await), (3, 1));
}

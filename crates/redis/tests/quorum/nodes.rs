//! Which servers can be the nodes of a quorum: rows 15, 19, 61, 62, 63.

use std::time::Duration;

use tenure_core::backend::{Backend, FaultKind};
use tenure_core::{Claim, Error, Key, Locker, Mode, Terms, Token};
use tenure_redis::Quorum;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Cut, Proxy};
use tenure_testkit::wait::within;

use crate::support::{Nodes, TIMEOUT, claim, connect, url_of};

async fn refused(ports: &[u16]) -> Error {
    let builder = Quorum::builder(&url_of(ports.iter().copied()));
    builder.connect_timeout(TIMEOUT).quorum().await.expect_err("it is to be refused")
}

/// t19: two addresses that lead to the same server are refused.
#[tokio::test]
async fn t19_the_same_server_twice() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let alias = Proxy::to(one.port());
    let error = refused(&[one.port(), two.port(), alias.port()]).await;
    assert!(error.is_unsupported(), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("it is the same server as another node of the quorum"), "{said}");
}

/// t19: so are they when one of them comes to lead to another's server later: its vote counts for nothing.
#[tokio::test]
async fn t19_the_same_server_later() {
    let nodes = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let third = Proxy::to(nodes[2].port());
    let url = url_of([nodes[0].port(), nodes[1].port(), third.port()].into_iter());
    let store = connect(&url).await;
    nodes[1].pause();
    third.lead_to(nodes[0].port());
    third.cut(Cut::Reset);
    let before = third.accepted();
    for _ in 0..5 {
        let asked = claim("k", Duration::from_secs(20));
        let answer = within("an answer", store.try_acquire(&asked)).await;
        assert!(answer.is_err(), "one vote of three: {answer:?}");
    }
    assert!(third.accepted() > before, "it was asked");
    nodes[1].go_on();
}

/// t19: a replica is no node.
#[tokio::test]
async fn t19_a_replica() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let replica = one.start_replica();
    let error = refused(&[one.port(), two.port(), replica.port()]).await;
    assert!(error.to_string().contains("the server is a replica"), "{error}");
}

/// t19: nor is a member of a cluster.
#[tokio::test]
async fn t19_a_member_of_a_cluster() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let member = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(&[one.port(), two.port(), member.port()]).await;
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.to_string().contains("it runs in cluster mode"), "{error}");
}

/// t63: a node that wants a password is named when connecting, though the others would do.
#[tokio::test]
async fn t63_a_node_that_wants_a_password() {
    let (one, password) = (RedisServer::start(), ["--requirepass", "hunter2"]);
    // Two of three: a majority that is there would not wait for the third on a busy machine.
    let [closed, other] = [(); 2].map(|()| RedisServer::start_with(&password));
    let error = refused(&[one.port(), closed.port(), other.port()]).await;
    assert!(error.is_refused(), "{error:?}");
    let named = [closed, other].map(|node| error.to_string().contains(&node.port().to_string()));
    assert_ne!(named, [false; 2], "{error}");
}

/// t61: with fewer than a majority there is no quorum to connect to; with a majority there is.
#[tokio::test]
async fn t61_a_majority_must_be_there() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    let dead: Vec<u16> = (0..3).map(|_| RedisServer::start().port()).collect();
    let [one, two] = [nodes[0].port(), nodes[1].port()];
    let error = refused(&[one, two, dead[0], dead[1], dead[2]]).await;
    assert!(error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("fewer than 3 of 5 nodes can be counted on"), "{error}");
    let locker = Locker::new(connect(&url_of([one, two, dead[0]].into_iter())).await);
    locker.lock("k").await.unwrap().release().await.unwrap();
}

/// t62: permits are refused, with the reason.
#[tokio::test]
async fn t62_no_permits() {
    let nodes = Nodes::start();
    let terms = Terms::new(Duration::from_secs(1)).mode(Mode::Permits { permits: 1, capacity: 2 });
    let claim = Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms);
    let fault = nodes.connect().await.try_acquire(&claim.into()).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unsupported);
    assert_eq!(
        fault.to_string(),
        "a quorum grants exclusive claims only: majorities of permits do not intersect"
    );
    assert_eq!(nodes.locked("k"), 0);
}

/// t15: nodes that have just started are not counted, since they may have forgotten a lock; what to do
/// about it is said, and once they have run for the ttl they count.
#[tokio::test]
async fn t15_young_nodes_do_not_vote() {
    let nodes = Nodes::start();
    let second = Duration::from_secs(1);
    let store = Quorum::builder(&nodes.url()).quarantine(second).quorum().await.unwrap();
    let fault = store.try_acquire(&claim("k", Duration::from_secs(600))).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    let said = fault.to_string();
    assert!(said.contains("may have forgotten a lock: its vote counts after 600s"), "{said}");
    assert_eq!(nodes.locked("k"), 0);
    let locker = Locker::new(store);
    let wait = locker.lock("k").ttl(Duration::from_secs(3));
    let guard = within("the nodes to be old enough", wait.into_future()).await.unwrap();
    guard.release().await.unwrap();
}

/// t61: a quorum that is to wait for replicas is a mistake, by URL and by builder.
#[test]
fn t61_no_replicas() {
    let flaw = "a quorum has no use for `replicas`: its nodes vote";
    let url = "redis+quorum://a,b,c?replicas=1";
    assert_eq!(Quorum::builder(url).quorum_later().unwrap_err().to_string(), flaw);
    let built = Quorum::builder("redis+quorum://a,b,c").replicas(1).quorum_later();
    assert_eq!(built.unwrap_err().to_string(), flaw);
    assert!(Quorum::builder("redis+quorum://a,b,c?replicas=0").quorum_later().is_ok());
}

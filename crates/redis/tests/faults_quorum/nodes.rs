//! Which servers can be the nodes of a quorum: rows 15, 19, 61, 62, 63.

use std::time::Duration;

use tenure_core::backend::{Backend, FaultKind};
use tenure_core::{Claim, ClaimOptions, Error, Key, Locker, Mode, Token};
use tenure_redis::Quorum;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

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

/// t19: if one address later leads to the server of another node, its vote does not count.
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

/// A Redlock client of another library shares locks with us through a key template. Each side keeps the other
/// out, and a release of the other client does not remove our votes.
#[tokio::test]
async fn a_template_shares_locks_with_redlock() {
    let nodes = Nodes::start();
    let url = nodes.url() + "?lock_key=distributed_lock:{key}";
    let (ours, lock) = (Locker::new(connect(&url).await), "distributed_lock:order:1");
    let take = || {
        let set = ["SET", lock, "theirs", "NX", "PX", "60000"];
        nodes.0.iter().filter(|node| node.client().command(&set) != Reply::Nil).count()
    };
    let release = || {
        let give = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        let give = ["EVAL", give, "1", lock, "theirs"];
        nodes.0.iter().filter(|node| node.client().command(&give) == Reply::Int(1)).count()
    };
    // So long that no vote expires while the test waits.
    let guard = ours.lock("order:1").ttl(Duration::from_secs(300)).await.unwrap();
    assert!(take() <= 2, "a majority of the votes is ours");
    assert!(release() <= 2 && guard.is_held());
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    eventually("all nodes to be free", || async {
        nodes.0.iter().all(|node| node.client().text(&["GET", lock]).is_none())
    })
    .await;
    assert_eq!(take(), 5);
    assert!(ours.try_lock("order:1").await.unwrap().is_none());
    assert!(
        ours.inspect("order:1").await.unwrap().is_some_and(|info| info.holders[0].token.is_none())
    );
    let waiting = tokio::spawn(ours.lock("order:1").into_future());
    assert_eq!(release(), 5);
    assert!(within("the lock", waiting).await.unwrap().unwrap().is_held());
}

/// t19: a replica cannot be a node.
#[tokio::test]
async fn t19_a_replica() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let replica = one.start_replica();
    let error = refused(&[one.port(), two.port(), replica.port()]).await;
    assert!(error.to_string().contains("the server is a replica"), "{error}");
}

/// t19: a member of a cluster cannot be a node.
#[tokio::test]
async fn t19_a_member_of_a_cluster() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let member = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(&[one.port(), two.port(), member.port()]).await;
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.to_string().contains("it runs in cluster mode"), "{error}");
}

/// t63: connecting waits for every node, and fails with the address of the one that requires a password, or
/// another one.
#[tokio::test]
async fn t63_a_node_that_wants_a_password() {
    let [one, two] = [RedisServer::start(), RedisServer::start()];
    let closed = RedisServer::start_with(&["--requirepass", "hunter2"]);
    // It replies late, when the others are a majority already.
    let proxy = Proxy::to(closed.port());
    proxy.rule(Rule::on(Way::Replies, Action::Delay(Duration::from_millis(500))));
    for password in ["://", "://:wrong@"] {
        let url = url_of([one.port(), two.port(), proxy.port()].into_iter());
        let error =
            Quorum::connect(&url.replace("://", password)).await.expect_err("it is to be refused");
        assert!(error.is_refused(), "{error:?}");
        assert!(error.to_string().contains(&proxy.port().to_string()), "{error}");
    }
    assert!(proxy.struck() > 0);
}

/// t61: connecting needs a majority of the nodes; a minority is refused.
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

/// t62, t114: permits are refused, with the reason.
#[tokio::test]
async fn t62_no_permits() {
    let nodes = Nodes::start();
    let terms =
        ClaimOptions::new(Duration::from_secs(1)).mode(Mode::Permits { permits: 1, capacity: 2 });
    let claim = Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms);
    let fault = nodes.connect().await.try_acquire(&claim.into()).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unsupported);
    assert_eq!(
        fault.to_string(),
        "a quorum has no permits: majorities of permits do not intersect"
    );
    assert_eq!(nodes.locked("k"), 0);
}

/// t15: nodes that have just started do not vote, because they may have forgotten a lock. The error explains
/// what to do, and the nodes vote once they have run for the ttl.
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

/// t61: asking a quorum to wait for replicas is an error, in the URL and in the builder.
#[test]
fn t61_no_replicas() {
    let flaw = "a quorum has no use for `replicas`: its nodes vote";
    let url = "redis+quorum://a,b,c?replicas=1";
    assert_eq!(Quorum::builder(url).quorum_later().unwrap_err().to_string(), flaw);
    let built = Quorum::builder("redis+quorum://a,b,c").replicas(1).quorum_later();
    assert_eq!(built.unwrap_err().to_string(), flaw);
    assert!(Quorum::builder("redis+quorum://a,b,c?replicas=0").quorum_later().is_ok());
}

//! Notifications through the sharded channels of a cluster.

use std::time::Duration;

use tenure_testkit::servers::{RedisCluster, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::{LONG, ask, calls, home, locker_at, one_waits, other, slot, waiters};

/// A24: the next waiter is notified by one message.
#[tokio::test(flavor = "multi_thread")]
async fn a24_handed_over_by_one_message() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let home = home(&cluster, "k");
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait for a push", || async { waiters(home, "k") == ["push"] }).await;
    let before = calls(home, "spublish");
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert_eq!(calls(home, "spublish") - before, 1);
    assert_eq!(calls(home, "publish"), 0);
    next.release().await.unwrap();
}

/// A process that locks only uncontended keys has no channel, however many slots they are in.
#[tokio::test(flavor = "multi_thread")]
async fn no_channel_for_what_is_free() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    for n in 0..50 {
        a.lock(format!("k:{n}")).await.unwrap().release().await.unwrap();
    }
    for node in cluster.nodes() {
        assert_eq!(ask(node, &["PUBSUB", "SHARDCHANNELS"]), Reply::Many(Vec::new()));
        assert_eq!(calls(node, "ssubscribe"), 0);
    }
}

/// t34: a waiter that the server disconnected subscribes again and gets the lock.
#[tokio::test(flavor = "multi_thread")]
async fn t34_cut_off() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let home = home(&cluster, "k");
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait for a push", || async { waiters(home, "k") == ["push"] }).await;
    ask(home, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("b to listen again", || async {
        ask(home, &["PUBSUB", "SHARDCHANNELS"]) != Reply::Many(Vec::new())
    })
    .await;
    held.release().await.unwrap();
    within("b's turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// Without the right to subscribe, a waiter polls.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_listen() {
    let cluster = RedisCluster::start_masters();
    for node in cluster.nodes() {
        ask(
            node,
            &[
                "ACL",
                "SETUSER",
                "deaf",
                "on",
                ">pw",
                "allkeys",
                "allchannels",
                "+@all",
                "-ssubscribe",
            ],
        );
    }
    let url = cluster.url().replace("://", "://deaf:pw@");
    let (a, b) = (locker_at(&url).await, locker_at(&url).await);
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting =
        tokio::spawn(b.lock("k").ttl(LONG).retry_interval(Duration::from_millis(50)).into_future());
    let home = home(&cluster, "k");
    eventually("b to ask", || async { waiters(home, "k") == ["poll"] }).await;
    held.release().await.unwrap();
    within("b's turn", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// The documented rights are enough: to be notified, and to continue while a slot moves.
#[tokio::test(flavor = "multi_thread")]
async fn t63_the_rights_named_are_enough() {
    let cluster = RedisCluster::start_masters();
    let rights = "~tenure:* resetchannels &tenure:inbox:* +eval +evalsha +get +mget +getrange +set +del +exists +pttl \
                  +pexpire +time +type +zadd +zrem +zrange +zrevrange +zrank +zscore +zcard +zpopmin +zremrangebyscore \
                  +hget +hset +hdel +publish +subscribe +pubsub|numsub +scan +select +wait +info +ping +client|id \
                  +client|kill +client|tracking +cluster|nodes +asking +spublish +ssubscribe +sunsubscribe \
                  +pubsub|shardnumsub";
    for node in cluster.nodes() {
        let mut words = vec!["ACL", "SETUSER", "limited", "reset", "on", ">pw"];
        words.extend(rights.split_whitespace());
        assert_eq!(ask(node, &words), Reply::Text("OK".into()));
    }
    let url = cluster.url().replace("://", "://limited:pw@");
    let (a, b) = (locker_at(&url).await, locker_at(&url).await);
    let (home, there, to) = (home(&cluster, "k"), slot(&cluster, "k"), other(&cluster, "k"));
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait for a push", || async { waiters(home, "k") == ["push"] }).await;
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    cluster.begin_move(there, to);
    next.release().await.unwrap();
    a.lock("k").await.unwrap().release().await.unwrap();
    while cluster.move_keys(there, to) > 0 {}
    cluster.end_move(there, to);
    a.lock("k").await.unwrap().release().await.unwrap();
    let (mine, theirs) = (a.semaphore("k", 2), b.semaphore("k", 2));
    let held = mine.acquire_many(2).await.unwrap();
    let waiting = tokio::spawn(theirs.acquire().into_future());
    eventually("b to wait", || async { one_waits(to, "k") }).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    within("b's turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    for node in cluster.nodes() {
        assert_eq!(ask(node, &["ACL", "LOG"]), Reply::Many(Vec::new()));
        ask(node, &["ACL", "SETUSER", "limited", "-pubsub|shardnumsub"]);
    }
    let found = a.diagnose().await.unwrap();
    let found: Vec<_> = found.iter().filter(|finding| finding.check == "pub-sub").collect();
    assert_eq!(found.len(), 3, "{found:?}");
    let advice = "`ACL SETUSER limited +pubsub|shardnumsub`";
    for finding in found {
        assert!(format!("{finding:?}").contains(advice), "{finding:?}");
    }
}

/// A process whose tasks queue for a lock is notified of a waiter in another process, also of one that queued
/// before the process subscribed.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_process_lets_others_in() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let home = home(&cluster, "k");
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let other = tokio::spawn(b.lock("k").ttl(LONG).into_future());
    eventually("b to wait", || async { one_waits(home, "k") }).await;
    let hot = |_| {
        let a = a.clone();
        tokio::spawn(async move {
            for _ in 0..2_000 {
                a.lock("k").ttl(LONG).await.unwrap().release().await.unwrap();
            }
        })
    };
    let hot: Vec<_> = (0..8).map(hot).collect();
    held.release().await.unwrap();
    let theirs = within("b's turn", other).await.unwrap().unwrap();
    assert!(hot.iter().any(|task| !task.is_finished()), "b had to wait for all of them");
    theirs.release().await.unwrap();
    for task in hot {
        within("the others", task).await.unwrap();
    }
}

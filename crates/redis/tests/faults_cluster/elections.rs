//! Elections while a failover loses what the last leader had.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_testkit::elections::Seen;
use tenure_testkit::servers::RedisCluster;
use tenure_testkit::wait::{eventually, within};

use crate::failover::cut_off_replica;
use crate::support::{LONG, home, keys, lock, lock_key, locker_at, slot};

/// t111: the new master knows an earlier leader, whose process has resigned and ended, and not the last one. The last
/// leader learns of its loss, an observer sees nobody and never the earlier one again, and the next term is higher.
#[tokio::test(flavor = "multi_thread")]
async fn t111_a_failover_brings_back_a_leader() {
    let cluster = RedisCluster::start();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (ours, theirs, before) = (a.election("k"), b.election("k"), home(&cluster, "k"));
    let mut seen = Seen::by(&theirs).await;
    let earlier = locker_at(&cluster.url()).await;
    let old = earlier.election("k").campaign("old").ttl(LONG).await.unwrap();
    seen.until("old", old.term()).await;
    let replica = cluster.replica_of(before);
    eventually("the replica to know it", async || keys(replica).contains(&lock_key("k"))).await;
    tokio::task::block_in_place(|| cut_off_replica(&cluster, before));
    // A process that lives would resign again at the new master.
    earlier.shutdown(Duration::ZERO).await;
    drop((old, earlier));
    let new = within("the new leader", ours.campaign("new").ttl(LONG).into_future()).await.unwrap();
    seen.until("new", new.term()).await;
    before.kill();
    let after =
        tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), before));
    assert_eq!(within("the loss", new.lost()).await, Loss::Gone);
    assert!(lock(after, "k").unwrap().contains("old"), "the earlier leader is back");
    seen.until_nobody().await;
    let back = b.inspect("k").await.unwrap().unwrap();
    b.force_release("k", back.holders[0].token.unwrap(), "test").await.unwrap();
    let next = within("the next", theirs.campaign("next").ttl(LONG).into_future()).await.unwrap();
    assert!(next.term() > new.term());
    seen.until("next", next.term()).await;
    seen.is_sound();
}

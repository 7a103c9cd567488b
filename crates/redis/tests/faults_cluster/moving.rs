//! A slot that moves to another node while its locks are held and waited for.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Backend, Operator, Query};
use tenure_core::{Claim, ClaimOptions, Fence, Key, Owner, Token};
use tenure_testkit::servers::{RedisCluster, RedisServer};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{LONG, cluster_at, home, keys, lock, locker_at, one_waits, other, slot};

/// Names in one slot.
const NAMES: [&str; 5] = ["{s}:held", "{s}:free", "{s}:waited", "{s}:shared", "{s}:asked"];

/// t36: `MOVED`: if a slot has another owner than the client knows, acquires, renewals and releases follow
/// it, each in one call.
#[tokio::test(flavor = "multi_thread")]
async fn t36_a_slot_that_has_moved() {
    let cluster = RedisCluster::start_masters();
    let a = locker_at(&cluster.url()).await;
    let [renewed, released, ..] = NAMES;
    let ttl = Duration::from_secs(3);
    let kept = a.lock(renewed).ttl(ttl).await.unwrap();
    let given = a.lock(released).ttl(LONG).await.unwrap();
    let to = other(&cluster, renewed);
    cluster.move_slot(slot(&cluster, renewed), to);
    given.release().await.unwrap();
    assert_eq!(lock(to, released), None);
    let fence = a.lock(released).await.unwrap().fence();
    let until = kept.valid_until();
    eventually("a renewal", || async { kept.valid_until() > until }).await;
    assert!(kept.is_held() && lock(to, renewed).is_some());
    cluster.move_slot(slot(&cluster, renewed), other(&cluster, renewed));
    assert!(a.lock(released).await.unwrap().fence() > fence);
    kept.release().await.unwrap();
}

/// A lock that is granted again while its slot moves has a new fence, and the first one is not shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_that_is_drawn_on_the_move() {
    let cluster = RedisCluster::start_masters();
    let store = cluster_at(&cluster.url()).await.unwrap();
    let asked =
        Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), ClaimOptions::new(LONG));
    let asked = Arc::new(asked);
    let ask = async || match store.try_acquire(&asked).await.unwrap() {
        Attempt::Granted(grant) => Fence::from_server(grant.fence),
        held => panic!("{held:?}"),
    };
    let shown = async || {
        let infos = store.inspect(&Query::Key(asked.key().clone())).await.unwrap();
        infos[0].holders[0].fence
    };
    let mut last = ask().await;
    assert_eq!(shown().await, Some(last));
    let (there, to) = (slot(&cluster, "k"), other(&cluster, "k"));
    let moves: [&dyn Fn(); 2] =
        [&|| cluster.begin_move(there, to), &|| _ = cluster.move_keys(there, to)];
    for step in moves {
        step();
        let next = ask().await;
        assert!(next > last);
        assert!(shown().await.is_none_or(|fence| fence == next));
        last = next;
    }
}

/// C3, t36, t121: `ASK` and `TRYAGAIN`: while its keys may be on either node, a lock is acquired, renewed and released
/// wherever its key is, and never has two holders.
#[tokio::test(flavor = "multi_thread")]
async fn t36_a_slot_on_the_move() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let [held, free, ..] = NAMES;
    let (there, from, to) = (slot(&cluster, held), home(&cluster, held), other(&cluster, held));
    let kept = a.lock(held).ttl(Duration::from_secs(3)).await.unwrap();
    cluster.begin_move(there, to);
    let on_the_move = async |at: &RedisServer| {
        // The held lock is where it was; a free lock is created on the other node.
        assert!(b.try_lock(held).await.unwrap().is_none());
        let until = kept.valid_until();
        eventually("a renewal", || async { kept.valid_until() > until }).await;
        assert!(lock(at, held).is_some());
        let first = b.lock(free).await.unwrap();
        assert!(a.try_lock(free).await.unwrap().is_none());
        let there = a.inspect(free).await.unwrap().expect("it is looked at over there");
        assert!(there.holders[0].fence.is_none_or(|fence| fence == first.fence()));
        let here = b.inspect(held).await.unwrap().expect("it is held");
        assert_eq!(here.holders[0].fence, Some(kept.fence()));
        assert!(lock(from, free).is_none());
        let fence = first.fence();
        first.release().await.unwrap();
        let second = a.try_lock(free).await.unwrap().unwrap();
        assert!(second.fence() > fence);
        second.release().await.unwrap();
    };
    on_the_move(from).await;
    cluster.move_keys(there, to);
    assert!(b.try_lock(held).await.unwrap().is_none(), "its key is on the other node now");
    let until = kept.valid_until();
    eventually("a renewal there", || async { kept.valid_until() > until }).await;
    kept.release().await.unwrap();
    let next = b.lock(held).await.unwrap();
    cluster.end_move(there, to);
    assert!(a.try_lock(held).await.unwrap().is_none());
    assert!(lock(to, held).is_some());
    next.release().await.unwrap();
    assert_eq!(lock(to, held), None);
}

/// t36: a waiter continues to wait while the slot moves, and is then notified by its new node.
#[tokio::test(flavor = "multi_thread")]
async fn t36_a_slot_that_is_waited_in() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let name = NAMES[2];
    let (there, from, to) = (slot(&cluster, name), home(&cluster, name), other(&cluster, name));
    let held = a.lock(name).ttl(LONG).await.unwrap();
    let waiting = tokio::spawn(b.lock(name).ttl(LONG).into_future());
    eventually("b to wait", || async { one_waits(from, name) }).await;
    cluster.move_slot(there, to);
    eventually("b to wait for a push there", || async { one_waits(to, name) }).await;
    let fence = held.fence();
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert!(next.fence() > fence && lock(to, name).is_some());
    // While the slot moves, waiters poll.
    let back = other(&cluster, name);
    cluster.begin_move(there, back);
    let waiting = tokio::spawn(a.lock(name).ttl(LONG).into_future());
    lapse(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    next.release().await.unwrap();
    let last = within("a's turn", waiting).await.unwrap().unwrap();
    while cluster.move_keys(there, back) > 0 {}
    cluster.end_move(there, back);
    assert!(last.is_held());
    last.release().await.unwrap();
    assert_eq!(lock(back, name), None);
}

/// A waiter that was queued and then got the lock by polling, because the slot was moving, leaves no entry in
/// the queue that moved with the slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_entry_moves_with_its_slot() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let name = NAMES[4];
    let (there, from, to) = (slot(&cluster, name), home(&cluster, name), other(&cluster, name));
    // Twice: the first time the lock is not known to be contended, so the fast script that queues is not used.
    for moves in [false, true] {
        let held = a.lock(name).ttl(LONG).await.unwrap();
        let waiting = tokio::spawn(b.lock(name).ttl(LONG).into_future());
        eventually("b to wait", || async { !queues(from).is_empty() }).await;
        if moves {
            cluster.begin_move(there, to);
        }
        held.release().await.unwrap();
        let next = within("b's turn", waiting).await.unwrap().unwrap();
        if moves {
            assert!(!queues(from).is_empty(), "its queue entry is still there");
            cluster.move_slot(there, to);
            assert_eq!((queues(from).len(), queues(to).len()), (0, 1));
        }
        next.release().await.unwrap();
    }
    assert_eq!(queues(to), [""; 0]);
}

fn queues(node: &RedisServer) -> Vec<String> {
    keys(node).into_iter().filter(|key| key.starts_with("tenure:queue:")).collect()
}

/// A shared owner needs several keys: it waits until the slot has moved, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_owner_waits_for_the_move() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let name = NAMES[3];
    let owner = || Owner::shared("run-7");
    let (there, to) = (slot(&cluster, name), other(&cluster, name));
    let first = a.lock(name).owner(owner()).ttl(LONG).await.unwrap();
    cluster.begin_move(there, to);
    let second = tokio::spawn(b.lock(name).owner(owner()).ttl(LONG).into_future());
    while cluster.move_keys(there, to) > 0 {}
    cluster.end_move(there, to);
    let second = within("the second share", second).await.unwrap().unwrap();
    first.release().await.unwrap();
    assert!(second.is_held() && lock(to, name).is_some());
    second.release().await.unwrap();
    assert_eq!(lock(to, name), None);
}

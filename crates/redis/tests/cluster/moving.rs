//! A slot that moves to another node while locks in it are held and waited for.

use std::time::Duration;

use tenure_core::Owner;
use tenure_testkit::servers::{RedisCluster, RedisServer};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{LONG, home, keys, lock, locker_at, one_waits, other, slot};

/// Names in one slot.
const NAMES: [&str; 5] = ["{s}:held", "{s}:free", "{s}:waited", "{s}:shared", "{s}:asked"];

/// t36: `MOVED`: a slot that has another owner than we know is followed, in one call each, by asking,
/// renewing and giving back.
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

/// t36: `ASK` and `TRYAGAIN`: while its keys may be on either node, a lock is had, renewed and given back,
/// wherever its key is, and nobody has it twice.
#[tokio::test(flavor = "multi_thread")]
async fn t36_a_slot_on_the_move() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let [held, free, ..] = NAMES;
    let (there, from, to) = (slot(&cluster, held), home(&cluster, held), other(&cluster, held));
    let kept = a.lock(held).ttl(Duration::from_secs(3)).await.unwrap();
    cluster.begin_move(there, to);
    let on_the_move = async |at: &RedisServer| {
        // The lock that is held is where it was; a free one comes to be on the other node.
        assert!(b.try_lock(held).await.unwrap().is_none());
        let until = kept.valid_until();
        eventually("a renewal", || async { kept.valid_until() > until }).await;
        assert!(lock(at, held).is_some());
        let first = b.lock(free).await.unwrap();
        assert!(a.try_lock(free).await.unwrap().is_none());
        assert!(a.inspect(free).await.unwrap().is_some(), "it is looked at over there");
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

/// t36: who waits goes on waiting while the slot moves, and at the node that has it then, where it is told
/// of its turn.
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
    eventually("b to be told there", || async { one_waits(to, name) }).await;
    let fence = held.fence();
    held.release().await.unwrap();
    let next = within("b's turn", waiting).await.unwrap().unwrap();
    assert!(next.fence() > fence && lock(to, name).is_some());
    // While it moves, those who wait ask.
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

/// Who stood in the queue and then got the lock by asking, since the slot was on the move, leaves nothing in
/// the queue that has moved with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_goes_with_its_turn() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let name = NAMES[4];
    let (there, from, to) = (slot(&cluster, name), home(&cluster, name), other(&cluster, name));
    // Twice: at first nobody is known to want it, and the short form that stands in a queue is not used.
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
            assert!(!queues(from).is_empty(), "its place is still there");
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

//! Readers and permits in a cluster: slots that move, clocks that differ, waiters that have gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_core::backend::{Backend, Loss};
use tenure_core::watch::EventKind;
use tenure_core::{
    Claim, ClaimOptions, Guard, Held, HeldMode, Key, LockRequest, Locker, Mode, Permit, Renew,
    Token, admits,
};
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::{RedisCluster, RedisServer, Reply};
use tenure_testkit::wait::{eventually, in_time, lapse, pass, within};

use crate::failover::cut_off_replica;
use crate::support::{
    LONG, ask, cluster_at, home, keys, lock_key, locker_at, one_waits, other, slot,
};

/// Short, so that a permit that cannot be renewed is soon lost.
const SHORT: Duration = Duration::from_secs(3);

fn claim_as(mode: Mode) -> Arc<Claim> {
    let options = ClaimOptions::new(LONG).mode(mode).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), options))
}

/// How many members the lock `k` has at `node`.
fn members(node: &RedisServer) -> i64 {
    match ask(node, &["ZCARD", &lock_key("k")]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

/// The entries of the queue of `k` at `node`.
fn entries(node: &RedisServer) -> Vec<Reply> {
    let queue = keys(node).into_iter().find(|key| key.starts_with("tenure:queue:"));
    match queue.map(|queue| ask(node, &["ZRANGE", &queue, "0", "-1"])) {
        Some(Reply::Many(entries)) => entries,
        _ => Vec::new(),
    }
}

fn queued(node: &RedisServer) -> usize {
    entries(node).len()
}

fn entry(node: &RedisServer) -> String {
    match &entries(node)[..] {
        [Reply::Text(entry)] => entry.clone(),
        other => panic!("{other:?}"),
    }
}

/// Waits until each of these is renewed once more.
async fn renewed<M: HeldMode>(all: &[Guard<M>]) {
    for held in all {
        let until = held.valid_until();
        eventually("a renewal", || async {
            assert!(held.is_held(), "it could not be renewed");
            held.valid_until() > until
        })
        .await;
    }
}

/// t87: eight permits are held and four claims wait while the slot moves. Every permit is renewed and can be released
/// wherever its lock is. No new one is granted meanwhile, and then the waiters are served.
#[tokio::test(flavor = "multi_thread")]
async fn t87_permits_while_a_slot_moves() {
    let cluster = RedisCluster::start_masters();
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let (mut held, mut waiting) = (Vec::<Permit>::new(), Vec::new());
    for _ in 0..2 {
        let permits = locker_at(&cluster.url()).await.semaphore("k", 8);
        for _ in 0..4 {
            held.push(permits.acquire().numbered().ttl(SHORT).await.unwrap());
        }
    }
    for _ in 0..4 {
        let permits = locker_at(&cluster.url()).await.semaphore("k", 8);
        waiting.push(tokio::spawn(permits.acquire().numbered().ttl(LONG).into_future()));
    }
    eventually("all to wait", || async { queued(from) == 4 }).await;

    cluster.begin_move(there, to);
    renewed(&held).await;
    let newcomer = locker_at(&cluster.url()).await.semaphore("k", 8);
    held.remove(0).release().await.unwrap();
    assert_eq!(members(from), 7);
    let refused = newcomer.try_acquire().await.unwrap_err();
    assert!(
        refused.is_unavailable() && format!("{refused:?}").contains("the cluster is moving"),
        "{refused:?}"
    );
    while cluster.move_keys(there, to) > 0 {}
    renewed(&held).await;
    held.remove(0).release().await.unwrap();
    // Two permits are free, and nobody is told of them until the slot has moved.
    assert!(waiting.iter().all(|one| !one.is_finished()));
    cluster.end_move(there, to);
    renewed(&held).await;

    eventually("two of the waiters to be served", || async {
        waiting.iter().filter(|one| one.is_finished()).count() == 2
    })
    .await;
    eventually("the others to wait there", || async { queued(to) == 2 }).await;
    assert_eq!(members(to), 8);
    for permit in held.drain(..2) {
        permit.release().await.unwrap();
    }
    let mut slots: Vec<_> = held.iter().map(|permit| permit.slot().unwrap()).collect();
    for one in waiting {
        let permit = within("a turn", one).await.unwrap().unwrap();
        slots.push(permit.slot().unwrap());
        held.push(permit);
    }
    slots.sort();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(held.iter().all(|permit| permit.is_held()) && members(to) == 8);
}

/// t87, t85: the clock of the node to which the slot moves is four seconds ahead, or behind. A permit of five seconds
/// that is not renewed ends when its holder counts so: it is granted to nobody before that, and hardly later.
#[tokio::test(flavor = "multi_thread")]
async fn t87_a_permit_moves_to_another_clock() {
    let cluster = RedisCluster::start_masters_with_clocks();
    let (there, here, ahead) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    ahead.clock().set("+4s");
    tokio::task::block_in_place(|| cluster.wait_until_whole());
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (mine, theirs, ttl) = (a.semaphore("k", 3), b.semaphore("k", 2), Duration::from_secs(5));
    for to in [ahead, here] {
        // The lock outlives the permit, and a longer lease has come and gone.
        let long = mine.acquire().ttl(LONG).await.unwrap();
        let start = Instant::now();
        let ends = mine.acquire().ttl(ttl).renew(Renew::Off).await.unwrap();
        let longest = mine.acquire().ttl(LONG * 2).await.unwrap();
        longest.release().await.unwrap();
        tokio::task::block_in_place(|| cluster.move_slot(there, to));
        long.renew().await.unwrap();
        while ends.is_held() {
            let granted = theirs.try_acquire().await.unwrap();
            assert!(granted.is_none() || !ends.is_held(), "{:?}: three of two", start.elapsed());
            if let Some(permit) = granted {
                permit.release().await.unwrap();
                break;
            }
            let shown = b.inspect("k").await.unwrap().unwrap().holders;
            let left = shown.iter().filter_map(|holding| holding.holder.lease_left).min().unwrap();
            let end = left + start.elapsed();
            assert!(left <= ttl && end + Duration::from_millis(500) > ttl, "{left:?} {end:?}");
            lapse(Duration::from_millis(50)).await;
        }
        assert!(start.elapsed() + Duration::from_millis(200) > ttl, "{:?}", start.elapsed());
        let next = within("its end", theirs.acquire().into_future()).await.unwrap();
        assert!(start.elapsed() < ttl + Duration::from_secs(2), "{:?}", start.elapsed());
        next.release().await.unwrap();
        long.release().await.unwrap();
    }
}

/// t75: the request for a permit executes after its caller has given up. The permit is undone, and others get it.
#[tokio::test(flavor = "multi_thread")]
async fn t75_a_late_permit_is_undone() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (here, there, home) = (a.semaphore("k", 2), b.semaphore("k", 2), home(&cluster, "k"));
    let kept = there.acquire().ttl(LONG).await.unwrap();
    home.pause();
    let late = here.try_acquire().ttl(LONG).await.unwrap_err();
    assert!(late.is_unknown() || late.is_unavailable(), "{late:?}");
    home.go_on();
    let next = within("a permit", there.acquire().ttl(LONG).into_future()).await.unwrap();
    eventually("the late permit to be undone", || async { members(home) == 2 }).await;
    assert!(kept.is_held() && next.is_held());
}

/// A reader that asks whether others wait learns of a writer that came before it listened, long before its next
/// renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_learns_of_a_writer_that_came_before() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let home = home(&cluster, "k");
    let reader = a.read("k").ttl(LONG).await.unwrap();
    let writer = tokio::spawn(b.write("k").ttl(LONG).into_future());
    eventually("the writer to wait", || async { queued(home) == 1 }).await;
    in_time(Duration::from_secs(5), "the notice", reader.contended()).await;
    reader.release().await.unwrap();
    within("the writer's turn", writer).await.unwrap().unwrap().release().await.unwrap();
}

/// A watch reports each of several holders: that it came, that it released, that it was forced out.
#[tokio::test(flavor = "multi_thread")]
async fn holders_are_watched_one_by_one() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let mut watch = b.watch("*").await.unwrap();
    let mut next = async || within("an event", watch.next()).await.unwrap().what;
    let one = a.semaphore("k", 2).acquire().ttl(LONG).await.unwrap();
    assert_eq!(next().await, EventKind::Acquired);
    let two = b.semaphore("k", 2).acquire().ttl(LONG * 2).await.unwrap();
    assert_eq!(next().await, EventKind::Acquired);
    two.release().await.unwrap();
    assert_eq!(next().await, EventKind::Released);
    let shown = b.list("*").await.unwrap().remove(0);
    assert_eq!(*shown.mode(), Mode::Permits { permits: 1, capacity: 2 });
    let token = shown.holders[0].token.unwrap();
    b.force_release("k", token, "ann").await.unwrap();
    assert_eq!(next().await, EventKind::Forced("ann".into()));
    assert_eq!(within("the loss", one.lost()).await, Loss::Forced("ann".into()));
}

/// t101: a writer whose process has gone holds back no reader, also where channels have slots: the subscribers of its
/// channel are counted.
#[tokio::test(flavor = "multi_thread")]
async fn t101_a_writer_that_has_gone() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let home = home(&cluster, "k");
    let reader = a.read("k").ttl(LONG).await.unwrap();
    let gone = cluster_at(&cluster.url()).await.unwrap();
    let waiting = {
        let (gone, claim) = (gone.clone(), claim_as(Mode::Exclusive));
        tokio::spawn(async move { gone.acquire(&claim).await })
    };
    eventually("the writer to wait for a push", || async { one_waits(home, "k") }).await;
    let client = entry(home)[33..49].to_owned();
    let listens = || match ask(home, &["PUBSUB", "SHARDCHANNELS"]) {
        Reply::Many(channels) => channels
            .iter()
            .any(|channel| matches!(channel, Reply::Text(channel) if channel.ends_with(&client))),
        other => panic!("{other:?}"),
    };
    assert!(listens());
    waiting.abort();
    let _ = waiting.await;
    gone.close().await;
    eventually("its channel to be closed", || async { !listens() }).await;
    let start = Instant::now();
    let other = within("the other reader", b.read("k").into_future()).await.unwrap();
    assert!(reader.is_held() && other.is_held());
    assert!(start.elapsed() < Duration::from_millis(700), "{:?}", start.elapsed());
}

/// t102: a writer that gives up while the slot moves leaves no entry, and the readers go on.
#[tokio::test(flavor = "multi_thread")]
async fn t102_a_writer_gives_up_while_a_slot_moves() {
    let cluster = RedisCluster::start_masters();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let (there, from, to) = (slot(&cluster, "k"), home(&cluster, "k"), other(&cluster, "k"));
    let reader = a.read("k").ttl(SHORT).await.unwrap();
    let writer = tokio::spawn(b.write("k").ttl(LONG).into_future());
    eventually("the writer to wait", || async { queued(from) == 1 }).await;
    within("the notice", reader.contended()).await;
    cluster.begin_move(there, to);
    renewed(std::slice::from_ref(&reader)).await;
    // The queue cannot be seen by a renewal now: what was known of it stays.
    let second = tokio::spawn(a.read("k").ttl(SHORT).into_future());
    writer.abort();
    eventually("its entry to go", || async { queued(from) == 0 }).await;
    assert!(!second.is_finished() && members(from) == 1);
    while cluster.move_keys(there, to) > 0 {}
    cluster.end_move(there, to);
    let second = within("the second reader", second).await.unwrap().unwrap();
    reader.release().await.unwrap();
    second.release().await.unwrap();
    assert_eq!(members(to), 0);
}

/// t86: a failover loses two grants. Two others may hold the lock with their holders, until those learn of it at once;
/// all fences differ and rise. Later the capacity is kept.
#[tokio::test(flavor = "multi_thread")]
async fn t86_a_failover_loses_permits() {
    let cluster = RedisCluster::start();
    let (a, b) = (locker_at(&cluster.url()).await, locker_at(&cluster.url()).await);
    let before = home(&cluster, "k");
    tokio::task::block_in_place(|| cut_off_replica(&cluster, before));
    let (old, new) = (a.semaphore("k", 2), b.semaphore("k", 2));
    let lost = [old.acquire().ttl(LONG).await.unwrap(), old.acquire().ttl(LONG).await.unwrap()];
    before.kill();
    tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), before));
    let replaced = Instant::now();
    for permit in &lost {
        assert_eq!(within("the loss", permit.lost()).await, Loss::Gone);
    }
    assert!(replaced.elapsed() < Duration::from_secs(2), "{:?}", replaced.elapsed());
    let next = [
        within("a permit", new.acquire().ttl(LONG).into_future()).await.unwrap(),
        within("a permit", new.acquire().ttl(LONG).into_future()).await.unwrap(),
    ];
    assert!(next[0].fence() != next[1].fence());
    for permit in &lost {
        assert!(next.iter().all(|other| other.fence() > permit.fence()));
    }
    assert!(old.try_acquire().await.unwrap().is_none());
    for permit in lost {
        assert!(permit.release().await.is_err_and(|error| error.is_lost()));
    }
    assert!(next.iter().all(|permit| permit.is_held()), "a late release hits nobody");
}

/// t08, t86: with `replicas`, the permits and readers that a replica has survive the death of their master.
#[tokio::test(flavor = "multi_thread")]
async fn t08_readers_that_a_replica_has() {
    let cluster = RedisCluster::start();
    let url = format!("{}?replicas=1", cluster.url());
    let (a, b) = (locker_at(&url).await, locker_at(&cluster.url()).await);
    let reader = a.read("k").ttl(LONG).await.unwrap();
    let before = home(&cluster, "k");
    before.kill();
    tokio::task::block_in_place(|| cluster.wait_for_another(slot(&cluster, "k"), before));
    eventually("an answer of the new master", || async {
        matches!(b.try_write("k").await, Ok(None))
    })
    .await;
    assert!(reader.is_held());
    reader.release().await.unwrap();
    let few = a.read("k").ttl(LONG).await.unwrap_err();
    assert!(few.is_unavailable() && format!("{few:?}").contains("0 of 1 replicas"), "{few:?}");
    let writer = within("the lock", b.write("k").into_future()).await.unwrap();
    writer.release().await.unwrap();
}

/// The holders of `k` at this moment.
#[derive(Default)]
struct Register {
    holders: Mutex<Vec<(u64, Mode, Held)>>,
    entered: AtomicU64,
}

impl Register {
    /// Enters a holder, which the others must admit.
    fn enter<M: HeldMode>(&self, mode: &Mode, guard: &Guard<M>) -> u64 {
        let (mut holders, view) = (self.holders.lock().unwrap(), guard.held());
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        let live = holders.iter().filter(|(.., held)| held.is_held());
        let others: Vec<_> = live.map(|(_, mode, _)| mode.clone()).collect();
        assert!(!view.is_held() || admits(&others, mode), "{mode} beside {others:?}");
        holders.push((number, mode.clone(), view));
        number
    }

    fn leave(&self, number: u64) {
        self.holders.lock().unwrap().retain(|(other, ..)| *other != number);
    }
}

/// Holds `k` for a moment, or until a lease of a second that is not renewed has ended.
async fn hold_once<M: HeldMode>(
    request: LockRequest<M>,
    mode: Mode,
    register: &Register,
    dies: bool,
) {
    let request = request.wait(Duration::from_millis(500));
    let request = match dies {
        true => request.ttl(Duration::from_secs(1)).renew(Renew::Off),
        false => request.ttl(LONG),
    };
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) => {
            let expected = error.is_busy() || error.is_unknown() || error.is_unavailable();
            return assert!(expected, "{error:?}");
        }
    };
    let number = register.enter(&mode, &guard);
    if dies {
        guard.lost().await;
    }
    tokio::task::yield_now().await;
    register.leave(number);
    if let Err(error) = guard.release().await {
        assert!(error.is_lost() == dies, "a move loses nothing: {error:?}");
    }
}

async fn contend(locker: Locker, register: Arc<Register>, seed: u64, over: Arc<AtomicBool>) {
    let mut rng = Rng::new(seed);
    while !over.load(Ordering::Relaxed) {
        let dies = rng.one_in(10);
        let heavy = if rng.one_in(3) { 2 } else { 1 };
        match rng.below(6) {
            0 => hold_once(locker.write("k"), Mode::Exclusive, &register, dies).await,
            1 | 2 => hold_once(locker.read("k"), Mode::Read, &register, dies).await,
            _ => {
                let mode = Mode::Permits { permits: heavy, capacity: 3 };
                let request = locker.semaphore("k", 3).acquire_many(heavy);
                hold_once(request, mode, &register, dies).await;
            }
        }
    }
}

/// t87: readers, writers and permits of four lockers share a key, some of them until their leases end, while its slot
/// moves to and fro between nodes whose clocks are four seconds apart. Only claims that fit hold it together.
#[tokio::test(flavor = "multi_thread")]
async fn t87_a_storm_while_a_slot_moves() {
    let cluster = RedisCluster::start_masters_with_clocks();
    let mut lockers = Vec::new();
    for _ in 0..4 {
        lockers.push(locker_at(&cluster.url()).await);
    }
    home(&cluster, "k").clock().set("+4s");
    tokio::task::block_in_place(|| cluster.wait_until_whole());
    let (register, over) = (Arc::<Register>::default(), Arc::<AtomicBool>::default());
    let (seed, mut rng) = Rng::from_environment();
    println!("TENURE_SEED={seed}");
    let mut tasks = Vec::new();
    for locker in &lockers {
        for _ in 0..4 {
            let (register, over) = (register.clone(), over.clone());
            let seed = rng.below(u64::MAX);
            tasks.push(tokio::spawn(contend(locker.clone(), register, seed, over)));
        }
    }
    let there = slot(&cluster, "k");
    tokio::task::block_in_place(|| {
        for _ in 0..10 {
            cluster.begin_move(there, other(&cluster, "k"));
            pass(Duration::from_millis(150));
            cluster.move_slot(there, other(&cluster, "k"));
            pass(Duration::from_millis(700));
        }
    });
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        within("a task to end", task).await.unwrap();
    }
    let held = register.entered.load(Ordering::Relaxed);
    println!("held {held} times");
    assert!(held > 20, "{held}");
    within("the lock", lockers[0].write("k").into_future()).await.unwrap().release().await.unwrap();
}

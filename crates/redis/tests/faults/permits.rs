//! Permits under faults: late requests, clocks that are set, capacities that change, many holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend as _, Loss, Release, Renewal};
use tenure_core::{Claim, ClaimOptions, Error, Key, Lease, Mode, Permit, Renew, Semaphore, Token};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{Monitor, calls, entries, granted, locker, pttl, redis};

const LOCK: &str = "tenure:lock:k";
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(3);

fn claim_as(mode: Mode) -> Arc<Claim> {
    let options = ClaimOptions::new(LONG).mode(mode).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), options))
}

fn one_of(capacity: u32) -> Mode {
    Mode::Permits { permits: 1, capacity }
}

/// How many members the lock has.
fn members(server: &RedisServer) -> i64 {
    match server.client().command(&["ZCARD", LOCK]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

async fn takes(semaphore: &Semaphore) -> Permit {
    within("a permit", semaphore.acquire().ttl(LONG).into_future()).await.unwrap()
}

/// t75: the request for a permit executes after its caller has given up. The permit is undone, and in between it is
/// counted once.
#[tokio::test]
async fn t75_a_late_permit_is_undone() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let (here, there) = (a.semaphore("k", 2), b.semaphore("k", 2));
    let kept = takes(&there).await;
    server.pause();
    let try_one = || here.try_acquire().ttl(LONG).into_future();
    let (one, two) = tokio::join!(try_one(), try_one());
    assert!(one.unwrap_err().is_unknown() && two.unwrap_err().is_unknown());
    server.go_on();
    eventually("late permits to be undone", || async {
        let count = members(&server);
        assert!(count <= 2, "{count} of 2");
        count == 1
    })
    .await;
    let other = takes(&there).await;
    assert!(kept.is_held() && other.is_held());
}

/// t85: the server's clock is set a minute forward under four permits. They are lost at their next renewal, and later
/// fences are higher.
#[tokio::test]
async fn t85_the_clock_is_put_forward_under_permits() {
    let server = RedisServer::start_with_clock(&[]);
    let (a, b) = (locker(&server).await, locker(&server).await);
    let semaphore = a.semaphore("k", 4);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(semaphore.acquire().ttl(SHORT).await.unwrap());
    }
    server.clock().set("+60s");
    let rival = takes(&b.semaphore("k", 4)).await;
    for permit in &held {
        assert!(rival.fence() > permit.fence());
        let until = permit.valid_until();
        assert_eq!(within("the loss", permit.lost()).await, Loss::Gone);
        assert!(a.clock().now() < until, "by the renewal, before its time");
    }
    assert!(rival.is_held());
}

/// t85: the server's clock is set a minute back under four permits. The server keeps them for a minute more; no holder
/// relies on one after its own `valid_until`.
#[tokio::test]
async fn t85_the_clock_is_put_back_under_permits() {
    let server = RedisServer::start_with_clock(&[]);
    let a = locker(&server).await;
    let semaphore = a.semaphore("k", 4);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(semaphore.acquire().ttl(SHORT).renew(Renew::Off).await.unwrap());
    }
    server.clock().set("-60s");
    assert!(pttl(&server, LOCK) > 50_000, "the server keeps them for a minute more");
    for permit in &held {
        let until = permit.valid_until();
        assert_eq!(within("the loss", permit.lost()).await, Loss::Expired);
        assert!(a.clock().now() >= until && !permit.is_held());
    }
    eventually("them to be undone", || async { members(&server) == 0 }).await;
}

/// A slow machine may not answer in time. Then the release is sent again in the background.
fn released<T>(answer: Result<T, Error>) {
    assert!(answer.as_ref().err().is_none_or(Error::is_unknown), "{:?}", answer.err());
}

/// Takes permits for a moment again and again until `over`. Returns the highest number that it saw inside.
async fn come_and_go(semaphore: Semaphore, inside: Arc<AtomicU32>, over: Arc<AtomicBool>) -> u32 {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        let permit = takes(&semaphore).await;
        most = most.max(inside.fetch_add(1, Ordering::SeqCst) + 1);
        lapse(Duration::from_millis(1)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        released(permit.release().await);
    }
    most
}

/// The highest number of permits that were held at a time in a storm of processes with these capacities.
async fn storm(server: &RedisServer, capacities: &[u32]) -> u32 {
    let (inside, over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let mut tasks = Vec::new();
    for capacity in capacities {
        let locker = locker(server).await;
        for _ in 0..4 {
            let semaphore = locker.semaphore("k", *capacity);
            tasks.push(tokio::spawn(come_and_go(semaphore, inside.clone(), over.clone())));
        }
    }
    lapse(Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    let mut most = 0;
    for task in tasks {
        most = most.max(within("a task to end", task).await.unwrap());
    }
    most
}

/// t80: processes with the capacities 4 and 6 never hold more than 6 permits, and with 4 only, never a fifth. A
/// capacity of 2 waits for holders, and ends none.
#[tokio::test(flavor = "multi_thread")]
async fn t80_capacities_in_a_storm() {
    let server = RedisServer::start();
    let (mixed, same) = (storm(&server, &[4, 6, 4, 6]).await, storm(&server, &[4, 4, 4]).await);
    assert!((5..=6).contains(&mixed) && (2..=4).contains(&same), "{mixed} of 6, {same} of 4");
    let a = locker(&server).await;
    let (four, two) = (a.semaphore("k", 4), a.semaphore("k", 2));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(takes(&four).await);
    }
    for left in [3, 2] {
        assert!(two.try_acquire().await.unwrap().is_none());
        held.pop().unwrap().release().await.unwrap();
        assert!(held.len() == left && held.iter().all(|permit| permit.is_held()));
    }
    assert!(two.try_acquire().await.unwrap().is_none());
    held.pop().unwrap().release().await.unwrap();
    assert!(two.try_acquire().await.unwrap().is_some());
}

/// t108: the capacity is raised while ten wait. The one with the smaller capacity is served in its turn, and then the
/// same release serves those with the larger one. Both capacities are shown.
#[tokio::test(flavor = "multi_thread")]
async fn t108_the_capacity_is_raised() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let first = [claim_as(one_of(2)), claim_as(one_of(2))];
    for claim in &first {
        granted(&store, claim).await;
    }
    let mut waiting = Vec::new();
    for n in 0..10 {
        let (store, claim) = (store.clone(), claim_as(one_of(if n == 0 { 2 } else { 4 })));
        waiting.push(tokio::spawn(async move { store.acquire(&claim).await }));
        eventually("it to wait", || async { entries(&server).len() == n + 1 }).await;
    }
    let ended = |waiting: &[tokio::task::JoinHandle<_>]| {
        waiting.iter().map(tokio::task::JoinHandle::is_finished).collect::<Vec<_>>()
    };
    assert_eq!(members(&server), 2, "the first holds back the others");
    store.abandon(&first[0]).await.unwrap();
    eventually("three to be served", || async { ended(&waiting)[..3] == [true; 3] }).await;
    assert_eq!((members(&server), entries(&server).len()), (4, 7));
    assert!(!ended(&waiting)[3..].contains(&true));
    let shown = locker(&server).await.inspect("k").await.unwrap().unwrap();
    let with = |capacity| shown.holders.iter().filter(|it| it.mode == one_of(capacity)).count();
    assert_eq!((with(2), with(4)), (2, 2));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// t105: a writer comes to three hundred readers. Its one request publishes 256 notices and no more; every reader
/// learns of it by its next renewal at the latest.
#[tokio::test]
async fn t105_a_notice_to_three_hundred() {
    let server = RedisServer::start();
    let (store, writer) = (redis(&server).await, locker(&server).await);
    let mut leases = Vec::new();
    for _ in 0..300 {
        let claim = claim_as(Mode::Read);
        let grant = granted(&store, &claim).await;
        leases.push(Arc::new(Lease::new(claim, grant, store.clock())));
    }
    let asked = tokio::spawn(writer.write("k").ttl(LONG).into_future());
    eventually("the writer to wait", || async { entries(&server).len() == 1 }).await;
    let stats = server.client().text(&["INFO", "commandstats"]).unwrap();
    assert!(stats.contains("cmdstat_publish:calls=256,"), "{stats}");
    let learned = AtomicU32::new(0);
    let count = |_, answer| match answer {
        Renewal::Renewed { contended: true, .. } => _ = learned.fetch_add(1, Ordering::Relaxed),
        other => panic!("{other:?}"),
    };
    store.renew(&leases, &count).await;
    assert_eq!(learned.into_inner(), 300);
    asked.abort();
}

/// t116: one of four permits is taken by force. Its holder is notified, the others keep theirs, and the waiter is
/// served by the same request.
#[tokio::test]
async fn t116_one_of_four_permits_is_forced() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let (here, there) = (a.semaphore("k", 4), b.semaphore("k", 4));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(here.acquire().ttl(LONG).numbered().await.unwrap());
    }
    let waiting = tokio::spawn(there.acquire().ttl(LONG).numbered().into_future());
    eventually("the other to wait", || async { entries(&server).len() == 1 }).await;
    let shown = a.inspect("k").await.unwrap().unwrap();
    let taken = shown.holders.iter().find(|holding| holding.slot == Some(2)).unwrap();
    b.force_release("k", taken.token.unwrap(), "ann").await.unwrap();
    let next = within("the waiter's turn", waiting).await.unwrap().unwrap();
    assert_eq!(next.slot(), Some(2));
    let lost = held.iter().find(|permit| permit.slot() == Some(2)).unwrap();
    assert_eq!(within("the loss", lost.lost()).await, Loss::Forced("ann".into()));
    assert_eq!(held.iter().filter(|permit| permit.is_held()).count(), 3);
    assert!(next.fence() > held.iter().map(|permit| permit.fence()).max().unwrap());
}

fn numbered(capacity: u32) -> Arc<Claim> {
    let options = ClaimOptions::new(LONG).mode(one_of(capacity)).numbered(true);
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), options))
}

/// Fills the lock with a thousand numbered permits of other claims.
fn fill(server: &RedisServer) {
    let script = "for n = 0, 999 do redis.call('ZADD', KEYS[1], 9000000000000, \
                  string.format('%032x %016x 60000 4500 #1/2000n%d:h:1:u:p::', n, n, n)) end";
    server.client().command(&["EVAL", script, "1", LOCK]);
}

/// How often these commands read all members of the lock.
fn walks(commands: &[String]) -> usize {
    let all = format!("\"ZRANGE\" \"{LOCK}\" \"0\" \"-1\"");
    commands.iter().filter(|line| line.ends_with(&all)).count()
}

/// B3: a numbered permit among a thousand is found by its slot. No other member is read by its renewal, by its release
/// where nobody waits, and by one that closes its slot for a while.
#[tokio::test]
async fn one_numbered_permit_of_a_thousand() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    fill(&server);
    let claims = [numbered(2_000), numbered(2_000)];
    let mut leases = Vec::new();
    for (claim, slot) in claims.into_iter().zip(1_000..) {
        let grant = granted(&store, &claim).await;
        assert_eq!(grant.slot, Some(slot));
        leases.push(Arc::new(Lease::new(claim, grant, store.clock())));
    }
    let monitor = Monitor::of(&server);
    let before = calls(&server, "zrange");
    let renewed = renewals(&store, &leases[..1]).await;
    assert!(matches!(renewed[..], [Some(Renewal::Renewed { .. })]), "{renewed:?}");
    let release = async |lease, then| store.release(lease, then).await.unwrap();
    assert_eq!(release(&leases[0], AfterRelease::Free).await, Release::Freed);
    assert_eq!(calls(&server, "zrange"), before, "for a renewal and a release");
    assert_eq!(members(&server), 1_001);
    assert_eq!(release(&leases[1], AfterRelease::Cooldown(LONG)).await, Release::Freed);
    assert_eq!((walks(&monitor.commands(&server)), members(&server)), (0, 1_001));
    // The slot of the first is free; that of the second is closed.
    for slot in [1_000, 1_002] {
        assert_eq!(granted(&store, &numbered(2_000)).await.slot, Some(slot));
    }
}

/// B3: a release that serves 32 waiters of numbered permits reads the members once.
#[tokio::test]
async fn numbered_waiters_are_served_at_once() {
    let server = RedisServer::start();
    let (store, alone) = (redis(&server).await, locker(&server).await);
    let writer = alone.write("k").ttl(LONG).await.unwrap();
    let asking = |store: tenure_redis::Redis| async move {
        store.acquire(&numbered(32)).await.unwrap().slot
    };
    let waiting: Vec<_> = (0..32).map(|_| tokio::spawn(asking(store.clone()))).collect();
    eventually("all to wait", || async { entries(&server).len() == 32 }).await;
    let monitor = Monitor::of(&server);
    writer.release().await.unwrap();
    let mut slots = Vec::new();
    for one in waiting {
        slots.push(within("a turn", one).await.unwrap());
    }
    slots.sort_unstable();
    assert!(slots.into_iter().eq((0..32).map(Some)), "each slot once");
    let commands = monitor.commands(&server);
    // Heartbeats of waiters may come in between: each is a script that reads the members once.
    let scripts = commands.iter().filter(|line| line.contains("\"EVALSHA\"")).count();
    assert!((1..=scripts).contains(&walks(&commands)), "{} walks", walks(&commands));
}

/// The renewal of a lost reader looks only at the first member of a large sorted set that another program has put in
/// its place.
#[tokio::test]
async fn a_large_foreign_set_is_not_read() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let claim = claim_as(Mode::Read);
    let grant = granted(&store, &claim).await;
    let leases = [Arc::new(Lease::new(claim, grant, store.clock()))];
    let script = "redis.call('DEL', KEYS[1]) \
                  for n = 1, 100000 do redis.call('ZADD', KEYS[1], n, 'theirs ' .. n) end";
    server.client().command(&["EVAL", script, "1", LOCK]);
    let monitor = Monitor::of(&server);
    let answers = renewals(&store, &leases).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(Loss::Gone))]), "{answers:?}");
    assert_eq!((walks(&monitor.commands(&server)), members(&server)), (0, 100_000));
}

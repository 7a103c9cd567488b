//! Readers and permits: claims that hold a lock together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::backend::{AfterRelease, Backend as _, Grant, Loss, Release, Renewal, Validity};
use tenure_core::{
    Claim, ClaimOptions, Fence, Held, HeldMode, Key, Lease, LockRequest, Locker, Mode, Renew,
    Token, admits,
};
use tenure_redis::Redis;
use tenure_testkit::intercept::renewals;
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

use crate::support::{
    Monitor, calls, entries, get, granted, kind, locker, pttl, redis, requests, size, sorted,
};

const LOCK: &str = "tenure:lock:k";
const LONG: Duration = Duration::from_secs(60);

fn claim_as(mode: Mode, ttl: Duration) -> Arc<Claim> {
    let options = ClaimOptions::new(ttl).mode(mode).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), options))
}

fn permits(permits: u32, capacity: u32) -> Mode {
    Mode::Permits { permits, capacity }
}

fn capacity(mode: &Mode) -> Option<u32> {
    match mode {
        Mode::Permits { capacity, .. } => Some(*capacity),
        _ => None,
    }
}

/// How many members the lock has.
fn members(server: &RedisServer) -> i64 {
    match server.client().command(&["ZCARD", LOCK]) {
        Reply::Int(count) => count,
        other => panic!("{other:?}"),
    }
}

async fn waits(server: &RedisServer, count: usize) {
    eventually("so many waiters", || async { entries(server).len() == count }).await;
}

/// t76: a release that is sent three times frees one permit.
#[tokio::test]
async fn t76_a_release_sent_three_times() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let claims = [(); 3].map(|()| claim_as(permits(1, 3), LONG));
    let mut leases = Vec::new();
    for claim in &claims {
        let grant = granted(&store, claim).await;
        leases.push(Arc::new(Lease::new(claim.clone(), grant, store.clock())));
    }
    assert_eq!(members(&server), 3);
    let release = || store.release(&leases[0], AfterRelease::Free);
    assert_eq!(release().await.unwrap(), Release::Freed);
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    assert_eq!(members(&server), 2);
}

/// t74: a grant that is asked for again is counted once, and its fence does not fall.
#[tokio::test]
async fn t74_a_grant_asked_for_again() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let heavy = claim_as(permits(3, 4), LONG);
    let first = granted(&store, &heavy).await;
    let again = granted(&store, &heavy).await;
    assert!(again.fence > first.fence && members(&server) == 3);
    let light = claim_as(permits(2, 4), LONG);
    assert!(
        store.try_acquire(&light).await.is_ok_and(|tried| format!("{tried:?}").starts_with("Held"))
    );
    store.abandon(&heavy).await.unwrap();
    assert_eq!(size(&server), 1, "only the fence is left");
}

/// Where nobody waits, a reader or a single permit costs two requests by short scripts, alone and beside others. Only
/// the full scripts look for the claim with `ZSCORE`.
#[tokio::test]
async fn readers_and_permits_by_short_scripts() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    // From now on the server knows the scripts.
    b.read("k").await.unwrap().release().await.unwrap();
    for shared in [false, true] {
        for permits in [false, true] {
            let reader = match shared && !permits {
                true => Some(a.read("k").await.unwrap()),
                false => None,
            };
            let permit = match shared && permits {
                true => Some(a.semaphore("k", 2).acquire().await.unwrap()),
                false => None,
            };
            let before = (requests(&server), calls(&server, "zscore"));
            match permits {
                true => b.semaphore("k", 2).acquire().await.unwrap().release().await.unwrap(),
                false => b.read("k").await.unwrap().release().await.unwrap(),
            };
            let after = (requests(&server), calls(&server, "zscore"));
            // The short release asks for the end of its member; a full script would ask more.
            assert_eq!(after, (before.0 + 2, before.1 + 1), "beside another: {shared}");
            if let Some(reader) = reader {
                reader.release().await.unwrap();
            }
            if let Some(permit) = permit {
                permit.release().await.unwrap();
            }
            assert_eq!(size(&server), 1, "only the fence is left");
        }
    }
}

/// The short script keeps the rules: an ended permit is not counted, a taken one is, and claims of two kinds never
/// hold the lock together. A grant that is asked for again is counted once.
#[tokio::test]
async fn t74_t81_short_scripts_keep_the_rules() {
    let server = RedisServer::start();
    let lockers = [locker(&server).await, locker(&server).await, locker(&server).await];
    let [a, b, c] = &lockers;
    let held = a.semaphore("k", 2).acquire().ttl(LONG).await.unwrap();
    assert!(c.try_read("k").await.unwrap().is_none());
    let second = b.semaphore("k", 2).try_acquire().await.unwrap().unwrap();
    assert!(c.semaphore("k", 2).try_acquire().await.unwrap().is_none());
    assert!(second.fence() > held.fence());
    let end = "redis.call('ZADD', KEYS[1], 1000, redis.call('ZRANGE', KEYS[1], 0, 0)[1])";
    server.client().command(&["EVAL", end, "1", LOCK]);
    // This locker has not seen that others want the key.
    let third = locker(&server).await.semaphore("k", 2).try_acquire().await.unwrap();
    assert!(third.is_some() && members(&server) == 2);

    server.client().command(&["DEL", LOCK]);
    let (store, claim) = (redis(&server).await, claim_as(Mode::Read, LONG));
    let (first, again) = (granted(&store, &claim).await, granted(&store, &claim).await);
    assert!(again.fence > first.fence && members(&server) == 1);
}

/// What clients see of a lock that is held together counts as no error of the server, and an attempt that fails
/// writes nothing.
#[tokio::test]
async fn claims_that_fail_leave_no_trace() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let reader = a.read("k").ttl(LONG).await.unwrap();
    let fence = get(&server, "tenure:fence");
    for _ in 0..2 {
        assert!(b.try_write("k").await.unwrap().is_none());
        assert!(b.semaphore("k", 1).try_acquire().await.unwrap().is_none());
    }
    assert_eq!(get(&server, "tenure:fence"), fence);
    let writer = tokio::spawn(b.write("k").into_future());
    waits(&server, 1).await;
    reader.release().await.unwrap();
    let writer = within("the writer's turn", writer).await.unwrap().unwrap();
    assert!(a.try_read("k").await.unwrap().is_none());
    writer.release().await.unwrap();
    let errors = server.client().text(&["INFO", "errorstats"]).unwrap();
    assert!(!errors.contains("WRONGTYPE"), "{errors}");
}

/// t77, t78: a permit has ended by the server's clock, and nobody has removed it yet. Its renewal says so and does not
/// revive it, and its release frees nothing, neither then nor after another claim has taken its place.
#[tokio::test]
async fn t78_an_ended_permit_is_not_revived() {
    let server = RedisServer::start();
    let (a, b) = (redis(&server).await, redis(&server).await);
    let claim = claim_as(permits(1, 1), LONG);
    let grant = granted(&a, &claim).await;
    let held = Arc::new(Lease::new(claim, grant, a.clock()));
    let end = "redis.call('ZADD', KEYS[1], 1000, redis.call('ZRANGE', KEYS[1], 0, 0)[1])";
    server.client().command(&["EVAL", end, "1", LOCK]);
    let lost = renewals(&a, std::slice::from_ref(&held)).await;
    assert!(matches!(lost[..], [Some(Renewal::Lost(Loss::Gone))]), "{lost:?}");
    assert_eq!(members(&server), 1, "nobody has removed it");
    let release = || a.release(&held, AfterRelease::Free);
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    let next = claim_as(permits(1, 1), LONG);
    granted(&b, &next).await;
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    let member = &sorted(&server, LOCK)[..];
    assert!(matches!(member, [one] if one.starts_with(&next.token().expose())), "{member:?}");
}

/// t82: a plain `SET NX` client is kept out while anybody reads, and keeps everybody out. Its value is not touched.
#[tokio::test]
async fn t82_plain_clients_beside_readers() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    let reader = a.read("k").await.unwrap();
    let set = || server.client().command(&["SET", LOCK, "theirs", "NX", "PX", "400"]);
    assert_eq!(set(), Reply::Nil);
    reader.release().await.unwrap();
    assert_eq!(set(), Reply::Text("OK".into()));
    assert!(a.try_read("k").await.unwrap().is_none());
    assert!(a.semaphore("k", 4).try_acquire().await.unwrap().is_none());
    assert_eq!(get(&server, LOCK).as_deref(), Some("theirs"));
    within("the end of theirs", a.read("k").into_future()).await.unwrap().release().await.unwrap();
}

/// t83: a build without readers and permits takes the mode of an entry for a shared owner, and writes it into
/// the value. Such a lock is held alone: no reader or permit takes it for its own, and no release of theirs frees it.
#[tokio::test]
async fn t83_an_older_build_granted_it() {
    let server = RedisServer::start();
    let (store, a) = (redis(&server).await, locker(&server).await);
    for (mode, word) in [(Mode::Read, "~"), (permits(1, 4), "#1/4")] {
        let value = format!("-t1:0123456789abcdef:{word}:1800000000000:h:1:u:p::::7");
        server.client().command(&["SET", LOCK, &value, "PX", "60000"]);
        assert!(a.try_read("k").await.unwrap().is_none());
        assert!(a.semaphore("k", 4).try_acquire().await.unwrap().is_none());
        let claim = claim_as(mode, LONG);
        let lease = Arc::new(Lease::new(claim, Grant::new(7, Validity::Unbounded), store.clock()));
        let release = store.release(&lease, AfterRelease::Free).await;
        assert_eq!(release.unwrap(), Release::NotHeld);
        assert_eq!(get(&server, LOCK), Some(value));
    }
}

/// A sorted set of another program at the lock's key is refused, and not changed.
#[tokio::test]
async fn a_foreign_sorted_set_is_not_touched() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["ZADD", LOCK, "1", "one", "2", "two"]);
    let key = format!("the key `{LOCK}` is not a string");
    for error in [
        a.try_read("k").await.map(drop).unwrap_err(),
        a.try_lock("k").await.map(drop).unwrap_err(),
        a.semaphore("k", 1).try_acquire().await.map(drop).unwrap_err(),
    ] {
        assert!(error.is_refused() && format!("{error:?}").contains(&key), "{error:?}");
    }
    assert_eq!((members(&server), pttl(&server, LOCK)), (2, -1));
}

/// t123: a label or reason that looks like the mode of a claim is text. The other readers keep the lock.
#[tokio::test]
async fn t123_a_reason_that_looks_like_permits() {
    let server = RedisServer::start();
    let lockers = [locker(&server).await, locker(&server).await, locker(&server).await];
    let [a, b, c] = &lockers;
    let (one, two) = (a.read("k").await.unwrap(), b.read("k").await.unwrap());
    let odd = c.read("k").reason("build #9/12").await.unwrap();
    odd.renew().await.unwrap();
    assert_eq!(members(&server), 3);
    let writer = locker(&server).await;
    let waiting = tokio::spawn(writer.write("k").into_future());
    waits(&server, 1).await;
    odd.release().await.unwrap();
    assert_eq!(members(&server), 2);
    assert!(one.renew().await.is_ok() && two.renew().await.is_ok(), "both still read");
    one.release().await.unwrap();
    two.release().await.unwrap();
    within("the writer's turn", waiting).await.unwrap().unwrap().release().await.unwrap();
    let slots = a.semaphore("k", 4);
    let plain = slots.acquire().label("y #1/4n0:").await.unwrap();
    assert_eq!(slots.acquire().numbered().await.unwrap().slot(), Some(0));
    drop(plain);
}

/// t79: all permits of a claim end in the same millisecond.
#[tokio::test]
async fn permits_of_a_claim_end_together() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    for _ in 0..30 {
        let claim = claim_as(permits(100, 100), LONG);
        granted(&store, &claim).await;
        let script = "local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') \
                      for at = 2, #all, 2 do if all[at] ~= all[2] then return 0 end end return #all";
        assert_eq!(server.client().command(&["EVAL", script, "1", LOCK]), Reply::Int(200));
        store.abandon(&claim).await.unwrap();
    }
}

/// t84: readers whose lock is deleted find out by their next renewal, and the writer that waits gets a higher fence.
#[tokio::test]
async fn t84_a_lock_that_is_deleted_under_readers() {
    let server = RedisServer::start();
    let (a, b, c) = (locker(&server).await, locker(&server).await, locker(&server).await);
    let short = Duration::from_millis(900);
    let (one, two) = (a.read("k").ttl(short).await.unwrap(), b.read("k").ttl(short).await.unwrap());
    let writer = tokio::spawn(c.write("k").into_future());
    waits(&server, 1).await;
    server.client().command(&["DEL", LOCK]);
    let writer = within("the writer's turn", writer).await.unwrap().unwrap();
    for reader in [&one, &two] {
        assert_eq!(within("the loss", reader.lost()).await, Loss::Gone);
        assert!(reader.fence() < writer.fence());
    }
    assert!(writer.is_held());
}

/// t101: a writer whose process has gone holds back no reader, and keeps its entry until its heartbeat is over.
#[tokio::test]
async fn t101_a_writer_that_has_gone() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let reader = a.read("k").ttl(LONG).await.unwrap();
    let gone = redis(&server).await;
    let claim = claim_as(Mode::Exclusive, LONG);
    let waiting = {
        let (gone, claim) = (gone.clone(), claim.clone());
        tokio::spawn(async move { gone.acquire(&claim).await })
    };
    // A waiter that polls has no inbox: it counts until its heartbeat is over.
    eventually("it to wait with an inbox", || async { kind(&server, &claim) == "push" }).await;
    let inbox = format!("tenure:inbox:{}", &entries(&server)[0][33..49]);
    waiting.abort();
    let _ = waiting.await;
    gone.close().await;
    eventually("the inbox to be gone", || async {
        server.client().command(&["PUBSUB", "NUMSUB", &inbox])
            == Reply::Many(vec![Reply::Text(inbox.clone()), Reply::Int(0)])
    })
    .await;
    let start = Instant::now();
    let other = within("the other reader", b.read("k").into_future()).await.unwrap();
    assert!(reader.is_held() && other.is_held());
    assert!(start.elapsed() < Duration::from_millis(700), "{:?}", start.elapsed());
}

/// t103: two hundred readers behind a writer come in by batches of 32: by one release and six requests, with one
/// message for each reader (a grant, or that it is to ask), and without a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn t103_many_readers_behind_a_writer() {
    let server = RedisServer::start();
    let (a, store) = (locker(&server).await, redis(&server).await);
    // From now on its inbox is subscribed.
    let (held, first) = (a.write("k").await.unwrap(), claim_as(Mode::Read, LONG));
    let waiting = read_together(&store, [first.clone()]);
    eventually("it to wait for a push", || async { kind(&server, &first) == "push" }).await;
    held.release().await.unwrap();
    all_granted(waiting).await;
    for _ in 0..20 {
        server.client().command(&["DEL", LOCK]);
        let (writer, began) = (a.write("k").ttl(LONG).await.unwrap(), Instant::now());
        let claims: Vec<_> = (0..200).map(|_| claim_as(Mode::Read, LONG)).collect();
        let waiting = read_together(&store, claims.clone());
        let knows = |claim: &Arc<Claim>| claim.wait_status().position.is_some();
        eventually("all to wait for a push", || async { claims.iter().all(knows) }).await;
        let monitor = Monitor::of(&server);
        writer.release().await.unwrap();
        all_granted(waiting).await;
        let commands = monitor.commands(&server);
        let count = |word: &str| commands.iter().filter(|line| line.contains(word)).count();
        // The scripts that serve have five keys.
        let served = count(&format!("\"5\" \"{LOCK}\""));
        let counts = (served, count("\"PUBLISH\""), members(&server));
        // A heartbeat is sent after 0.75 s at the earliest. On a slow machine another round is needed.
        if began.elapsed() < Duration::from_millis(700) {
            return assert_eq!(counts, (7, 200, 200), "scripts, messages and readers");
        }
    }
    panic!("no round without heartbeats");
}

/// Each claim asks in a task of its own.
fn read_together(
    store: &Redis,
    claims: impl IntoIterator<Item = Arc<Claim>>,
) -> Vec<JoinHandle<Grant>> {
    let ask = |claim: Arc<Claim>| {
        let store = store.clone();
        tokio::spawn(async move { store.acquire(&claim).await.unwrap() })
    };
    claims.into_iter().map(ask).collect()
}

async fn all_granted(waiting: Vec<JoinHandle<Grant>>) {
    for one in waiting {
        within("a turn", one).await.unwrap();
    }
}

/// The lock's key expires with the member that lasts longest, not with the one that came last.
#[tokio::test]
async fn the_key_ends_with_its_last_member() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    granted(&store, &claim_as(Mode::Read, LONG)).await;
    granted(&store, &claim_as(Mode::Read, Duration::from_secs(5))).await;
    let left = pttl(&server, LOCK);
    assert!((50_000..=60_000).contains(&left), "{left}");
}

/// When the member with the last end leaves, the key ends with the next one, so that a plain `SET NX` client is not
/// kept out for longer: by the short release of a reader, and by the full one of several permits.
#[tokio::test]
async fn the_key_ends_with_the_last_member_that_is_left() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let short = Duration::from_secs(5);
    let long = a.read("k").ttl(LONG).await.unwrap();
    let reader = b.read("k").ttl(short).renew(Renew::Off).await.unwrap();
    assert!(pttl(&server, LOCK) > 50_000);
    long.release().await.unwrap();
    assert!((1..=5_000).contains(&pttl(&server, LOCK)), "{}", pttl(&server, LOCK));
    reader.release().await.unwrap();

    let long = a.semaphore("k", 3).acquire_many(2).ttl(LONG).await.unwrap();
    let _permit = b.semaphore("k", 3).acquire().ttl(short).renew(Renew::Off).await.unwrap();
    long.release().await.unwrap();
    assert!((1..=5_000).contains(&pttl(&server, LOCK)), "{}", pttl(&server, LOCK));
}

/// The holders at this moment, as a judge of all processes sees them.
#[derive(Default)]
struct Register(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    holders: Vec<(u64, Mode, Option<u32>, Held)>,
    entered: u64,
    /// The highest fence of an exclusive holder.
    last: Option<Fence>,
}

impl Register {
    /// Enters a holder that the others must admit. Its fence is higher than that of every exclusive holder before it.
    fn enter<M: HeldMode>(
        &self,
        mode: &Mode,
        slot: Option<u32>,
        guard: &tenure_core::Guard<M>,
    ) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { holders, entered, last } = &mut *state;
        let view = guard.held();
        let live = || holders.iter().filter(|(.., held)| held.is_held());
        if view.is_held() {
            let modes: Vec<_> = live().map(|(_, mode, ..)| mode.clone()).collect();
            // Holders come here in another order than they were granted: the largest capacity counts.
            let largest = modes.iter().chain([mode]).filter_map(capacity).max();
            let mode = match mode {
                Mode::Permits { permits, capacity } => {
                    Mode::Permits { permits: *permits, capacity: largest.unwrap_or(*capacity) }
                }
                other => other.clone(),
            };
            assert!(admits(&modes, &mode), "{mode} beside {modes:?}");
            assert!(
                slot.is_none() || live().all(|(_, _, other, _)| *other != slot),
                "a slot twice"
            );
            assert!(Some(guard.fence()) > *last, "a fence that does not rise");
        }
        if *mode == Mode::Exclusive {
            *last = (*last).max(Some(guard.fence()));
        }
        *entered += 1;
        holders.push((*entered, mode.clone(), slot, view));
        *entered
    }

    fn leave(&self, number: u64) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .holders
            .retain(|(other, ..)| *other != number);
    }
}

/// Locks in one mode, holds for a moment, and releases in some way. Returns whether it held the lock.
async fn use_once<M: HeldMode>(
    request: LockRequest<M>,
    mode: Mode,
    slot: impl Fn(&tenure_core::Guard<M>) -> Option<u32>,
    register: &Register,
    rng: &mut Rng,
) -> bool {
    let request = match rng.below(4) {
        0 => request.wait(Duration::ZERO),
        1 => request.wait(Duration::from_millis(rng.below(20))),
        _ => request.renew(Renew::Auto),
    };
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) => {
            // A short wait may end before the server has answered.
            assert!(error.is_busy() || error.is_unknown(), "{error:?}");
            return false;
        }
    };
    let entered = register.enter(&mode, slot(&guard), &guard);
    tokio::time::sleep(Duration::from_micros(rng.below(2_000))).await;
    register.leave(entered);
    match rng.one_in(3) {
        true => drop(guard),
        false => drop(guard.release().await.unwrap()),
    }
    true
}

async fn contender(locker: Locker, register: Arc<Register>, seed: u64, until: Instant) -> u32 {
    let (mut rng, mut held) = (Rng::new(seed), 0);
    while Instant::now() < until {
        let got = match rng.below(6) {
            0 => use_once(locker.write("k"), Mode::Exclusive, |_| None, &register, &mut rng).await,
            1 | 2 => use_once(locker.read("k"), Mode::Read, |_| None, &register, &mut rng).await,
            _ => {
                let heavy = if rng.one_in(3) { 2 } else { 1 };
                let capacity = if rng.one_in(4) { 4 } else { 3 };
                let semaphore = locker.semaphore("k", capacity);
                let request = semaphore.acquire_many(heavy);
                let request = if heavy == 1 { request.numbered() } else { request };
                use_once(
                    request,
                    permits(heavy, capacity),
                    |guard| guard.slot(),
                    &register,
                    &mut rng,
                )
                .await
            }
        };
        held += u32::from(got);
    }
    held
}

/// t81, J1, J3: tasks of four lockers mix all kinds on one key, and give up at random. Only claims that fit hold it
/// together, no slot is taken twice, everybody is served, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn t81_all_kinds_on_one_key() {
    let server = RedisServer::start();
    let (register, mut rng) = (Arc::<Register>::default(), Rng::from_environment().1);
    let until = Instant::now() + Duration::from_secs(6);
    let mut tasks = Vec::new();
    let mut lockers = Vec::new();
    for _ in 0..4 {
        let locker = locker(&server).await;
        for _ in 0..6 {
            let seed = rng.below(u64::MAX);
            tasks.push(tokio::spawn(contender(locker.clone(), register.clone(), seed, until)));
        }
        lockers.push(locker);
    }
    let mut all = 0;
    for task in tasks {
        let held = within("a contender", task).await.unwrap();
        assert!(held > 0, "a contender that was never served");
        all += held;
    }
    assert!(all > 200, "{all} holds in six seconds");
    for locker in &lockers {
        within("the end of a locker", locker.shutdown(Duration::from_secs(5))).await;
    }
    eventually("nothing but the fence to be left", || async { size(&server) == 1 }).await;
}

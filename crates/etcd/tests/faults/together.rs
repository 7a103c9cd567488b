//! Readers and permits: claims that hold a lock together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{AfterRelease, Attempt, Backend, Grant, Loss, Release};
use tenure_core::{Claim, FenceCheck, Lease, Mode, Permit, Renew, Semaphore};
use tenure_etcd::Etcd;
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    LOCKS, LONG, SHORT, SLACK, TIMEOUT, claim, claim_as, claims, claims_are, etcd, granted,
    lease_of, locker, numbered, of_ttl, permits, proxied, through,
};

/// The label of the claims of `support`, to find their requests in the traffic.
const MARK: &str = "marked-claim";
const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// The mode of a reader, and of permits.
fn kinds() -> [Mode; 2] {
    [Mode::Read, permits(2, 3)]
}

async fn takes(semaphore: &Semaphore) -> Permit {
    within("a numbered permit", semaphore.acquire().numbered().into_future()).await.unwrap()
}

async fn asked(store: &Etcd, claim: &Arc<Claim>) -> Grant {
    within("a grant", store.acquire(claim)).await.unwrap()
}

/// A claim of another program, on a lease of its own. Returns the lease.
fn put(server: &EtcdServer, name: &str, value: &str) -> String {
    let said = server.ctl(&["lease", "grant", "300"]);
    let lease = said.split(' ').nth(1).expect("`lease 32695… granted with TTL(300s)`").to_owned();
    server.ctl(&["put", &format!("{LOCKS}k/{name}"), value, "--lease", &lease]);
    lease
}

/// t71: a reader that is isolated for longer than its ttl has lost the lock before a writer gets it. Its reads are
/// refused, and its late release leaves the writer.
#[tokio::test]
async fn t71_an_isolated_reader() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let (reader, check) = (a.read("k").await.unwrap(), FenceCheck::new());
    check.accept_read("r", reader.fence()).unwrap();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let writer = within("the writer's turn", b.write("k").into_future()).await.unwrap();
    assert!(!reader.is_held() && writer.fence() > reader.fence());
    check.accept("r", writer.fence()).unwrap();
    assert!(check.accept_read("r", reader.fence()).is_err());
    proxy.heal();
    let error = reader.release().await.unwrap_err();
    assert!(error.is_lost() || error.is_not_held(), "{error:?}");
    writer.renew().await.unwrap();
    assert_eq!(claims(&server, "k").len(), 1);
}

/// t72: a writer that is isolated for longer than its ttl is refused by the fence of a later reader, although no
/// other has written.
#[tokio::test]
async fn t72_an_isolated_writer() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let (writer, check) = (a.write("k").await.unwrap(), FenceCheck::new());
    check.accept("r", writer.fence()).unwrap();
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let reader = within("the reader's turn", b.read("k").into_future()).await.unwrap();
    assert!(!writer.is_held());
    check.accept_read("r", reader.fence()).unwrap();
    assert!(check.accept("r", writer.fence()).is_err());
}

/// t73: the slot of an isolated permit goes to another claim with a higher fence. A fence for each slot refuses the
/// former holder, and accepts the lower fence of another slot.
#[tokio::test]
async fn t73_an_isolated_permit() {
    let (server, proxy) = proxied();
    let (a, b) = (of_ttl(&through(&proxy), SHORT).await, locker(&server.url()).await);
    let (here, there) = (a.semaphore("k", 2), b.semaphore("k", 2));
    let (zero, one, check) = (takes(&there).await, takes(&here).await, FenceCheck::new());
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    let again = takes(&there).await;
    assert!(!one.is_held() && zero.is_held());
    assert_eq!([zero.slot(), one.slot(), again.slot()], [Some(0), Some(1), Some(1)]);
    check.accept("r/1", again.fence()).unwrap();
    assert!(check.accept("r/1", one.fence()).is_err());
    assert!(zero.fence() < one.fence() && check.accept("r/0", zero.fence()).is_ok());
}

/// t74: a grant whose reply is lost with its connection is one claim with one fence, also when it is asked for again.
#[tokio::test]
async fn t74_a_lost_reply_is_resolved() {
    for mode in kinds() {
        let (server, proxy) = proxied();
        let store = Arc::new(etcd(&through(&proxy)).await);
        granted(&store, &claim("kept", LONG)).await;
        let one = claim_as(mode, LONG);
        proxy.rule(Rule::on(Way::Replies, Action::Delay(TIMEOUT / 2)));
        let asking = {
            let (store, one) = (store.clone(), one.clone());
            tokio::spawn(async move { asked(&store, &one).await })
        };
        claims_are(&server, "k", 1).await;
        proxy.cut(Cut::Reset);
        proxy.heal();
        let (grant, before) = (asking.await.unwrap(), claims(&server, "k"));
        let again = granted(&store, &one).await;
        assert_eq!((again.fence, claims(&server, "k")), (grant.fence, before));
        store.abandon(&one).await.unwrap();
        assert!(claims(&server, "k").is_empty());
    }
}

/// t75, t06: requests for readers and numbered permits that are dropped at any moment leave nothing, although the
/// server may execute them after they were undone.
#[tokio::test]
async fn t75_dropped_at_random_moments() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    a.lock("k").await.unwrap().release().await.unwrap();
    for round in 0..400_u64 {
        let moment = Duration::from_micros(round * 37 % 3_000);
        let (read, permit) = (format!("r{}", round % 7), format!("p{}", round % 7));
        drop(tokio::time::timeout(moment, a.read(&read).into_future()).await);
        let permit = a.semaphore(&permit, 2).acquire().numbered();
        drop(tokio::time::timeout(moment * 2, permit.into_future()).await);
    }
    eventually("nothing to be left", || async {
        server.oldest_first(LOCKS).is_some_and(|left| left.is_empty())
    })
    .await;
    assert_eq!(takes(&a.semaphore("p1", 2)).await.slot(), Some(0));
}

/// t74: the request for a number is lost, and asked again. A later claim of the same name gets the number with a higher
/// fence.
#[tokio::test]
async fn t74_a_number_is_asked_for_again() {
    let (server, proxy) = proxied();
    let (store, other) = (etcd(&through(&proxy)).await, locker(&server.url()).await);
    granted(&store, &claim("kept", LONG)).await;
    let (first, next) = (numbered(permits(1, 3)), numbered(permits(1, 3)));
    proxy.rule(Rule::on(Way::Requests, Action::Pass).containing(MARK).once());
    let slow = Rule::on(Way::Requests, Action::Delay(TIMEOUT * 4)).containing(MARK).once();
    proxy.rule(slow);
    let grant = asked(&store, &first).await;
    assert_eq!((grant.slot, proxy.struck()), (Some(0), 2), "it asked again");
    let (one, names) = (takes(&other.semaphore("k", 3)).await, claims(&server, "k"));
    store.abandon(&first).await.unwrap();
    let next = asked(&store, &next).await;
    assert!(next.slot == Some(0) && next.fence > grant.fence && one.slot() == Some(1));
    assert!(claims(&server, "k").contains(&names[0]), "the same name");
}

/// t75: the request that writes a number is executed after its claim was undone, over another connection. Nothing is
/// left. The server may also drop it, as its caller has gone, so this is tried a few times.
#[tokio::test]
async fn t75_a_number_that_comes_late() {
    let (server, proxy) = proxied();
    let store = Arc::new(etcd(&through(&proxy)).await);
    granted(&store, &claim("kept", LONG)).await;
    for _ in 0..6 {
        let first = numbered(permits(1, 3));
        proxy.rule(Rule::on(Way::Requests, Action::Pass).containing(MARK).once());
        let late = Rule::on(Way::Requests, Action::Delay(TIMEOUT * 3 / 2)).containing(MARK).once();
        proxy.rule(late);
        assert!(tokio::time::timeout(TIMEOUT / 4, store.acquire(&first)).await.is_err());
        let undone = tokio::spawn({
            let (store, first) = (store.clone(), first.clone());
            async move { store.abandon(&first).await }
        });
        lapse(TIMEOUT * 3 / 4).await;
        // Its reply is awaited on the old connection, which so outlives the first attempt to undo the claim.
        let other = tokio::spawn({
            let store = store.clone();
            async move { store.try_acquire(&claim("other", LONG)).await }
        });
        assert!(undone.await.unwrap().is_err(), "it is behind the late request");
        eventually("it to be abandoned", || async { store.abandon(&first).await.is_ok() }).await;
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
        let _ = other.await.unwrap();
        lapse(TIMEOUT).await;
        assert!(claims(&server, "k").is_empty(), "a late number");
        proxy.heal();
    }
}

/// t76: a release that is sent three times frees one permit.
#[tokio::test]
async fn t76_a_release_sent_three_times() {
    let server = EtcdServer::start();
    let store = etcd(&server.url()).await;
    let mut leases = Vec::new();
    for claim in [(); 3].map(|()| claim_as(permits(1, 3), LONG)) {
        let grant = granted(&store, &claim).await;
        leases.push(Arc::new(Lease::new(claim, grant, store.clock())));
    }
    let release = || store.release(&leases[0], AfterRelease::Free);
    assert_eq!(release().await.unwrap(), Release::Freed);
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    assert_eq!(release().await.unwrap(), Release::NotHeld);
    assert_eq!(claims(&server, "k").len(), 2);
}

/// t77, t78: a permit that has ended is neither revived by a renewal nor does its late release hit the claim that has
/// its place.
#[tokio::test]
async fn t78_an_ended_permit_is_not_revived() {
    let server = EtcdServer::start();
    let (old, new) = (etcd(&server.url()).await, locker(&server.url()).await);
    // No keep-alives: without an engine, no background work runs.
    let first = claim_as(permits(1, 1), SHORT);
    let ended = Arc::new(Lease::new(first.clone(), granted(&old, &first).await, old.clock()));
    let next = takes(&new.semaphore("k", 1)).await;
    assert!(old.clock().now() >= ended.valid_until() && next.slot() == Some(0));
    let before = server.oldest_first(LOCKS);
    assert_eq!(old.release(&ended, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    let answers = renewals(&old, &[ended]).await;
    assert!(format!("{answers:?}").contains("Lost"), "{answers:?}");
    assert_eq!(server.oldest_first(LOCKS), before);
}

/// t79, t107: the permits of a session that ends come back at one moment, and no other holder loses one.
#[tokio::test]
async fn t79_one_of_two_sessions_ends() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (here, there) = (a.semaphore("k", 4), b.semaphore("k", 4));
    let three = here.acquire_many(3).await.unwrap();
    let one = there.acquire().await.unwrap();
    let waiting = tokio::spawn(there.acquire_many(3).into_future());
    claims_are(&server, "k", 3).await;
    assert!(there.try_acquire().await.unwrap().is_none());
    server.revoke(&lease_of(&server, &claims(&server, "k")[0]));
    let next = within("the permits", waiting).await.unwrap().unwrap();
    assert_eq!(within("the loss", three.lost()).await, Loss::Session);
    assert!(one.is_held() && next.is_held() && !three.is_held());
}

/// t83: a claim of a tenure that knows only locks excludes readers and permits, and is excluded by them: it names its
/// keys as a lock does, and asks whether any key is under the queue.
#[tokio::test]
async fn t83_an_older_process() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let semaphore = a.semaphore("k", 4);
    let old = put(&server, "00000000000000aa", &format!("t1:held:{TOKEN}:1:h:1:u:p:::0"));
    assert!(a.try_read("k").await.unwrap().is_none());
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let reader = tokio::spawn(a.read("k").into_future());
    claims_are(&server, "k", 2).await;
    let shown = a.inspect("k").await.unwrap().unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.map(|all| all.len())), (1, Some(1)));
    server.revoke(&old);
    let reader = within("the reader's turn", reader).await.unwrap().unwrap();
    assert!(claims(&server, "k")[0].starts_with(&format!("{LOCKS}k/")), "what it asks about");
    reader.release().await.unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
}

/// t101: readers behind a writer that has died while it waited get the lock when its session ends.
#[tokio::test]
async fn t101_a_writer_that_has_gone() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let reader = a.read("k").await.unwrap();
    // Without an engine, nothing keeps its session alive.
    let (gone, claim) = (Arc::new(etcd(&server.url()).await), claim("k", SHORT));
    let waiting = tokio::spawn(async move { gone.acquire(&claim).await });
    claims_are(&server, "k", 2).await;
    let start = Instant::now();
    assert!(b.try_read("k").await.unwrap().is_none());
    let other = within("the other reader", b.read("k").into_future()).await.unwrap();
    assert!(reader.is_held() && other.is_held());
    assert!(start.elapsed() < SHORT * 2 + SLACK, "{:?}", start.elapsed());
    waiting.abort();
}

/// B3, t73: numbers are given in the order of the claims, so that the fences of each number rise. A permit that holds
/// and has no number yet holds back the numbered ones behind it, and no other.
#[tokio::test]
async fn numbers_are_given_in_order() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (here, there) = (a.semaphore("k", 4), b.semaphore("k", 4));
    let unnumbered = put(&server, "#1of4.aa", &format!("t1:held:{TOKEN}:1:h:1:u:p:::0:?"));
    assert!(here.try_acquire().numbered().await.unwrap().is_none());
    claims_are(&server, "k", 1).await;
    let plain = here.acquire().await.unwrap();
    let waiting = tokio::spawn(there.acquire().numbered().into_future());
    claims_are(&server, "k", 3).await;
    lapse(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    server.revoke(&unnumbered);
    let numbered = within("its number", waiting).await.unwrap().unwrap();
    assert_eq!((numbered.slot(), plain.slot()), (Some(0), None));
    let renewed = numbered.renew().await;
    assert!(renewed.is_ok() && takes(&here).await.slot() == Some(1));
}

/// A reader and a permit learn that another claim waits, and not that another one holds the lock with them.
#[tokio::test]
async fn contention_is_about_waiters() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let (reader, permit) =
        (a.read("r").await.unwrap(), a.semaphore("p", 2).acquire().await.unwrap());
    let reading = tokio::spawn(async move {
        reader.contended().await;
        reader
    });
    let limited = tokio::spawn(async move {
        permit.contended().await;
        permit
    });
    let (one, two) = (b.read("r").await.unwrap(), b.semaphore("p", 2).acquire().await.unwrap());
    lapse(Duration::from_millis(300)).await;
    assert!(!reading.is_finished() && !limited.is_finished(), "nobody waits");
    let writers = [b.write("r"), b.write("p")].map(|request| tokio::spawn(request.into_future()));
    drop(within("the notice", reading).await.unwrap());
    drop(within("the notice", limited).await.unwrap());
    drop((one, two));
    for writer in writers {
        drop(within("the writer's turn", writer).await.unwrap().unwrap());
    }
}

/// A reader that is refused because of a writer that waits hears who holds the lock, whatever session it would have.
#[tokio::test]
async fn a_refused_reader_hears_of_the_holder() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let _reader = a.read("k").label("reads").await.unwrap();
    let _writer = tokio::spawn(a.write("k").label("waits").into_future());
    claims_are(&server, "k", 2).await;
    let asked = || b.read("k").wait(Duration::ZERO);
    for refused in [asked(), asked().renew(Renew::Off)] {
        let error = refused.await.unwrap_err();
        let holder = error.holder().and_then(|holder| holder.label.as_deref());
        assert_eq!(holder, Some("reads"), "{error}");
    }
}

/// The claims of a process use the same names again, in each mode, also beside a permit that is kept closed.
#[tokio::test]
async fn names_are_used_again() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let (semaphore, mut names) = (a.semaphore("k", 4), Vec::new());
    let closed = semaphore.acquire().min_hold(LONG).await.unwrap();
    closed.release().await.unwrap();
    for _ in 0..5 {
        let held =
            [semaphore.acquire().await, semaphore.acquire().await, semaphore.acquire().await];
        names.push(claims(&server, "k"));
        for permit in held {
            permit.unwrap().release().await.unwrap();
        }
    }
    names.iter_mut().for_each(|names| names.sort());
    assert!(names[0].len() == 4 && names.iter().all(|other| *other == names[0]), "{names:?}");
    for _ in 0..2 {
        let reader = a.read("r").await.unwrap();
        names.push(claims(&server, "r"));
        reader.release().await.unwrap();
    }
    assert_eq!(names[5], names[6]);
}

/// A process reads beside a reader of its own that is kept closed, under another name. A writer waits for both.
#[tokio::test]
async fn a_reader_that_is_kept_closed() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let closed = a.read("k").min_hold(SHORT).await.unwrap();
    let fence = closed.fence();
    closed.release().await.unwrap();
    let next = a.read("k").await.unwrap();
    assert!(next.fence() > fence && claims(&server, "k").len() == 2);
    next.release().await.unwrap();
    claims_are(&server, "k", 1).await;
    assert!(b.try_write("k").await.unwrap().is_none());
    assert!(within("the end of it", b.write("k").into_future()).await.unwrap().is_held());
}

/// A permit that waits for others misses the release: its connection is down, and the history is compacted. It gets
/// its turn all the same.
#[tokio::test]
async fn a_missed_release_of_a_permit() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, locker(&through(&proxy)).await);
    let (here, there) = (a.semaphore("k", 2), b.semaphore("k", 2));
    for round in 0..4 {
        let (one, two) = (here.acquire().await.unwrap(), here.acquire().await.unwrap());
        let waiting = tokio::spawn(there.acquire().into_future());
        claims_are(&server, "k", 3).await;
        proxy.refuse();
        proxy.cut(if round % 2 == 0 { Cut::Reset } else { Cut::Close });
        one.release().await.unwrap();
        server.compact();
        proxy.heal();
        within("its turn", waiting).await.unwrap().unwrap().release().await.unwrap();
        two.release().await.unwrap();
    }
}

/// A try for permits that are not free leaves nothing, also if it is the only one that was too late, and one that is
/// undone holds nobody back afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn tries_that_race_leave_nothing() {
    let server = EtcdServer::start();
    let lockers = [locker(&server.url()).await, locker(&server.url()).await];
    for _ in 0..5 {
        let tries: Vec<_> = (0..40)
            .map(|number| lockers[number % 2].semaphore("k", 16).try_acquire())
            .map(|tried| tokio::spawn(tried.into_future()))
            .collect();
        let mut held = Vec::new();
        for tried in tries {
            held.extend(within("an answer", tried).await.unwrap().unwrap());
        }
        assert!(held.len() <= 16 && claims(&server, "k").len() == held.len(), "{}", held.len());
        assert!(held.len() >= 8, "only {}: tries in flight hold back few", held.len());
        drop(held);
        claims_are(&server, "k", 0).await;
    }
}

/// t74: a claim for readers or permits that asks again while it waits keeps its position.
#[tokio::test]
async fn t04_a_waiting_claim_keeps_its_position() {
    for mode in kinds() {
        let (server, proxy) = proxied();
        let (a, store) = (locker(&server.url()).await, Arc::new(etcd(&through(&proxy)).await));
        let guard = a.lock("k").await.unwrap();
        let waiter = claim_as(mode, LONG);
        let waiting = {
            let (store, waiter) = (store.clone(), waiter.clone());
            tokio::spawn(async move { asked(&store, &waiter).await })
        };
        claims_are(&server, "k", 2).await;
        let before = claims(&server, "k");
        for _ in 0..3 {
            proxy.cut(Cut::Reset);
            lapse(Duration::from_millis(200)).await;
        }
        assert_eq!(claims(&server, "k"), before);
        guard.release().await.unwrap();
        within("its turn", waiting).await.unwrap();
        assert!(matches!(store.try_acquire(&waiter).await, Ok(Attempt::Granted(_))));
    }
}

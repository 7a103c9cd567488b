//! Faults of the network between client and server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::backend::{AfterRelease, Attempt, Backend, FaultKind, Loss, Release};
use tenure_core::{Claim, ClaimOptions, Renew, Token};
use tenure_redis::Redis;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    SLACK, TIMEOUT, claim, clients, get, is_freed, kind, lease, locker, locker_through, proxied,
    pttl, redis, redis_at, requests, whole,
};

const LOCK: &str = "tenure:lock:k";
/// So long that no test ends in time because of an expiry: a lock that becomes free was released.
const LONG: Duration = Duration::from_secs(300);
const BOTH: [Way; 2] = [Way::Requests, Way::Replies];
/// A text that only renewals and forced releases contain.
const RENEWAL: &str = "tenure:forced:";

/// t04: a grant whose reply is lost with its connection is resolved by the same token: there is one lease,
/// and one fence is reported.
#[tokio::test]
async fn t04_a_lost_reply_is_resolved() {
    for deed in [Action::End(Cut::Reset), Action::End(Cut::Close), Action::Truncate] {
        let (server, proxy) = proxied();
        let (a, b) = (locker_through(&proxy).await, locker(&server).await);
        proxy.rule(Rule::on(Way::Replies, deed.clone()).containing("granted").once());
        let tried = within("an answer", a.try_lock("k").ttl(LONG).into_future()).await.unwrap();
        tried.expect("one attempt is enough").release().await.unwrap();
        proxy.rule(Rule::on(Way::Replies, deed).containing("granted").once());
        let guard = within("the lock", a.lock("k").ttl(LONG).into_future()).await.unwrap();
        assert_eq!(proxy.struck(), 2);
        assert!(b.try_lock("k").await.unwrap().is_none());
        assert!(guard.remaining() <= Duration::from_millis(pttl(&server, LOCK).unsigned_abs()));
        guard.release().await.unwrap();
        assert_eq!(get(&server, LOCK), None);
        assert!(b.try_lock("k").await.unwrap().expect("it is free").is_held());
    }
}

/// t04: a grant whose reply never arrives is unknown to a single attempt and is undone. A waiter's next
/// request resolves it.
#[tokio::test]
async fn t04_a_swallowed_reply() {
    let (server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let swallow = || Rule::on(Way::Replies, Action::Swallow).containing("granted").once();
    proxy.rule(swallow());
    assert!(a.try_lock("k").ttl(LONG).await.unwrap_err().is_unknown());
    is_freed(&server, "k").await;
    proxy.rule(swallow());
    let guard = within("the lock", a.lock("k").ttl(LONG).into_future()).await.unwrap();
    assert!(guard.is_held() && proxy.struck() == 2);
    guard.release().await.unwrap();
    is_freed(&server, "k").await;
}

/// t04: a reply is lost with its connection, and then the server cannot be reached: whether the lock was granted is
/// unknown, and not that nothing was done.
#[tokio::test]
async fn t04_a_lost_reply_and_then_nobody() {
    for granted_by in ["acquire_fast", "acquire"] {
        let (server, proxy) = proxied();
        let a = locker_through(&proxy).await;
        if granted_by == "acquire" {
            // The short script leaves a lock with a queue to the full one.
            server.client().command(&["ZADD", "tenure:queue:k", "1", "left behind"]);
        }
        proxy.rule(Rule::on(Way::Replies, Action::End(Cut::Reset)).containing("granted"));
        proxy.refuse();
        let tried = within("an answer", a.try_lock("k").ttl(LONG).into_future()).await;
        let error = tried.expect_err("no reply has arrived");
        assert!(error.is_unknown(), "{granted_by}: {error:?}");
        assert!(get(&server, LOCK).is_some());
        proxy.heal();
        is_freed(&server, "k").await;
    }
}

/// A19: a release whose reply is lost with its connection is carried out once and reported as done, by the
/// fast and by the full script.
#[tokio::test]
async fn a_release_whose_reply_is_lost() {
    for deed in [Action::End(Cut::Reset), Action::End(Cut::Close), Action::Truncate] {
        for then in [AfterRelease::Free, AfterRelease::Cooldown(LONG)] {
            let (server, proxy) = proxied();
            let store = redis_at(&proxy.url()).await;
            // Loads the script, so that the release is one request.
            let warm = lease(&store, "warm", LONG).await;
            store.release(&warm, then).await.unwrap();
            let held = lease(&store, "k", LONG).await;
            proxy.rule(Rule::on(Way::Replies, deed.clone()).once());
            let released = within("an answer", store.release(&held, then)).await;
            assert_eq!((released.unwrap(), proxy.struck()), (Release::Freed, 1), "{deed:?}");
            let left = get(&server, LOCK);
            match then {
                AfterRelease::Free => assert_eq!(left, None),
                AfterRelease::Cooldown(_) => {
                    assert!(left.is_some_and(|left| left.contains(":closed:")))
                }
            }
        }
    }
}

/// One lost reply costs a waiter neither its position nor its grant, however long its retry interval is.
#[tokio::test]
async fn a_lost_reply_costs_no_queue_position() {
    let (server, proxy) = proxied();
    let (a, b, c) = (redis(&server).await, redis_at(&proxy.url()).await, redis(&server).await);
    let (held, second) = (lease(&a, "k", LONG).await, claim("k", LONG));
    let terms = ClaimOptions::new(LONG).retry_interval(Duration::from_secs(20));
    let key = second.key().clone();
    let first = Arc::new(Claim::new(key, Token::random().unwrap(), terms));
    let mut turns = Vec::new();
    for (store, claim) in [(b, &first), (c, &second)] {
        let waits = claim.clone();
        turns.push(tokio::spawn(async move { store.acquire(&waits).await.unwrap() }));
        eventually("it to wait", || async { kind(&server, claim) == "push" }).await;
    }
    proxy.rule(Rule::on(Way::Replies, Action::Swallow).containing("queued").once());
    eventually("a reply to be lost", || async { proxy.struck() == 1 }).await;
    // For longer than a silent waiter is considered alive.
    lapse(Duration::from_secs(6)).await;
    a.release(&held, AfterRelease::Free).await.unwrap();
    within("the turn of the first", &mut turns[0]).await.unwrap();
    assert_eq!(kind(&server, &second), "push", "the second still waits");
}

/// A client whose scripts the server knows. A `NOSCRIPT` reply names no claim, so it could be mistaken for
/// the reply to another request.
async fn warm(proxy: &Proxy) -> Redis {
    let (store, claim) = (redis_at(&proxy.url()).await, claim("warm", LONG));
    store.try_acquire(&claim).await.unwrap();
    store.abandon(&claim).await.unwrap();
    store
}

/// t28: an acquire that arrives twice makes one lease, and the extra reply is not accepted for another request.
#[tokio::test]
async fn t28_a_doubled_acquire() {
    let (server, proxy) = proxied();
    let (store, doubled) = (warm(&proxy).await, claim("k", LONG));
    for _ in 0..20 {
        proxy.rule(Rule::on(Way::Requests, Action::Twice).containing(LOCK).once());
        // Another request is under way, which the extra reply could be mistaken for.
        let other = claim("other", LONG);
        let answers = tokio::join!(store.try_acquire(&doubled), store.try_acquire(&other));
        let mut highest = 0;
        for answer in [answers.0, answers.1] {
            match answer {
                Ok(Attempt::Granted(grant)) => highest = highest.max(grant.fence),
                Ok(Attempt::Held(holder)) => panic!("held by {holder}"),
                Err(fault) => assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}"),
            }
        }
        let last = get(&server, "tenure:fence").unwrap().parse().unwrap();
        assert!([0, last].contains(&highest), "{highest} was another's, the last one is {last}");
        assert!(get(&server, LOCK).is_some_and(|value| value.contains(&doubled.token().expose())));
        let abandoned = || async { store.abandon(&doubled).await.is_ok() };
        eventually("the claim to be abandoned", abandoned).await;
        let abandoned = || async { store.abandon(&other).await.is_ok() };
        eventually("the other to be abandoned", abandoned).await;
        assert_eq!(get(&server, LOCK), None);
    }
}

/// t27: an extra reply shifts all later ones. No reply is accepted for another request, the connection is
/// replaced, and a grant whose reply was lost is undone.
#[tokio::test]
async fn t27_shifted_replies() {
    let (server, proxy) = proxied();
    let store = warm(&proxy).await;
    let extra =
        "*4\r\n$32\r\nffffffffffffffffffffffffffffffff\r\n$7\r\ngranted\r\n$1\r\n5\r\n$1\r\n-\r\n";
    proxy.rule(Rule::on(Way::Replies, Action::Precede(extra.into())).once());
    let (one, two) = (claim("one", LONG), claim("two", LONG));
    let (first, second) = tokio::join!(store.try_acquire(&one), store.try_acquire(&two));
    for (claim, answer) in [(one, first), (two, second)] {
        match answer {
            // Sent again on a new connection, so this reply is its own.
            Ok(Attempt::Granted(grant)) => assert_ne!(grant.fence, 5, "another's reply"),
            Ok(Attempt::Held(holder)) => panic!("held by {holder}"),
            Err(fault) => assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}"),
        }
        eventually("it to be abandoned", || async { store.abandon(&claim).await.is_ok() }).await;
        is_freed(&server, claim.key().as_str()).await;
    }
    assert!(proxy.accepted() > 1, "the connection was replaced");
}

/// A6, t27: `NOSCRIPT` cannot be the reply to `EVAL`, so it means that the replies have shifted.
#[tokio::test]
async fn t27_a_shifted_noscript() {
    let (server, proxy) = proxied();
    let store = redis_at(&proxy.url()).await;
    let extra = Action::Precede(b"-NOSCRIPT No matching script. Please use EVAL.\r\n".into());
    proxy.rule(Rule::on(Way::Replies, extra).containing("granted").once());
    let asked = claim("k", LONG);
    match store.try_acquire(&asked).await {
        Ok(answer) => assert!(matches!(answer, Attempt::Granted(_)), "{answer:?}"),
        Err(fault) => assert_eq!(fault.kind(), FaultKind::Unknown, "{fault}"),
    }
    eventually("it to be abandoned", || async { store.abandon(&asked).await.is_ok() }).await;
    is_freed(&server, "k").await;
    assert!(proxy.accepted() > 1, "the connection was replaced");
}

/// t45: connections that deliver nothing any more and were never closed are replaced: by a request that times
/// out, and for renewals in time to keep the lock.
#[tokio::test]
async fn t45_half_open_connections_are_replaced() {
    let (server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let ttl = Duration::from_secs(6);
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    let granted = Instant::now();
    guard.renew().await.unwrap();
    let before = clients(&server);
    assert!(before >= 2, "commands and renewals");
    for old in proxy.connections() {
        BOTH.iter().for_each(|way| proxy.rule(Rule::on(*way, Action::Swallow).of(old)));
    }
    let next = within("a lock", a.lock("other").into_future()).await.unwrap();
    assert!(granted.elapsed() < Duration::from_secs(3), "after one response time-out");
    eventually("a ttl and more to pass", || async { granted.elapsed() > ttl }).await;
    assert!(guard.is_held(), "renewed on a new connection");
    assert!(pttl(&server, LOCK) > 0);
    let only_new = || async { clients(&server) == before };
    eventually("the server to close the old connections", only_new).await;
    next.release().await.unwrap();
    guard.release().await.unwrap();
}

/// t45: if nothing gets through at all, the holder is notified of the loss on time, and the lock can be
/// acquired again when the network is back.
#[tokio::test]
async fn t45_a_black_hole_is_a_loss_on_time() {
    let (_server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let guard = a.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    proxy.black_hole(&BOTH);
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    let late = a.clock().now().since(guard.valid_until());
    assert!(!guard.is_held() && late < SLACK, "{late:?}");
    proxy.heal();
    let next = within("the lock", a.lock("k").into_future()).await.unwrap();
    assert!(next.fence() > guard.fence());
}

/// t46: if the network drops all packets, connecting ends with its time-out, and a bounded wait with its
/// bound plus one time-out at most.
#[tokio::test]
async fn t46_a_black_hole_bounds_connecting_and_waiting() {
    let (_server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    proxy.black_hole(&BOTH);
    let started = Instant::now();
    let wait = Duration::from_millis(600);
    let error = within("an error", a.lock("k").wait(wait).into_future()).await.unwrap_err();
    assert!(error.is_timeout() || error.is_unavailable() || error.is_unknown(), "{error:?}");
    assert!(started.elapsed() < wait + TIMEOUT + SLACK, "{:?}", started.elapsed());
    let builder = Redis::builder(&proxy.url()).connect_timeout(Duration::from_millis(300));
    let error = within("an error", builder.connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
}

/// t44: a server that closes each connection at once is retried with growing pauses, however many waiters there are.
#[tokio::test]
async fn t44_reconnecting_is_bounded() {
    let (_server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let _kept = a.lock("kept").await.unwrap();
    proxy.refuse();
    proxy.cut(Cut::Reset);
    let (before, started) = (proxy.accepted(), Instant::now());
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        waiters.spawn(a.lock(format!("k{number}")).into_future());
    }
    lapse(Duration::from_secs(3)).await;
    // Two connections, each retried after a pause that doubles up to a second, plus or minus a quarter. The
    // bound allows for half of the pause.
    let most = 2 * (8 + 2 * started.elapsed().as_secs() as usize);
    let tried = proxy.accepted() - before;
    assert!((2..=most).contains(&tried), "{tried} connections, at most {most}");
    proxy.heal();
    assert!(within("a lock", a.lock("k").into_future()).await.unwrap().is_held());
}

/// t22: a release overtakes a renewal that is under way. The lock is gone, the late renewal does not restore
/// it, and no further renewal is sent.
#[tokio::test]
async fn t22_a_release_overtakes_the_renewal() {
    let (server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let ttl = Duration::from_millis(900);
    let slow = Action::Delay(Duration::from_millis(350));
    let guard = a.lock("k").ttl(ttl).await.unwrap();
    // Loads the script: without that, the renewal would be sent a second time with the script's text.
    guard.renew().await.unwrap();
    proxy.rule(Rule::on(Way::Requests, slow).containing(RENEWAL));
    eventually("a renewal under way", || async { proxy.struck() == 1 }).await;
    guard.release().await.unwrap();
    assert_eq!(get(&server, LOCK), None);
    lapse(ttl * 3).await;
    assert_eq!(get(&server, LOCK), None);
    assert_eq!(proxy.struck(), 1, "no renewal came after it");
}

/// t23: if no renewal arrives, the lease ends on time by our clock.
#[tokio::test]
async fn t23_renewals_that_never_arrive() {
    let (server, proxy) = proxied();
    let (a, b) = (locker_through(&proxy).await, locker(&server).await);
    proxy.rule(Rule::on(Way::Requests, Action::Swallow).containing(RENEWAL));
    let guard = a.lock("k").ttl(Duration::from_secs(1)).await.unwrap();
    let (clock, asking) = (b.clock().clone(), b.lock("k").into_future());
    let rival = tokio::spawn(async move { (asking.await.unwrap(), clock.now()) });
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    let late = a.clock().now().since(guard.valid_until());
    assert!(!guard.is_held() && late < SLACK, "{late:?}");
    let (next, granted) = within("the rival's turn", rival).await.unwrap();
    assert!(granted >= guard.valid_until() && granted < guard.valid_until().after(SLACK));
    assert!(proxy.struck() > 0 && next.fence() > guard.fence());
}

/// t56: a lock whose ttl has passed before the reply arrives is never reported as held.
#[tokio::test]
async fn t56_a_ttl_below_the_round_trip() {
    let (server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    proxy.rule(Rule::on(Way::Replies, Action::Delay(Duration::from_millis(120))));
    let request = a.try_lock("k").ttl(Duration::from_millis(60)).renew(Renew::Off);
    match within("an answer", request.into_future()).await {
        Ok(Some(guard)) => assert!(!guard.is_held(), "{:?}", guard.remaining()),
        Ok(None) => panic!("nobody else holds it"),
        Err(error) => assert!(error.is_unavailable() || error.is_lost(), "{error:?}"),
    }
    is_freed(&server, "k").await;
}

/// t55, t57, t58: invalid input is refused before anything is sent.
#[tokio::test]
async fn t55_t57_t58_nothing_is_sent() {
    let (server, proxy) = proxied();
    let a = locker_through(&proxy).await;
    let before = requests(&server);
    let ttls =
        [Duration::ZERO, Duration::from_nanos(1), Duration::MAX, LONG + Duration::from_micros(1)];
    for ttl in ttls {
        assert!(a.lock("k").ttl(ttl).await.unwrap_err().is_invalid(), "{ttl:?}");
    }
    let late = a.lock("k").ttl(LONG).renew(Renew::Every(LONG / 2)).await;
    assert!(late.unwrap_err().is_invalid());
    for name in ["", "a\nb", "\u{1b}[2J"] {
        assert!(a.lock(name).await.unwrap_err().is_invalid());
    }
    assert_eq!(requests(&server), before);
}

/// The error for a server whose reported version a proxy rewrites to `says`.
async fn refusal(proxy: &Proxy, says: &str) -> String {
    let (from, to) = ("redis_version:7.0", format!("redis_version:{says}"));
    proxy.heal();
    let rewrite = Action::Rewrite(from.into(), to.into_bytes());
    proxy.rule(Rule::on(Way::Replies, rewrite).containing(from));
    let error = within("a refusal", Redis::connect(&proxy.url())).await.unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
    whole(&error)
}

/// t64: a server that is too old is refused with its version and the required minimum. (A proxy rewrites the
/// version of a real server, because no old one is installed.)
#[tokio::test]
async fn t64_an_old_server_by_a_rewriting_proxy() {
    let (server, proxy) = proxied();
    let info = server.client().text(&["INFO", "server"]).unwrap();
    assert!(info.contains("redis_version:7.0"), "this test rewrites the version of a 7.0: {info}");
    for old in ["2.8", "3.0", "5.0", "6.0"] {
        let text = refusal(&proxy, old).await;
        assert!(text.contains(&format!("its version {old}")), "{text}");
        assert!(text.contains("6.2 or later is needed"), "{text}");
    }
    for quoted in ["`HELLO`", "'HELLO'"] {
        proxy.heal();
        // Version 5 does not know this command, and its error has this text.
        let unknown = Action::Rewrite(b"HELLO".into(), b"OLLEH".into());
        proxy.rule(Rule::on(Way::Requests, unknown).containing("HELLO"));
        let named = Action::Rewrite(b"'OLLEH'".into(), quoted.into());
        proxy.rule(Rule::on(Way::Replies, named).containing("OLLEH"));
        let error = within("a refusal", Redis::connect(&proxy.url())).await.unwrap_err();
        assert!(error.is_unsupported() && whole(&error).contains("6.2"), "{}", whole(&error));
    }
}

/// t64, t124: the scripts work with the oldest accepted version. (The version is rewritten as above.)
#[tokio::test]
async fn t64_the_oldest_version_that_is_taken() {
    let (_server, proxy) = proxied();
    let rewrite = Action::Rewrite(b"redis_version:7.0".into(), b"redis_version:6.2".into());
    proxy.rule(Rule::on(Way::Replies, rewrite).containing("redis_version"));
    let a = locker_through(&proxy).await;
    let guard = a.lock("k").ttl(Duration::from_millis(600)).await.unwrap();
    lapse(Duration::from_millis(900)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

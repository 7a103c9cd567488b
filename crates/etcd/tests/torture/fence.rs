//! Fences rise: over lost data, backups, other engines, and while the base that they count from changes.

use std::time::Duration;

use tenure_core::backend::{Attempt, Backend as _};
use tenure_core::fence::{PER_MILLI, next_server_fence};
use tenure_core::time::UnixMillis;
use tenure_core::{Fence, Guard, Locker, TTL_DEFAULT};
use tenure_etcd::Etcd;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Deed, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::safety::got_again;
use crate::support::{
    LONG, SHORT, builder, claim, claims, claims_are, etcd, granted, labelled, locker, of_ttl,
    proxied, through,
};

/// The key that says the base.
const BASE: &str = "tenure/epoch";
/// A session that begins writes the base anew if it is behind the clock by more than a second.
const BEHIND: Duration = Duration::from_millis(1_100);

/// The number that an engine which counts by the clock would give now.
fn clock() -> u64 {
    next_server_fence(0, UnixMillis::now()).expect("a clock of our time")
}

fn base(server: &EtcdServer) -> i64 {
    server.ctl(&["get", "--print-value-only", BASE]).parse().expect("a base")
}

/// A base such that numbers are behind the clock by `time`.
fn set_back(server: &EtcdServer, time: Duration) {
    let back = u64::try_from(time.as_millis()).expect("a time") * PER_MILLI;
    let old = clock() - back;
    server.ctl(&["put", BASE, &old.to_string()]);
}

async fn once(locker: &Locker, key: &str) -> Fence {
    let guard = within("a lock", locker.lock(key).into_future()).await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    fence
}

/// The fence that others see.
async fn shown(locker: &Locker, key: &str) -> Option<Fence> {
    locker.inspect(key).await.unwrap().unwrap().holders[0].fence
}

/// A server that comes back empty gives higher fences than before: to a process that knew the old one, on the session
/// that locks share and on one of its own, and to one that did not.
#[tokio::test]
async fn t15_fences_rise_over_lost_data() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    // As far as revisions get here, they are lower than this afterwards.
    for _ in 0..20 {
        once(&a, "k").await;
    }
    let mut last = once(&a, "k").await;
    // Nobody tells it of a new base: below an engine there is nobody who listens.
    let deaf = etcd(&server.url()).await;
    last = last.max(tried(&deaf, "k", SHORT).await);
    for round in 0..2 {
        server.restart_empty();
        let fresh = locker(&server.url()).await;
        // Its base may be at the revision at which the last one was.
        last = rises(last, once(&fresh, "k").await);
        last = rises(last, tried(&deaf, "k", SHORT).await);
        let ttls = if round == 0 { [LONG, SHORT] } else { [SHORT, LONG] };
        for locker in [&fresh, &a] {
            for ttl in ttls {
                let guard = within("a lock", got_it(locker, "k", ttl)).await;
                last = rises(last, guard.fence());
                assert_eq!(shown(&fresh, "k").await, Some(last));
                guard.release().await.unwrap();
            }
        }
    }
}

/// The next fence, which is higher than the last.
#[track_caller]
fn rises(last: Fence, next: Fence) -> Fence {
    assert!(next > last, "{next} after {last}");
    next
}

/// The same as [`once`] below the engine, for as long as that takes.
async fn tried(store: &Etcd, key: &str, ttl: Duration) -> Fence {
    let trying = async {
        loop {
            let one = claim(key, ttl);
            let answer = store.try_acquire(&one).await;
            let _ = store.abandon(&one).await;
            if let Ok(Attempt::Granted(grant)) = answer {
                return Fence::from_server(grant.fence);
            }
            lapse(Duration::from_millis(20)).await;
        }
    };
    within("a lock", trying).await
}

/// Through whatever a client says of a server that it does not know again.
async fn got_it(locker: &Locker, key: &str, ttl: Duration) -> Guard {
    loop {
        if let Ok(Some(guard)) = locker.try_lock(key).ttl(ttl).await {
            return guard;
        }
        lapse(Duration::from_millis(20)).await;
    }
}

/// A fence is above what the clock's rule, by which the other engines count, gave a moment before, and below what it
/// gives a moment later: on a new cluster, on one with a long history, and on one that was last used long ago.
#[tokio::test]
async fn fences_are_on_the_scale_of_the_clock() {
    let server = EtcdServer::start();
    for used in ["never", "by others", "long ago", "in the time of another clock"] {
        match used {
            "by others" => {
                server.delete("tenure/");
                (0..50).for_each(|_| drop(server.ctl(&["put", "something", "else"])));
            }
            "long ago" => set_back(&server, Duration::from_secs(86_400 * 300)),
            "in the time of another clock" => drop(server.ctl(&["put", BASE, "1"])),
            _ => {}
        }
        let before = clock();
        let a = locker(&server.url()).await;
        let fence = once(&a, "k").await;
        lapse(Duration::from_millis(5)).await;
        let after = clock();
        assert!(
            (before..after).contains(&fence.server()),
            "{before} {fence:?} {after}: used {used}"
        );
    }
}

/// Many who come first at once agree on one base: fences rise in the order of the grants, and are what others see.
#[tokio::test]
async fn a_race_for_the_base() {
    let server = EtcdServer::start();
    for round in 0..8 {
        let mut racing = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let builder = builder(&server.url()).prefix(format!("round-{round}"));
            let locker = Locker::new(builder.connect().await.unwrap());
            racing.spawn(async move {
                let mut fences = Vec::new();
                for _ in 0..3 {
                    let guard = locker.lock("k").await.unwrap();
                    assert_eq!(shown(&locker, "k").await, Some(guard.fence()));
                    fences.push((tenure_core::time::Clock::system().now(), guard.fence()));
                    guard.release().await.unwrap();
                }
                fences
            });
        }
        let mut fences = racing.join_all().await.concat();
        fences.sort();
        assert!(fences.is_sorted_by(|(_, one), (_, next)| one < next), "{round}: {fences:?}");
    }
}

/// Of two who find no base, the one whose write comes late counts from the other's, and writes none below it.
#[tokio::test]
async fn a_base_that_is_written_late() {
    let (server, proxy) = proxied();
    let slow = builder(&through(&proxy)).response_timeout(Duration::from_secs(4));
    let (a, b) = (locker(&server.url()).await, slow.connect().await.unwrap());
    // The first is the look that finds none, the second is the write.
    proxy.rule(Rule::on(Way::Requests, Deed::Delay(Duration::ZERO)).containing(BASE).once());
    proxy
        .rule(Rule::on(Way::Requests, Deed::Delay(Duration::from_secs(2))).containing(BASE).once());
    let late = tokio::spawn(async move { tried(&b, "k", TTL_DEFAULT).await });
    eventually("the write to be under way", || async { proxy.struck() == 2 }).await;
    let (first, agreed) = (once(&a, "k").await, base(&server));
    let second = within("a lock", late).await.unwrap();
    assert!(base(&server) >= agreed);
    rises(rises(first, second), once(&a, "k").await);
}

/// A base that is written anew while one holds and another waits: their fences are what they were to be, those of later
/// claims are higher, and processes that have not heard of it yet get no lock by the old one.
#[tokio::test]
async fn a_base_that_rises_while_some_wait() {
    let (server, proxy) = proxied();
    let (a, b) = (locker(&server.url()).await, locker(&through(&proxy)).await);
    let deaf = etcd(&server.url()).await;
    tried(&deaf, "other", LONG).await;
    let held = a.lock("k").await.unwrap();
    let waiting = tokio::spawn(b.lock("k").into_future());
    claims_are(&server, "k", 2).await;
    let (first, second) = (held.fence(), base(&server));
    lapse(BEHIND).await;
    let c = locker(&server.url()).await;
    let third = once(&c, "other").await;
    assert!(base(&server) > second, "it was behind");
    for ttl in [LONG, TTL_DEFAULT] {
        rises(third, tried(&deaf, "other", ttl).await);
    }
    held.release().await.unwrap();
    let held = within("its turn", waiting).await.unwrap().unwrap();
    assert!(first < held.fence() && held.fence() < third);
    assert_eq!(shown(&c, "k").await, Some(held.fence()), "by the base that it was made under");
    let mut last = held.fence();
    held.release().await.unwrap();
    for locker in [&a, &b, &c, &b, &a] {
        let fence = once(locker, "k").await;
        assert!(fence > last && fence > third);
        last = fence;
    }
}

/// The same for one that cannot hear of it, with a claim under way whose answer is lost: one claim, one fence, nothing left.
#[tokio::test]
async fn a_base_that_rises_under_a_lost_answer() {
    const MARK: &str = "marked-claim";
    for way in [Way::Requests, Way::Replies] {
        let (server, proxy) = proxied();
        let store = etcd(&through(&proxy)).await;
        let first = granted(&store, &labelled("first", TTL_DEFAULT, None)).await.fence;
        let late = labelled("k", TTL_DEFAULT, Some(MARK));
        // It arrives or not; no answer comes back.
        proxy.rule(match way {
            Way::Requests => Rule::on(way, Deed::Swallow).containing(MARK).once(),
            Way::Replies => Rule::on(way, Deed::Swallow),
        });
        let fault = store.try_acquire(&late).await.unwrap_err();
        claims_are(&server, "k", usize::from(way == Way::Replies)).await;
        lapse(BEHIND).await;
        let other = once(&locker(&server.url()).await, "other").await.server();
        proxy.heal();
        let again = granted(&store, &late).await.fence;
        assert!(again > first, "{fault}");
        // Made before the base rose or after, and so below or above what it rose for.
        assert_eq!(again < other, way == Way::Replies, "{again} {other}");
        assert_eq!(claims(&server, "k").len(), 1);
        store.abandon(&late).await.unwrap();
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
    }
}

/// t26: an operator who deletes the base, or writes something else there, stops nobody, and lowers no fence.
#[tokio::test]
async fn t26_a_base_that_is_deleted() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let mut last = once(&a, "k").await.max(once(&b, "k").await);
    let huge = i64::MAX.to_string();
    for what in ["", "something else", "-3", "17", &huge] {
        match what {
            "" => server.delete(BASE),
            value => drop(server.ctl(&["put", "--", BASE, value])),
        }
        for locker in [&a, &b] {
            let fence = once(locker, "k").await;
            assert!(fence > last, "{fence} after {last}: `{what}`");
            last = fence;
        }
    }
}

/// A backup that is put back takes revisions back: a process that goes on through it grants nothing lower, be the base
/// in the backup the same or an older one, and tells all the others by writing it anew.
#[tokio::test]
async fn a_backup_that_is_put_back() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    let deaf = etcd(&server.url()).await;
    let mut last = once(&a, "k").await;
    for older in [false, true] {
        if older {
            set_back(&server, BEHIND * 2);
        }
        let backup = server.save();
        if older {
            once(&locker(&server.url()).await, "other").await;
        }
        for _ in 0..20 {
            last = last.max(once(&a, "k").await);
        }
        last = last.max(tried(&deaf, "k", SHORT).await);
        server.restore(&backup);
        // Below the engine first: with a session of its own, nothing but the number tells.
        last = rises(last, tried(&deaf, "k", SHORT).await);
        let again = got_again(&a, "k").await;
        rises(last, again.fence());
        again.release().await.unwrap();
        last = once(&locker(&server.url()).await, "k").await;
        assert!(once(&a, "k").await > last);
    }
}

/// And one that was made longer ago than a second is no danger to anybody new either, with nobody left who knew better.
#[tokio::test]
async fn an_old_backup_with_nobody_left() {
    let server = EtcdServer::start();
    once(&locker(&server.url()).await, "k").await;
    let backup = server.save();
    lapse(BEHIND).await;
    let last = once(&locker(&server.url()).await, "k").await;
    lapse(BEHIND).await;
    server.restore(&backup);
    let fence = got_again(&locker(&server.url()).await, "k").await.fence();
    assert!(fence > last, "{fence} after {last}");
}

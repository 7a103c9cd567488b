//! Fences rise: after lost data, after restored backups, after another engine, and while the base of fences
//! changes.

use std::time::Duration;

use tenure_core::backend::{Attempt, Backend as _};
use tenure_core::fence::{PER_MILLI, next_server_fence};
use tenure_core::time::UnixMillis;
use tenure_core::{Fence, Guard, Locker, TTL_DEFAULT};
use tenure_etcd::Etcd;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::safety::acquire_again;
use crate::support::{
    LONG, SHORT, builder, claim, claims, claims_are, etcd, granted, labelled, locker, of_ttl,
    proxied, through, whole,
};

/// The key with the base of fences.
const BASE: &str = "tenure/epoch";
/// A new session writes the base again if it is behind the clock by more than a second.
const BEHIND: Duration = Duration::from_millis(1_100);

/// The number that an engine with fences by the clock would grant now.
fn clock() -> u64 {
    next_server_fence(0, UnixMillis::now()).expect("a clock of our time")
}

fn base(server: &EtcdServer) -> i64 {
    server.ctl(&["get", "--print-value-only", BASE]).parse().expect("a base")
}

/// Writes a base with which numbers are behind the clock by `time`.
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

/// The fence that other processes see.
async fn shown(locker: &Locker, key: &str) -> Option<Fence> {
    locker.inspect(key).await.unwrap().unwrap().holders[0].fence
}

/// A server that restarts empty grants higher fences than before: to a process that knew the old server, on
/// the shared session and on a separate one, and to a new process.
#[tokio::test]
async fn t15_fences_rise_over_lost_data() {
    let server = EtcdServer::start();
    let a = of_ttl(&server.url(), LONG).await;
    // So that the revisions after the restart are lower than this.
    for _ in 0..20 {
        once(&a, "k").await;
    }
    let mut last = once(&a, "k").await;
    // This client gets no event about a new base: without an engine, no background work runs.
    let deaf = etcd(&server.url()).await;
    last = last.max(tried(&deaf, "k", SHORT).await);
    for round in 0..2 {
        server.restart_empty();
        let fresh = locker(&server.url()).await;
        // The new base may be written at the same revision as the last one.
        last = rises(last, once(&fresh, "k").await);
        last = rises(last, tried(&deaf, "k", SHORT).await);
        let ttls = if round == 0 { [LONG, SHORT] } else { [SHORT, LONG] };
        for locker in [&fresh, &a] {
            for ttl in ttls {
                let guard = within("a lock", acquire_retrying(locker, "k", ttl)).await;
                last = rises(last, guard.fence());
                assert_eq!(shown(&fresh, "k").await, Some(last));
                guard.release().await.unwrap();
            }
        }
    }
}

/// Checks that the next fence is higher than the last, and returns it.
#[track_caller]
fn rises(last: Fence, next: Fence) -> Fence {
    assert!(next > last, "{next} after {last}");
    next
}

/// Like [`once`], without an engine, repeated until it succeeds.
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

/// Retries over the errors after a restart of the server.
async fn acquire_retrying(locker: &Locker, key: &str, ttl: Duration) -> Guard {
    loop {
        if let Ok(Some(guard)) = locker.try_lock(key).ttl(ttl).await {
            return guard;
        }
        lapse(Duration::from_millis(20)).await;
    }
}

/// A fence is between the numbers that the clock's rule, which other engines use, gives just before and just
/// after: on a new cluster, on one with a long history, and on one that was last used long ago.
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

/// Many processes that start at once agree on one base: fences rise in the order of the grants, and other
/// processes see the same fences.
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

/// Two processes find no base. The one whose write comes late uses the other's base, and does not write a
/// lower one.
#[tokio::test]
async fn a_late_write_of_the_base() {
    let (server, proxy) = proxied();
    let slow = builder(&through(&proxy)).response_timeout(Duration::from_secs(4));
    let (a, b) = (locker(&server.url()).await, slow.connect().await.unwrap());
    // The first request is the read that finds no base, the second is the write.
    proxy.rule(Rule::on(Way::Requests, Action::Delay(Duration::ZERO)).containing(BASE).once());
    proxy.rule(
        Rule::on(Way::Requests, Action::Delay(Duration::from_secs(2))).containing(BASE).once(),
    );
    let late = tokio::spawn(async move { tried(&b, "k", TTL_DEFAULT).await });
    eventually("the write to be under way", || async { proxy.struck() == 2 }).await;
    let (first, agreed) = (once(&a, "k").await, base(&server));
    let second = within("a lock", late).await.unwrap();
    assert!(base(&server) >= agreed);
    rises(rises(first, second), once(&a, "k").await);
}

/// The base rises while one process holds a lock and another waits. Their fences do not change, fences of
/// later claims are higher, and a process that has not seen the new base gets no lock with the old one.
#[tokio::test]
async fn the_base_rises_while_processes_wait() {
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

/// The base rises for a client without events, while the reply to a claim's request is lost: one claim, one
/// fence, nothing left.
#[tokio::test]
async fn the_base_rises_while_a_reply_is_lost() {
    const MARK: &str = "marked-claim";
    for way in [Way::Requests, Way::Replies] {
        let (server, proxy) = proxied();
        let store = etcd(&through(&proxy)).await;
        let first = granted(&store, &labelled("first", TTL_DEFAULT, None)).await.fence;
        let late = labelled("k", TTL_DEFAULT, Some(MARK));
        // The request arrives or not; no reply comes back.
        proxy.rule(match way {
            Way::Requests => Rule::on(way, Action::Swallow).containing(MARK).once(),
            Way::Replies => Rule::on(way, Action::Swallow),
        });
        let fault = store.try_acquire(&late).await.unwrap_err();
        claims_are(&server, "k", usize::from(way == Way::Replies)).await;
        lapse(BEHIND).await;
        let other = once(&locker(&server.url()).await, "other").await.server();
        proxy.heal();
        let again = granted(&store, &late).await.fence;
        assert!(again > first, "{fault}");
        // The claim was made before or after the base rose, so its fence is below or above the other.
        assert_eq!(again < other, way == Way::Replies, "{again} {other}");
        assert_eq!(claims(&server, "k").len(), 1);
        store.abandon(&late).await.unwrap();
        assert!(claims(&server, "k").is_empty(), "it was said to be undone");
    }
}

/// t26: an operator who deletes the base, or lowers it, stops no process, and lowers no fence.
#[tokio::test]
async fn t26_the_base_is_deleted() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let mut last = once(&a, "k").await.max(once(&b, "k").await);
    for what in ["", "17"] {
        match what {
            "" => server.delete(BASE),
            value => drop(server.ctl(&["put", BASE, value])),
        }
        for locker in [&a, &b] {
            last = rises(last, once(locker, "k").await);
        }
    }
}

/// t26: a base that no clock could have reached is refused by every process, and is not overwritten. Held locks
/// stay held. When the base is put back or deleted, fences continue above all earlier ones.
#[tokio::test]
async fn t26_a_corrupt_base_is_refused() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let held = a.lock("held").await.unwrap();
    let mut last = once(&a, "k").await.max(once(&b, "k").await);
    let huge = i64::MAX.to_string();
    for (corrupt, put_back) in
        [("something else", false), ("-3", true), ("0", false), (&*huge, true)]
    {
        let former = base(&server).to_string();
        server.ctl(&["put", "--", BASE, corrupt]);
        for locker in [&a, &b, &locker(&server.url()).await] {
            let tried = locker.try_lock("k").await.unwrap_err();
            let waited = within("a refusal", locker.lock("k").into_future()).await.unwrap_err();
            assert!(tried.is_refused() && waited.is_refused(), "{tried:?} {waited:?}: `{corrupt}`");
            assert!(whole(&tried).contains("the value of `tenure/epoch` is no base of fences"));
        }
        assert_eq!(server.ctl(&["get", "--print-value-only", BASE]), corrupt);
        assert!(held.is_held() && claims(&server, "k").is_empty());
        match put_back {
            true => drop(server.ctl(&["put", BASE, &former])),
            false => server.delete(BASE),
        }
        for locker in [&a, &b] {
            last = rises(last, once(locker, "k").await);
        }
    }
    held.release().await.unwrap();
}

/// A restored backup sets revisions back. A process that was connected before grants nothing lower, whether
/// the backup has the same base or an older one. It writes the base again, so that other processes see it.
#[tokio::test]
async fn a_restored_backup() {
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
        // First without an engine: on a separate session, only the number shows the restored backup.
        last = rises(last, tried(&deaf, "k", SHORT).await);
        let again = acquire_again(&a, "k").await;
        rises(last, again.fence());
        again.release().await.unwrap();
        last = once(&locker(&server.url()).await, "k").await;
        assert!(once(&a, "k").await > last);
    }
}

/// A backup that is older than a second is also safe for a new process, when no process with newer knowledge
/// is left.
#[tokio::test]
async fn an_old_backup_and_only_new_processes() {
    let server = EtcdServer::start();
    once(&locker(&server.url()).await, "k").await;
    let backup = server.save();
    lapse(BEHIND).await;
    let last = once(&locker(&server.url()).await, "k").await;
    lapse(BEHIND).await;
    server.restore(&backup);
    let fence = acquire_again(&locker(&server.url()).await, "k").await.fence();
    assert!(fence > last, "{fence} after {last}");
}

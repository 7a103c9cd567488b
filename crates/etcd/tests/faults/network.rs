//! Network faults.

use std::time::{Duration, Instant};

use tenure_core::backend::Loss;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{
    SHORT, SLACK, TIMEOUT, builder, etcd, locker, lost_on_time, of_ttl, proxied, through, whole,
};

const BOTH: [Way; 2] = [Way::Requests, Way::Replies];

/// t45: a connection that is silent but not closed is replaced: for requests after a time-out, and for
/// keep-alives in time to keep the lock.
#[tokio::test]
async fn t45_half_open_connections_are_replaced() {
    let (_server, proxy) = proxied();
    let ttl = Duration::from_secs(6);
    let a = of_ttl(&through(&proxy), ttl).await;
    let guard = a.lock("k").await.unwrap();
    let granted = Instant::now();
    for old in proxy.connections() {
        BOTH.iter().for_each(|way| proxy.rule(Rule::on(*way, Action::Swallow).of(old)));
    }
    let next = within("a lock", a.lock("other").into_future()).await.unwrap();
    assert!(granted.elapsed() < TIMEOUT * 2 + SLACK, "after one response time-out");
    eventually("a ttl and more to pass", || async { granted.elapsed() > ttl }).await;
    assert!(guard.is_held(), "kept alive on a new connection");
    next.release().await.unwrap();
    guard.release().await.unwrap();
}

/// t45: with all traffic blocked, the holder is notified on time, and the lock can be acquired again when the
/// network is back.
#[tokio::test]
async fn t45_a_black_hole_is_a_loss_on_time() {
    let (_server, proxy) = proxied();
    let a = of_ttl(&through(&proxy), SHORT).await;
    let guard = a.lock("k").await.unwrap();
    proxy.black_hole(&BOTH);
    assert_eq!(lost_on_time(&guard).await, Loss::Expired);
    proxy.cut(Cut::Reset);
    proxy.heal();
    let next = within("the lock", a.lock("k").into_future()).await.unwrap();
    assert!(next.fence() > guard.fence());
}

/// t46: a network that drops the first packet: connecting ends with its time-out, and a bounded wait shortly
/// after its bound.
#[tokio::test]
async fn t46_a_black_hole_bounds_connecting_and_waiting() {
    let (_server, proxy) = proxied();
    let a = locker(&through(&proxy)).await;
    proxy.black_hole(&BOTH);
    let (started, wait) = (Instant::now(), Duration::from_millis(600));
    let error = within("an error", a.lock("k").wait(wait).into_future()).await.unwrap_err();
    assert!(error.is_timeout() || error.is_unavailable() || error.is_unknown(), "{error:?}");
    assert!(started.elapsed() < wait + SLACK, "{:?}", started.elapsed());
    let started = Instant::now();
    let error = within("an error", builder(&through(&proxy)).connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(started.elapsed() < TIMEOUT + SLACK, "{:?}", started.elapsed());
}

/// t46: a server that is down: each call ends in bounded time with an error that it is unavailable.
#[tokio::test]
async fn t46_a_dead_server() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    a.lock("k").await.unwrap().release().await.unwrap();
    server.kill();
    let started = Instant::now();
    let error = within("an error", a.try_lock("k").into_future()).await.unwrap_err();
    assert!(error.is_unavailable() || error.is_unknown(), "{error:?}");
    assert!(started.elapsed() < TIMEOUT * 3 + SLACK, "{:?}", started.elapsed());
    assert!(whole(&error).contains("127.0.0.1"), "it says where: {}", whole(&error));
    server.start_again();
    assert!(within("the lock", a.lock("k").into_future()).await.unwrap().is_held());
}

/// t46: a server that accepts a connection and never answers is abandoned on time.
#[tokio::test]
async fn t46_a_silent_server() {
    let server = EtcdServer::start();
    server.pause();
    let started = Instant::now();
    let error = within("an error", builder(&server.url()).connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(started.elapsed() < TIMEOUT + SLACK, "{:?}", started.elapsed());
    server.go_on();
}

/// t44: a server that closes each connection at once is retried with growing pauses, however many tasks wait.
#[tokio::test]
async fn t44_reconnecting_is_bounded() {
    let (_server, proxy) = proxied();
    let a = locker(&through(&proxy)).await;
    let _kept = a.lock("kept").await.unwrap();
    proxy.refuse();
    proxy.cut(Cut::Reset);
    let (before, started) = (proxy.accepted(), Instant::now());
    let mut waiters = tokio::task::JoinSet::new();
    for number in 0..100 {
        waiters.spawn(a.lock(format!("k{number}")).into_future());
    }
    lapse(Duration::from_secs(3)).await;
    let tried = proxy.accepted() - before;
    // For each connection that we keep: pauses that double up to a second, with jitter.
    let most = 4 * (8 + 2 * started.elapsed().as_secs() as usize);
    assert!((1..=most).contains(&tried), "{tried} connections, at most {most}");
    proxy.heal();
    // With time-outs as short as these, a request without `wait` gives up before the pause between two attempts ends.
    let healed = a.lock("k").wait(Duration::from_secs(15));
    assert!(within("a lock", healed.into_future()).await.unwrap().is_held());
}

/// Slow, but within the time-outs: everything works, and nothing is lost.
#[tokio::test]
async fn a_slow_network() {
    let (_server, proxy) = proxied();
    let a = of_ttl(&through(&proxy), Duration::from_secs(3)).await;
    for way in BOTH {
        proxy.rule(Rule::on(way, Action::Delay(Duration::from_millis(60))));
    }
    let guard = within("the lock", a.lock("k").into_future()).await.unwrap();
    lapse(Duration::from_secs(5)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Traffic in one direction only: requests arrive and no reply comes back, then the reverse. A request that
/// was executed without a reply is undone.
#[tokio::test]
async fn traffic_in_one_direction() {
    for way in BOTH {
        let (server, proxy) = proxied();
        let a = locker(&through(&proxy)).await;
        let _session = a.lock("kept").await.unwrap();
        proxy.black_hole(&[way]);
        let error = within("an error", a.try_lock("k").into_future()).await.unwrap_err();
        assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
        proxy.cut(Cut::Reset);
        proxy.heal();
        crate::support::claims_are(&server, "k", 0).await;
        assert!(within("the lock", a.lock("k").into_future()).await.unwrap().is_held());
    }
}

/// The first address that serves is used. Dead addresses cost little time, and a member that dies is replaced
/// by the next one.
#[tokio::test]
async fn several_addresses() {
    let server = EtcdServer::start();
    let (one, two) = (Proxy::raw(server.port()), Proxy::raw(server.port()));
    let dead = Proxy::raw(server.port());
    dead.black_hole(&BOTH);
    let url = format!(
        "etcd://127.0.0.1:1,127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
        dead.port(),
        one.port(),
        two.port()
    );
    let started = Instant::now();
    let a = builder(&url).connect_timeout(Duration::from_secs(4)).connect().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let a = tenure_core::Locker::builder(a).ttl(Duration::from_secs(6)).build().unwrap();
    let guard = a.lock("k").await.unwrap();
    for (gone, back) in [(&one, &two), (&two, &one)] {
        back.heal();
        gone.refuse();
        gone.cut(Cut::Reset);
        let other = within("a lock", a.lock("other").into_future()).await.unwrap();
        within("a release", other.release()).await.unwrap();
    }
    lapse(Duration::from_secs(6)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Two unrelated servers are not a cluster: locks in two clusters do not exclude each other.
#[tokio::test]
async fn members_of_two_clusters_are_refused() {
    let (one, two) = (EtcdServer::start(), EtcdServer::start());
    let url = format!("{},127.0.0.1:{}", one.url(), two.port());
    let a = etcd(&url).await;
    let a = tenure_core::Locker::new(a);
    a.lock("k").await.unwrap().release().await.unwrap();
    let kept = if one.leases().is_empty() { &two } else { &one };
    kept.kill();
    let error = within("a refusal", a.try_lock("k").into_future()).await.unwrap_err();
    assert!(!error.is_busy(), "{error:?}");
    let text = whole(&error);
    assert!(error.is_refused() || error.is_unavailable() || error.is_unknown(), "{text}");
    let other = if std::ptr::eq(kept, &raw const one) { &two } else { &one };
    assert_eq!(other.oldest_first(""), Some(vec![]), "nothing was locked elsewhere");
}

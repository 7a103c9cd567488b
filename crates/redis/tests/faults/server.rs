//! A server that loses its scripts, is full, busy, or disconnects its clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Backend, Loss, Release, Renewal};
use tenure_testkit::intercept::renewals;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::unavailable::nothing_to_undo;
use tenure_testkit::wait::{eventually, lapse, pass, within};

use crate::support::{claim, get, lease, locker, redis, requests, whole};

/// Far longer than any wait here: a lock that becomes free was released and did not expire.
const LONG: Duration = Duration::from_secs(300);

/// Sends `fault` again and again, with a pause of `every`, until `work` is done.
async fn under<F: Future<Output = ()>>(
    server: &RedisServer,
    every: Duration,
    fault: &[&str],
    work: F,
) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut raw = server.client();
            while !done.load(Ordering::Relaxed) {
                raw.command(fault);
                pass(every);
            }
        });
        // The scope blocks this thread, so the work is driven by `block_in_place`.
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work));
        done.store(true, Ordering::Relaxed);
    });
}

/// A6, t35: locks work while `SCRIPT FLUSH` is sent all the time.
#[tokio::test(flavor = "multi_thread")]
async fn t35_script_flush_heals() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let kept = a.lock("kept").ttl(Duration::from_millis(600)).await.unwrap();
    under(&server, Duration::from_millis(1), &["SCRIPT", "FLUSH"], async {
        for _ in 0..100 {
            for locker in [&a, &b] {
                let guard = locker.lock("k").wait(LONG).await.unwrap();
                guard.release().await.unwrap();
            }
        }
        lapse(Duration::from_millis(700)).await;
    })
    .await;
    assert!(kept.is_held(), "renewals heal too");
}

/// t41: a full server refuses new locks with a clear error; held locks are renewed and released.
#[tokio::test]
async fn t41_a_full_server() {
    let server = RedisServer::start();
    let store = redis(&server).await;
    let (one, two) = (lease(&store, "one", LONG).await, lease(&store, "two", LONG).await);
    let mut raw = server.client();
    raw.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = locker(&server).await.try_lock("three").await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(whole(&error).contains("the server is full"), "{}", whole(&error));
    let answers = renewals(&store, std::slice::from_ref(&one)).await;
    assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
    assert_eq!(store.release(&one, AfterRelease::Free).await.unwrap(), Release::Freed);
    let closed = AfterRelease::Cooldown(Duration::from_secs(5));
    assert_eq!(store.release(&two, closed).await.unwrap(), Release::Freed);
    assert_eq!(get(&server, "tenure:lock:three"), None);
}

/// t42: a server without enough replicas refuses with a typed error; later the lock can be acquired.
#[tokio::test]
async fn t42_too_few_replicas() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    server.client().command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = within("a refusal", a.lock("k").into_future()).await.unwrap_err();
    assert!(error.is_refused() && whole(&error).contains("NOREPLICAS"), "{}", whole(&error));
    server.client().command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert!(a.lock("k").await.unwrap().is_held());
}

/// t42: a server that cannot save its data refuses all writes with a typed error, also renewals, so the lease
/// expires and the holder is notified.
#[tokio::test]
async fn t42_a_server_that_cannot_save() {
    let server = RedisServer::start_with(&["--save", "3600", "1"]);
    let a = locker(&server).await;
    let guard = a.lock("k").ttl(Duration::from_secs(2)).await.unwrap();
    // There is no directory to write to, also for root.
    std::fs::remove_dir_all(server.dir()).unwrap();
    let mut raw = server.client();
    eventually("a failed save", || {
        raw.command(&["BGSAVE"]);
        let info = raw.text(&["INFO", "persistence"]).unwrap();
        async move { info.contains("rdb_last_bgsave_status:err") }
    })
    .await;
    let error = within("a refusal", a.lock("other").into_future()).await.unwrap_err();
    assert!(error.is_refused() && whole(&error).contains("MISCONF"), "{}", whole(&error));
    assert_eq!(within("the loss", guard.lost()).await, Loss::Expired);
    raw.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    assert!(within("the lock", a.lock("k").into_future()).await.unwrap().is_held());
}

/// t40: a claim waits for a server that is busy with a script, and its wait status gives the reason.
#[tokio::test(flavor = "multi_thread")]
async fn t40_a_busy_server_is_waited_for() {
    let server = RedisServer::start_with(&["--busy-reply-threshold", "50"]);
    let store = redis(&server).await;
    let mut slow = server.client();
    let endless = std::thread::spawn(move || slow.command(&["EVAL", "while true do end", "0"]));
    let mut raw = server.client();
    let busy = |reply: Reply| matches!(reply, Reply::Error(error) if error.starts_with("BUSY"));
    eventually("the server to be busy", || {
        let busy = busy(raw.command(&["PING"]));
        async move { busy }
    })
    .await;
    let (one, waiting) = (claim("k", LONG), store.clone());
    let waiter = one.clone();
    let waiting = tokio::spawn(async move { waiting.acquire(&waiter).await });
    let learned = || async { one.wait_status().fault.is_some() };
    eventually("the waiter to learn of it", learned).await;
    let trouble = one.wait_status().fault.unwrap().to_string();
    assert!(trouble.contains("BUSY"), "{trouble}");
    raw.command(&["SCRIPT", "KILL"]);
    within("the grant", waiting).await.unwrap().unwrap();
    endless.join().unwrap();
}

/// t39: a claim waits for a server that is loading. A bounded wait ends with an error that names the reason,
/// and the lock that the server had stored is held again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn t39_a_loading_server_is_waited_for() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let kept = a.lock("kept").ttl(Duration::from_secs(60)).await.unwrap();
    server.restart_loading();
    let bounded = b.lock("k").wait(Duration::from_millis(500));
    let error = within("an answer", bounded.into_future()).await.unwrap_err();
    assert!(error.is_timeout() || error.is_unavailable(), "{error:?}");
    assert!(whole(&error).contains("LOADING"), "{}", whole(&error));
    let waiting = tokio::spawn(b.lock("k").into_future());
    lapse(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished() && kept.is_held());
    server.end_loading();
    let guard = within("the lock", waiting).await.unwrap().unwrap();
    assert!(guard.is_held() && kept.is_held());
    assert!(b.try_lock("kept").await.unwrap().is_none());
    kept.release().await.unwrap();
}

/// t38: a replica is refused, and accepted when it has become a master.
#[tokio::test]
async fn t38_a_replica_is_refused_until_it_is_promoted() {
    let server = RedisServer::start();
    let replica = server.start_replica();
    let error = tenure_redis::Redis::connect(&replica.url()).await.unwrap_err();
    assert!(error.is_unavailable() && whole(&error).contains("replica"), "{}", whole(&error));
    let later = tenure_redis::Redis::builder(&replica.url()).connect_later().unwrap();
    let waiting = tokio::spawn(tenure_core::Locker::new(later).lock("k").into_future());
    lapse(Duration::from_millis(100)).await;
    replica.client().command(&["REPLICAOF", "NO", "ONE"]);
    assert!(within("the lock", waiting).await.unwrap().unwrap().is_held());
}

/// t44: with every connection killed again and again, locks are still acquired and released.
#[tokio::test(flavor = "multi_thread")]
async fn t44_killed_connections_are_replaced() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let kept = a.lock("kept").ttl(Duration::from_secs(2)).await.unwrap();
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    under(&server, Duration::from_millis(100), &kill, async {
        for _ in 0..100 {
            for locker in [&a, &b] {
                let guard = within("a lock", locker.lock("k").into_future()).await.unwrap();
                // The result of a release that was under way is unknown; it is completed in the background.
                if let Err(error) = guard.release().await {
                    assert!(error.is_unknown() || error.is_unavailable(), "{error:?}");
                }
            }
        }
        lapse(Duration::from_secs(2)).await;
    })
    .await;
    assert!(kept.is_held());
}

/// t58: every unusual name is a lock of its own, and is shown unchanged.
#[tokio::test]
async fn t58_odd_names() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let long = "x".repeat(512);
    let names = ["}x", "{}", "a}b{c", "订单 🔒", "a b", "*", "[a", "\\", "%41", "a:b:", "-", &long];
    let mut guards = Vec::new();
    for name in names {
        guards.push(a.lock(name).label(name).await.unwrap());
        assert!(b.try_lock(name).await.unwrap().is_none(), "{name}");
        let info = b.inspect(name).await.unwrap().expect("it is held");
        let shown: String = name.chars().take(200).collect();
        assert_eq!(info.holders[0].holder.label.as_deref(), Some(&*shown));
    }
    assert_eq!(b.list("*").await.unwrap().len(), names.len());
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(b.list("*").await.unwrap().len(), 0);
}

/// An uncontended acquire and release are two requests, and leave only the fence behind.
#[tokio::test]
async fn a_cycle_is_two_requests() {
    let server = RedisServer::start();
    let a = locker(&server).await;
    a.lock("warm").await.unwrap().release().await.unwrap();
    let before = requests(&server);
    for _ in 0..50 {
        a.lock("k").await.unwrap().release().await.unwrap();
    }
    assert_eq!(requests(&server) - before, 100);
    assert_eq!(crate::support::size(&server), 1, "the fence");
}

/// A server can be reached through its Unix socket, in a chosen database.
#[tokio::test]
async fn a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let server = RedisServer::start_with(&["--unixsocket", path.to_str().unwrap()]);
    let url = format!("redis+unix://{}?db=2", path.display());
    let redis = tenure_redis::Redis::connect(&url).await.unwrap();
    let guard = tenure_core::Locker::new(redis).lock("k").await.unwrap();
    let mut raw = server.client();
    raw.command(&["SELECT", "2"]);
    assert!(raw.text(&["GET", "tenure:lock:k"]).is_some());
    guard.release().await.unwrap();
}

/// A claim that was never sent to a dead server is abandoned at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_undo_on_a_dead_server() {
    let server = RedisServer::start();
    nothing_to_undo(Arc::new(redis(&server).await), || server.kill()).await;
}

//! `tenure.toml`, and the behaviour of a locker that it configures.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure::redis::Redis;
use tenure::{Config, Error, Locker};
use tenure_testkit::servers::RedisServer;

/// A directory with a `tenure.toml` in it.
fn written(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// C6: a missing file is no error, unless it was named; an unreadable file is one.
#[tokio::test]
async fn c6_files() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("tenure.toml");
    Config::read_files(&[&missing]).unwrap().url("memory:c6").connect().await.unwrap();
    let refused = Config::read_file(&missing).unwrap_err();
    assert!(refused.is_invalid());
    assert!(refused.to_string().starts_with("cannot read `/"), "{refused}");
    let unreadable = Config::read_files(&[dir.path()]).unwrap_err();
    assert!(unreadable.to_string().starts_with("cannot read `/"), "{unreadable}");
    let (_dir, path) = written("[lock\nurl = 'redis://:hunter2@h'");
    let broken = Config::read_file(path).unwrap_err().to_string();
    assert!(broken.ends_with("it is no TOML, look at line 1"), "{broken}");
}

/// C6: of several files the last is the strongest, field by field.
#[tokio::test]
async fn c6_several_files() {
    let (_weak, weak) = written("[lock]\nurl = 'memory:weak'\nttl = '40s'");
    let (_strong, strong) = written("[lock]\nurl = 'memory:strong'");
    let config = Config::read_files(&[weak, strong]).unwrap();
    assert_eq!(config.chosen_url().unwrap().unwrap(), "memory:strong");
    let guard = config.connect().await.unwrap().lock("k").await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(30), "{guard:?}");
}

#[tenure::lock(key = "order:{id}", locker = locker, held = held)]
async fn left(locker: &Locker, id: u64) -> Result<Duration, Error> {
    Ok(held.remaining())
}

/// C6: `driver = "redis"` uses the server of `[redis]` and the prefix of `[lock]`; the defaults apply to
/// plain locks and to `#[lock]`.
#[tokio::test]
async fn c6_a_locker_by_file() {
    let server = RedisServer::start();
    let (host, port) = ("127.0.0.1", server.port());
    let (_dir, path) = written(&format!(
        "[lock]\ndriver = 'redis'\nprefix = 'shop'\nttl = '60s'\nwait = '0s'\n\
         [redis]\nhost = '{host}'\nport = {port}\nprefix = 'cache'"
    ));
    let locker = Config::read_file(path).unwrap().connect().await.unwrap();
    let guard = locker.lock("order:42").await.unwrap();
    assert!(server.client().text(&["GET", "shop:lock:order:42"]).is_some());
    assert!(guard.remaining() > Duration::from_secs(50));
    assert!(locker.lock("order:42").await.unwrap_err().is_busy(), "it does not wait");
    assert!(left(&locker, 1).await.unwrap() > Duration::from_secs(50));
    guard.release().await.unwrap();
}

/// C6: a URL is stronger than the address in `[redis]`; the other fields of `[redis]` still apply.
#[tokio::test]
async fn c6_url_and_section() {
    let server = RedisServer::start();
    let (_dir, path) = written("[redis]\nhost = 'no.such.host.invalid'\nprefix = 'cache'");
    let config = Config::read_file(path).unwrap().url(server.url());
    let guard = config.connect().await.unwrap().lock("order:42").await.unwrap();
    assert!(server.client().text(&["GET", "cache:lock:order:42"]).is_some());
    drop(guard);
}

/// C6: `unavailable_after` of the configuration ends a long wait for a server that cannot be reached.
#[tokio::test]
async fn c6_unavailable_after_is_configured() {
    let server = RedisServer::start();
    server.kill();
    let (url, toml) = (server.url(), "wait = '60s'\nunavailable_after = '300ms'");
    let (_dir, path) = written(&format!("[lock]\nurl = '{url}'\n{toml}"));
    let locker = Config::read_file(path).unwrap().connect_later().unwrap();
    let started = std::time::Instant::now();
    assert!(locker.lock("k").await.unwrap_err().is_unavailable());
    assert!(started.elapsed() < Duration::from_secs(5), "after {:?}", started.elapsed());
}

/// C6: `flush_timeout` of the configuration is how long the drop of the last locker waits for a release that a
/// silent server does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn c6_flush_timeout_is_configured() {
    let server = RedisServer::start();
    let (_dir, path) =
        written(&format!("[lock]\nurl = '{}'\nflush_timeout = '1500ms'", server.url()));
    let locker = Config::read_file(path).unwrap().connect().await.unwrap();
    let guard = locker.lock("k").await.unwrap();
    server.pause();
    drop(guard);
    let waited = std::thread::spawn(move || {
        let started = std::time::Instant::now();
        drop(locker);
        started.elapsed()
    });
    let waited = waited.join().unwrap();
    server.go_on();
    assert!(waited > Duration::from_millis(1_400), "{waited:?}");
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

/// C6: with the watchdog off a lock ends with its ttl.
#[tokio::test]
async fn c6_watchdog_off() {
    let (_dir, path) = written("[lock]\nurl = 'memory:dog'\nwatchdog = false\nttl = '1s'");
    let locker = Config::read_file(path).unwrap().connect().await.unwrap();
    let guard = locker.lock("k").await.unwrap();
    tenure_testkit::wait::within("the end of the ttl", guard.lost()).await;
}

/// Time-outs of more than 8 s together need a ttl of twice their sum; the message names both fields and their
/// file.
#[tokio::test]
async fn long_time_outs_need_a_long_ttl() {
    let server = RedisServer::start();
    let config = |ttl: &str| {
        let port = server.port();
        let (dir, path) = written(&format!(
            "[lock]\nttl = '{ttl}'\n[redis]\nhost = '127.0.0.1'\nport = {port}\ntimeout = '10s'"
        ));
        (dir, path.display().to_string(), Config::read_file(path).unwrap())
    };
    let (_dir, path, short) = config("39s");
    assert_eq!(
        short.connect().await.unwrap_err().to_string(),
        format!(
            "`lock.ttl` in `{path}`, `redis.timeout` in `{path}`: ttl (39s) must be at least twice the \
             time-outs of `redis`, connect_timeout plus response_timeout (20s)"
        )
    );
    let (_dir, _, long) = config("40s");
    let guard = long.connect().await.unwrap().lock("k").await.unwrap();
    guard.release().await.unwrap();
}

/// A reply within a long time-out counts, also after the ten seconds that core waits by default.
#[tokio::test]
async fn a_long_time_out_is_waited_for() {
    let server = RedisServer::start();
    let redis = Redis::builder(&server.url()).response_timeout(Duration::from_secs(28));
    let redis = redis.connect().await.unwrap();
    let locker = Locker::builder(redis).ttl(Duration::from_secs(60)).build().unwrap();
    locker.lock("warm").await.unwrap().release().await.unwrap();
    server.pause();
    let asked = tokio::spawn(locker.try_lock("k").into_future());
    tenure_testkit::wait::lapse(Duration::from_secs(11)).await;
    assert!(!asked.is_finished(), "core has given up");
    server.go_on();
    let guard = tenure_testkit::wait::within("the answer", asked).await.unwrap().unwrap();
    guard.expect("it is free").release().await.unwrap();
}

/// A program can start while its server is down, and can lock as soon as the server is up.
#[tokio::test]
async fn connect_later_starts_without_a_server() {
    let server = RedisServer::start();
    server.kill();
    let config = Config::default().url(server.url());
    assert!(config.connect().await.unwrap_err().is_unavailable());
    let locker = config.connect_later().unwrap();
    assert!(locker.try_lock("k").await.unwrap_err().is_unavailable());
    server.restart();
    let locked = || async { locker.try_lock("k").await.is_ok_and(|guard| guard.is_some()) };
    tenure_testkit::wait::eventually("a lock", locked).await;
}

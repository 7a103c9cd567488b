//! `tenure.toml` and what a locker made of it does.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure::{Config, Error, Locker};
use tenure_testkit::servers::RedisServer;

/// A directory with a `tenure.toml` in it.
fn written(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// C6: a file that is not there is fine, unless it was named; one that cannot be read is not.
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

/// C6: `driver = "redis"` goes where `[redis]` says, under the prefix of `[lock]`; the defaults
/// hold for plain locks and for `#[lock]`.
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

/// C6: a URL is stronger than the address in `[redis]`; what else stands there goes for it too.
#[tokio::test]
async fn c6_url_and_section() {
    let server = RedisServer::start();
    let (_dir, path) = written("[redis]\nhost = 'no.such.host.invalid'\nprefix = 'cache'");
    let config = Config::read_file(path).unwrap().url(server.url());
    let guard = config.connect().await.unwrap().lock("order:42").await.unwrap();
    assert!(server.client().text(&["GET", "cache:lock:order:42"]).is_some());
    drop(guard);
}

/// C6: with the watchdog off a lock ends with its ttl.
#[tokio::test]
async fn c6_watchdog_off() {
    let (_dir, path) = written("[lock]\nurl = 'memory:dog'\nwatchdog = false\nttl = 1000");
    let locker = Config::read_file(path).unwrap().connect().await.unwrap();
    let guard = locker.lock("k").await.unwrap();
    tenure_testkit::wait::within("the end of the ttl", guard.lost()).await;
}

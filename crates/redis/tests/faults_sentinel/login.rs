//! Passwords: the master and the Sentinels have one each.

use tenure_core::Locker;
use tenure_redis::Redis;
use tenure_testkit::servers::{Reply, SentinelSet};

use crate::support::{redis_at, whole};

/// t66: the master and the Sentinels get their own passwords, by URL or builder; without one the error names
/// the server that refused.
#[tokio::test(flavor = "multi_thread")]
async fn t66_two_passwords() {
    let set = SentinelSet::start_secret("hunter2", "swordfish");
    let with_master = set.url().replace("://", "://:hunter2@");
    let with_both = format!("{with_master}?sentinel_password=swordfish");
    let locker = Locker::new(redis_at(&with_both).await.unwrap());
    locker.lock("k").await.unwrap().release().await.unwrap();

    let built = Redis::builder(&with_master).sentinel_login(None, "swordfish");
    let locker = Locker::new(built.connect().await.unwrap());
    locker.lock("k").await.unwrap().release().await.unwrap();

    let sentinel = format!("`127.0.0.1:{}`", set.sentinels()[0].port());
    let error = redis_at(&with_master).await.unwrap_err();
    let text = whole(&error);
    assert!(error.is_refused() && text.contains("NOAUTH") && text.contains(&sentinel), "{text}");
    let error = redis_at(&format!("{}?sentinel_password=swordfish", set.url())).await.unwrap_err();
    let text = whole(&error);
    assert!(error.is_refused() && text.contains("NOAUTH") && !text.contains(&sentinel), "{text}");
    let wrong = format!("{with_master}?sentinel_password=hunter2");
    let error = redis_at(&wrong).await.unwrap_err();
    let text = whole(&error);
    assert!(error.is_refused() && text.contains("WRONGPASS"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{text}");
}

/// A template in the URL names the key of a lock on the master, `inspect` shows its fence, and a plain client
/// shares the lock both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_template_beside_a_login() {
    let set = SentinelSet::start_secret("hunter2", "swordfish");
    let url = set.url().replace("://", "://:hunter2@");
    let url = format!("{url}?sentinel_password=swordfish&lock_key=distributed_lock:{{key}}&db=0");
    let locker = Locker::new(redis_at(&url).await.unwrap());
    let (guard, mut master) = (locker.lock("order:1").await.unwrap(), set.master().client());
    assert_eq!(master.command(&["AUTH", "hunter2"]), Reply::Text("OK".into()));
    let info = locker.inspect("order:1").await.unwrap().expect("it is held");
    assert_eq!(info.holders[0].fence, Some(guard.fence()));
    let take = ["SET", "distributed_lock:order:1", "theirs", "NX", "PX", "60000"];
    assert_eq!(master.command(&take), Reply::Nil);
    guard.release().await.unwrap();
    assert_eq!(master.command(&take), Reply::Text("OK".into()));
    assert!(locker.try_lock("order:1").await.unwrap().is_none());
}

/// A login for Sentinels with a URL without Sentinels is an error.
#[test]
fn a_login_without_sentinels() {
    let built = Redis::builder("redis://h").sentinel_login(None, "x").connect_later();
    assert_eq!(built.unwrap_err().to_string(), "`sentinel_login` needs a `redis+sentinel://` url");
}

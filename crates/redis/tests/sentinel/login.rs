//! Passwords: the master's and the Sentinels' are two things.

use tenure_core::Locker;
use tenure_redis::Redis;
use tenure_testkit::servers::SentinelSet;

use crate::support::{redis_at, whole};

/// t66: each gets its own password, by URL or builder; without it the refusal says whose is missing.
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

/// A login for Sentinels where there are none is a mistake.
#[test]
fn a_login_without_sentinels() {
    let built = Redis::builder("redis://h").sentinel_login(None, "x").connect_later();
    assert_eq!(built.unwrap_err().to_string(), "`sentinel_login` needs a `redis+sentinel://` url");
}

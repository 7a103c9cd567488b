//! Invalid values are rejected without any effect.

use std::time::Duration;

use tenure_core::{Locker, Renew};

use super::Fixture;
use super::support::{can_be_had, look, refused};

/// Checks that the rejected request had no effect on the engine.
async fn nothing_is_left(locker: &Locker, key: &str) {
    assert!(look(locker, key).await.is_none());
    assert_eq!(locker.hold_count(key), 0);
    assert!(can_be_had(locker, key).await);
}

/// A2, t55: a ttl of zero, below the minimum, not a multiple of the engine's unit, or above the maximum.
pub async fn t55_bad_ttls<F: Fixture>(f: &F) {
    let (a, key, can) = (f.locker().await, f.key("k"), f.capabilities().await);
    let nano = Duration::from_nanos(1);
    let bad = [
        Duration::ZERO,
        nano,
        can.ttl_min - nano,
        can.ttl_min + can.ttl_unit / 2,
        Duration::from_secs(366 * 24 * 3600),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for ttl in bad {
        let error = refused(a.lock(&key).ttl(ttl)).await;
        assert!(error.is_invalid(), "{ttl:?}: {error:?}");
        assert!(error.to_string().contains("ttl"), "{error}");
        assert!(refused(a.try_lock(&key).ttl(ttl)).await.is_invalid());
    }
    nothing_is_left(&a, &key).await;
}

/// t56: the shortest ttl is granted only if some of its validity is left; a guard never starts out expired.
pub async fn t56_the_shortest_ttl_is_honest<F: Fixture>(f: &F) {
    let (a, key, ttl) = (f.locker().await, f.key("k"), f.capabilities().await.ttl_min);
    let asked = a.clock().now();
    match a.lock(&key).ttl(ttl).renew(Renew::Off).await {
        Ok(guard) if f.capabilities().await.expires => {
            assert!(guard.valid_until() <= asked.after(a.clock().now().since(asked) + ttl));
            guard.lost().await;
            assert!(!guard.is_held());
        }
        Ok(guard) => assert!(guard.is_held()),
        Err(error) => assert!(error.is_unavailable(), "{error:?}"),
    }
}

/// t57: a renewal interval that leaves no time for a second attempt is rejected.
pub async fn t57_late_renewals<F: Fixture>(f: &F) {
    let (a, key, ttl) = (f.locker().await, f.key("k"), Duration::from_secs(30));
    let bad = [
        Renew::Every(ttl / 2),
        Renew::Every(ttl * 2),
        Renew::Every(Duration::ZERO),
        Renew::Every(Duration::from_millis(9)),
        Renew::Every(Duration::MAX),
        Renew::Ratio(0.5),
        Renew::Ratio(0.0),
        Renew::Ratio(1e-6),
        Renew::Ratio(-1.0),
        Renew::Ratio(f64::NAN),
        Renew::Ratio(f64::INFINITY),
    ];
    for renew in bad {
        let error = refused(a.lock(&key).ttl(ttl).renew(renew)).await;
        assert!(error.is_invalid(), "{renew:?}: {error:?}");
    }
    nothing_is_left(&a, &key).await;
}

/// t58, t123: names that cannot be displayed are rejected by every function that takes a name.
pub async fn t58_bad_names<F: Fixture>(f: &F) {
    let a = f.locker().await;
    let long = "x".repeat(1 << 20);
    for name in ["", "a\0b", "line\nbreak", "\u{1b}[31mred", "\u{7f}", long.as_str()] {
        assert!(refused(a.lock(name)).await.is_invalid());
        assert!(refused(a.try_lock(name)).await.is_invalid());
        assert!(refused(a.inspect(name)).await.is_invalid());
        assert!(refused(a.is_locked(name)).await.is_invalid());
        assert!(refused(a.release(name)).await.is_invalid());
        assert_eq!(a.hold_count(name), 0);
        let message = refused(a.lock(name)).await.to_string();
        assert!(message.len() < 300 && !message.contains(['\0', '\n', '\u{1b}']), "{message}");
    }
}

/// t58: unusual names are valid names, taken literally and shown unchanged.
pub async fn t58_odd_names<F: Fixture>(f: &F) {
    let (a, b) = (f.locker().await, f.locker().await);
    let rest = 512 - f.key("").len();
    let (long, wide) = ("x".repeat(rest), "锁".repeat(rest / 3));
    let odd = ["}x", "{}", "a}b{c", " ", "a/b", "../x", "..", ".", "a\\b", "%2F", "🔒", "订单"];
    for name in odd.into_iter().chain([long.as_str(), wide.as_str()]) {
        let key = f.key(name);
        let guard = a.lock(&key).await.unwrap_or_else(|error| panic!("`{name}`: {error:?}"));
        assert_eq!(guard.key().as_str(), key);
        assert!(!can_be_had(&b, &key).await);
        assert_eq!(look(&b, &key).await.expect("it is held").key.as_str(), key);
        guard.release().await.unwrap();
        nothing_is_left(&b, &key).await;
    }
}

/// Other invalid values.
pub async fn other_bad_values<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let ms = Duration::from_millis;
    assert!(refused(a.lock(&key).attempts(0)).await.is_invalid());
    assert!(refused(a.lock(&key).retry_interval(ms(9))).await.is_invalid());
    assert!(refused(a.lock(&key).retry_interval(Duration::ZERO)).await.is_invalid());
    assert!(refused(a.lock(&key).retry_interval(Duration::MAX)).await.is_invalid());
    assert!(refused(a.lock(&key).max_hold(Duration::ZERO)).await.is_invalid());
    assert!(refused(a.lock(&key).max_hold(Duration::from_micros(1))).await.is_invalid());
    assert!(refused(a.lock(&key).max_hold(ms(10)).min_hold(ms(11))).await.is_invalid());
    nothing_is_left(&a, &key).await;
}

/// The largest values do not cause an overflow.
pub async fn the_largest_values<F: Fixture>(f: &F) {
    let (a, key, most) = (f.locker().await, f.key("k"), Duration::MAX);
    let year = Duration::from_secs(365 * 24 * 3600);
    let request = a.lock(&key).ttl(year).retry_interval(year).wait(most);
    let guard = request.max_hold(most).attempts(u32::MAX).await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

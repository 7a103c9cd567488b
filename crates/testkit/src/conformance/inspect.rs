//! Inspecting locks from outside.

use std::time::Duration;

use tenure_core::{Owner, Process};

use super::Fixture;
use super::support::{becomes_free, hold, is_lost, look, start, waiters_are};

/// A13: without a holder or waiter, there is no information about a key.
pub async fn nothing_is_none<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    assert!(look(&a, &key).await.is_none());
    assert!(!a.is_locked(&key).await.unwrap());
    assert_eq!(a.hold_count(&key), 0);
}

/// A13: every process sees the holder: process, start, label, reason, remaining lease, fence.
pub async fn the_holder_is_shown<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = a.lock(&key).label("trace-7").reason("month end").await.unwrap();
    for locker in [&a, &b] {
        let info = look(locker, &key).await.expect("it is held");
        assert_eq!(info.key.as_str(), key);
        assert_eq!(info.holders.len(), 1);
        let holder = &info.holders[0].holder;
        assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
        assert!(holder.since.is_some() && !holder.cooling_down);
        assert_eq!(holder.label.as_deref(), Some("trace-7"));
        assert_eq!(holder.reason.as_deref(), Some("month end"));
        assert_eq!(holder.lease_left.is_some(), f.capabilities().await.expires);
        assert_eq!(info.holders[0].fence, Some(guard.fence()));
        assert!(locker.is_locked(&key).await.unwrap());
    }
    guard.release().await.unwrap();
    assert!(look(&b, &key).await.is_none(), "nothing is left of a released lock");
    assert!(!b.is_locked(&key).await.unwrap());
}

/// A13: label and reason are truncated to 200 characters each, whatever their length in bytes.
pub async fn long_words_are_cut<F: Fixture>(f: &F) {
    let (a, key, long) = (f.locker().await, f.key("k"), "ü".repeat(100_000));
    let guard = a.lock(&key).label(&*long).reason(&*long).await.unwrap();
    let holder = look(&a, &key).await.expect("it is held").holders.remove(0).holder;
    assert_eq!(holder.label.map(|label| label.chars().count()), Some(200));
    assert_eq!(holder.reason.map(|reason| reason.chars().count()), Some(200));
    guard.release().await.unwrap();
}

/// A13: `hold_count` counts the holds of this process, with depth.
pub async fn hold_count_is_mine<F: Fixture>(f: &F) {
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let outer = a.lock(&key).owner(owner.clone()).await.unwrap();
    let inner = a.lock(&key).owner(owner).await.unwrap();
    assert_eq!((a.hold_count(&key), b.hold_count(&key)), (2, 0));
    drop(inner);
    drop(outer);
    becomes_free(&b, &key).await;
    assert_eq!(a.hold_count(&key), 0);
}

/// A13, G2: `holds` is true for the locker and the owner that hold the lock, while they do, and for no other.
pub async fn holds_is_of_a_locker_or_an_owner<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (ann, ben) = (Owner::new(), Owner::new());
    let holds = || [a.holds(&key), b.holds(&key), ann.holds(&a, &key), ben.holds(&a, &key)];
    assert_eq!(holds(), [false; 4]);
    let plain = hold(&a, &key).await;
    assert_eq!(holds(), [true, false, false, false], "without an owner");
    plain.release().await.unwrap();
    let guard = a.lock(&key).owner(ann.clone()).await.unwrap();
    assert_eq!(holds(), [true, false, true, false]);
    assert!(!ann.holds(&b, &key), "by another locker");
    guard.release().await.unwrap();
    assert_eq!(holds(), [false; 4]);
    let lost = a.lock(&key).owner(ann.clone()).max_hold(Duration::from_millis(50)).await.unwrap();
    is_lost(&lost).await;
    assert_eq!(holds(), [false; 4], "after a loss");
}

/// A13: waiters are shown in the order of the queue, if the engine knows them.
pub async fn waiters_are_shown<F: Fixture>(f: &F) {
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let mut first = start(b.lock(&key).label("first")).await;
    first.until(waiters_are(&a, &key, 1)).await;
    let mut second = start(c.lock(&key).label("second")).await;
    first.until(second.until(waiters_are(&a, &key, 2))).await;
    if let Some(waiters) = look(&c, &key).await.expect("it is held").waiters {
        let labels: Vec<_> = waiters.iter().map(|w| w.label.as_deref()).collect();
        assert_eq!(labels, [Some("first"), Some("second")]);
    }
    drop((first, second));
}

/// A13: `list` takes a glob and shows the matching locks, but no free ones.
pub async fn list_takes_a_glob<F: Fixture>(f: &F) {
    let (a, b) = (f.locker().await, f.locker().await);
    let names = ["order:1", "order:2", "cart:1"].map(|name| f.key(name));
    let guards = [hold(&a, &names[0]).await, hold(&a, &names[1]).await, hold(&b, &names[2]).await];
    let listed = |glob: String| {
        let locker = b.clone();
        async move {
            let infos = locker.list(&glob).await.unwrap();
            let mut keys: Vec<_> = infos.iter().map(|i| i.key.as_str().to_owned()).collect();
            keys.sort();
            keys
        }
    };
    assert_eq!(listed(f.key("order:*")).await, [names[0].clone(), names[1].clone()]);
    assert_eq!(listed(f.key("order:1")).await, [names[0].clone()]);
    assert_eq!(listed(f.key("*")).await.len(), 3);
    assert_eq!(listed(f.key("nothing:*")).await, [""; 0]);
    let [one, ..] = guards;
    one.release().await.unwrap();
    assert_eq!(listed(f.key("order:*")).await, [names[1].clone()]);
}

/// t59: `is_locked` takes a name with glob characters literally; in `list` they can be escaped.
pub async fn t59_globs_in_names<F: Fixture>(f: &F) {
    let a = f.locker().await;
    let (odd, plain) = (f.key("a*[b]?"), f.key("axb"));
    let guard = hold(&a, &odd).await;
    assert!(a.is_locked(&odd).await.unwrap());
    assert!(!a.is_locked(&plain).await.unwrap());
    assert!(!a.is_locked(&f.key("a*")).await.unwrap(), "a name is no pattern");
    let found = a.list(&f.key(r"a\*\[b\]\?")).await.unwrap();
    assert_eq!(found.len(), 1);
    guard.release().await.unwrap();
}

/// Inspecting does not interfere: a lock that is inspected all the time can still be held, released and
/// acquired.
pub async fn inspecting_changes_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (watcher, watched) = (f.locker().await, key.clone());
    let watching = tokio::spawn(async move {
        loop {
            watcher.inspect(&watched).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..20 {
        for locker in [&a, &b] {
            let request = locker.lock(&key).wait(Duration::from_secs(20));
            let guard = request.await.unwrap();
            assert!(guard.is_held());
            guard.release().await.unwrap();
        }
    }
    watching.abort();
    assert!(watching.await.unwrap_err().is_cancelled());
    assert!(look(&a, &key).await.is_none());
}

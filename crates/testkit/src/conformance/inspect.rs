//! Looking at locks from outside.

use std::time::Duration;

use tenure_core::{Client, Owner};

use super::Fixture;
use super::support::{becomes_free, hold, look, start, waiters_are};

/// A13: nobody holds or waits: there is nothing to see.
pub async fn nothing_is_none<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    assert!(look(&a, &key).await.is_none());
    assert!(!a.is_locked(&key).await.unwrap());
    assert_eq!(a.hold_count(&key), 0);
}

/// A13: the holder is shown to everybody: process, since when, label, reason, what is left.
pub async fn the_holder_is_shown<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = a.lock(&key).label("trace-7").reason("month end").await.unwrap();
    for locker in [&a, &b] {
        let info = look(locker, &key).await.expect("it is held");
        assert_eq!(info.key.as_str(), key);
        assert_eq!(info.holders.len(), 1);
        let holder = &info.holders[0].holder;
        assert_eq!(holder.client.as_ref(), Some(Client::this_process()));
        assert!(holder.since.is_some() && !holder.closing);
        assert_eq!(holder.label.as_deref(), Some("trace-7"));
        assert_eq!(holder.reason.as_deref(), Some("month end"));
        assert_eq!(holder.lease_left.is_some(), f.capabilities().await.expires);
        assert!(info.holders[0].fence.is_none_or(|fence| fence <= guard.fence()));
        assert!(locker.is_locked(&key).await.unwrap());
    }
    guard.release().await.unwrap();
    assert!(look(&b, &key).await.is_none(), "nothing is left of a released lock");
    assert!(!b.is_locked(&key).await.unwrap());
}

/// A13: a label and a reason are kept up to 200 characters each, whatever their length in bytes.
pub async fn long_words_are_cut<F: Fixture>(f: &F) {
    let (a, key, long) = (f.locker().await, f.key("k"), "ü".repeat(100_000));
    let guard = a.lock(&key).label(&*long).reason(&*long).await.unwrap();
    let holder = look(&a, &key).await.expect("it is held").holders.remove(0).holder;
    assert_eq!(holder.label.map(|label| label.chars().count()), Some(200));
    assert_eq!(holder.reason.map(|reason| reason.chars().count()), Some(200));
    guard.release().await.unwrap();
}

/// A13: `hold_count` is this process's, and counts depth.
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

/// A13: who waits is shown, first come first, where the engine knows it.
pub async fn waiters_are_shown<F: Fixture>(f: &F) {
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let mut first = start(b.lock(&key).label("first")).await;
    first.until(waiters_are(&a, &key, 1)).await;
    let mut second = start(c.lock(&key).label("second")).await;
    first.until(second.until(waiters_are(&a, &key, 2))).await;
    if let Some(waiters) = look(&c, &key).await.expect("it is held").waiters {
        let labels: Vec<_> = waiters.iter().map(|w| w.holder.label.as_deref()).collect();
        assert_eq!(labels, [Some("first"), Some("second")]);
    }
    drop((first, second));
}

/// A13: `list` takes a glob, shows what matches, and nothing that is free.
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

/// t59: a name with glob characters is looked at literally; in `list` they can be escaped.
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

/// Looking does not disturb: a lock that is looked at all the time is held, released and had.
pub async fn looking_changes_nothing<F: Fixture>(f: &F) {
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

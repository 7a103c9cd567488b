//! Errors that a caller can branch on.

use std::time::Duration;

use tenure_core::{Error, Owner, Process, Reentry};

use super::Fixture;
use super::support::{is_lost, refused, soon_lost};

/// The predicates that are true for this error.
fn kinds(error: &Error) -> Vec<&'static str> {
    let all = [
        ("busy", error.is_busy()),
        ("cancelled", error.is_cancelled()),
        ("closed", error.is_closed()),
        ("already held", error.is_already_held()),
        ("not held", error.is_not_held()),
        ("lost", error.is_lost()),
        ("invalid", error.is_invalid()),
        ("unavailable", error.is_unavailable()),
        ("unknown", error.is_unknown()),
        ("refused", error.is_refused()),
        ("unsupported", error.is_unsupported()),
    ];
    all.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect()
}

/// A12: each error is of exactly one kind and names its key.
pub async fn kinds_are_told_apart<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let owner = Owner::new();
    let guard = a.lock(&key).owner(owner.clone()).await.unwrap();
    let lost = soon_lost(&a, &f.key("lost")).await;
    is_lost(&lost).await;
    let cases = [
        ("busy", refused(b.lock(&key).wait(Duration::ZERO)).await),
        ("cancelled", refused(b.lock(&key).cancel_on(async {})).await),
        ("already held", refused(a.lock(&key).owner(owner).reentry(Reentry::Refuse)).await),
        ("not held", refused(b.release(&key)).await),
        ("lost", refused(lost.release()).await),
        ("closed", {
            b.shutdown(Duration::ZERO).await;
            refused(b.lock(&key)).await
        }),
    ];
    for (kind, error) in cases {
        assert_eq!(kinds(&error), [kind], "{error:?}");
        assert!(error.key().unwrap().as_str().starts_with(f.namespace()), "{error:?}");
        assert!(error.to_string().contains(f.namespace()), "{error}");
    }
    assert!(guard.is_held());
}

/// A12: the error names the holder: its process, label and reason.
pub async fn the_holder_is_named<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = a.lock(&key).label("trace-7").reason("month end").await.unwrap();
    for limit in [Duration::ZERO, Duration::from_secs(1)] {
        let error = refused(b.lock(&key).wait(limit)).await;
        let holder = error.holder().expect("the holder was seen");
        assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
        assert_eq!(holder.label.as_deref(), Some("trace-7"));
        assert_eq!(holder.reason.as_deref(), Some("month end"));
        assert!(error.waited().unwrap() >= limit);
        assert!(error.to_string().contains(&format!("/{}`", std::process::id())), "{error}");
    }
}

/// A12: the same when the holder is another task of the process.
pub async fn the_local_holder_is_named<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let _guard = a.lock(&key).label("trace-7").await.unwrap();
    let error = refused(a.lock(&key).wait(Duration::from_millis(20))).await;
    let holder = error.holder().expect("the holder is this process");
    assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
}

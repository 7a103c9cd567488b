//! The scoped form `run`: it always releases, and hides neither an error nor a loss.

use std::convert::Infallible;
use std::time::Duration;

use tenure_core::{Owner, RunError};

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, refused, within};

/// A11: `run` returns the body's value, and the lock is free.
pub async fn a_value_comes_back<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let other = b.clone();
    let body = |held: tenure_core::Held| async move {
        let busy = other.try_lock(held.key().as_str()).await.unwrap().is_none();
        Ok::<_, Infallible>((busy, held.is_held()))
    };
    let done = a.lock(&key).run(body).await;
    assert_eq!(done.unwrap(), Ok((true, true)));
    assert!(can_be_had(&b, &key).await);
}

/// A11: `run` returns the body's error unchanged, and the lock is free.
pub async fn an_error_comes_back<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let done = a.lock(&key).run(|_| async { Err::<(), _>("the body's own") }).await;
    assert_eq!(done.unwrap(), Err("the body's own"));
    assert!(can_be_had(&b, &key).await);
}

/// A11, t52: the lock is free after a panic in the body.
pub async fn a_panic_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let request = a.lock(&key);
    let body = |_| async { panic!("on purpose") };
    let task = tokio::spawn(async move { request.run::<_, _, (), Infallible>(body).await });
    assert!(task.await.unwrap_err().is_panic());
    becomes_free(&b, &key).await;
}

/// A11, A15: a pending body is dropped when the lock is lost, and `run` returns the loss.
pub async fn a_loss_ends_the_body<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let request = a.lock(&key).max_hold(Duration::from_millis(50));
    let run = request.run(|_| std::future::pending::<Result<(), Infallible>>());
    match within("the loss", run).await {
        Err(RunError::Lost { value: None, error }) => {
            assert!(error.is_lost() && !error.is_late_loss());
        }
        other => panic!("{other:?}"),
    }
    becomes_free(&b, &key).await;
}

/// A11: a loss that is detected after a successful body is returned together with the body's value.
pub async fn a_loss_after_success_is_reported<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let request = a.lock(&key).max_hold(Duration::from_millis(50));
    let run = request.run(|held| async move {
        work_through_the_loss(&held);
        Ok::<_, Infallible>("receipt")
    });
    match within("the body", run).await {
        Err(RunError::Lost { value: Some("receipt"), error }) => assert!(error.is_late_loss()),
        other => panic!("{other:?}"),
    }
}

/// A11: a loss does not hide the body's error.
pub async fn a_loss_does_not_mask_the_error<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let request = a.lock(&key).max_hold(Duration::from_millis(50));
    let run = request.run(|held| async move {
        work_through_the_loss(&held);
        Err::<(), _>("the body's own")
    });
    assert_eq!(within("the body", run).await.unwrap(), Err("the body's own"));
}

/// Work without an await point, at which it could be dropped.
fn work_through_the_loss(held: &tenure_core::Held) {
    while held.is_held() {
        std::thread::yield_now();
    }
}

/// A11: dropping the run releases the lock.
pub async fn a_dropped_run_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let request = a.lock(&key);
    let run = tokio::spawn(request.run(|_| async {
        begun.send(()).unwrap();
        std::future::pending::<Result<(), Infallible>>().await
    }));
    within("the body to begin", has_begun).await.unwrap();
    run.abort();
    becomes_free(&b, &key).await;
}

/// A11: the body does not run without the lock.
pub async fn busy_does_not_run<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let request = b.lock(&key).wait(Duration::ZERO);
    let body = |_| async { unreachable!("the lock is another's") };
    let error = refused(request.run::<_, _, (), Infallible>(body)).await;
    assert!(error.is_busy());
}

/// A11, A16: a request for the same key inside the body re-enters, as inside `#[lock]`; a task that the body
/// spawns is a different owner.
pub async fn the_body_reenters<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (locker, name) = (a.clone(), key.clone());
    let body = |_| async move {
        let again = within("a re-entry", locker.lock(&name).into_future()).await.unwrap();
        let nested =
            locker.lock(&name).run(async |_| Ok::<_, Infallible>(locker.hold_count(&name)));
        let nested = within("a nested run", nested).await.unwrap();
        // The task builds the request itself: a request that the body builds has the body's owner.
        let spawned = tokio::spawn(async move { locker.try_lock(&name).await.unwrap().is_some() });
        Ok::<_, Infallible>((again.depth(), nested, spawned.await.unwrap()))
    };
    let done = within("the body", a.lock(&key).run(body)).await.unwrap();
    assert_eq!(done, Ok((2, Ok(3), false)));
    becomes_free(&b, &key).await;
}

/// A11, A16: the body runs with the owner of the request.
pub async fn the_bodys_owner_is_the_requests<F: Fixture>(f: &F) {
    let (a, key, owner) = (f.locker().await, f.key("k"), Owner::new());
    let body = async |_| Ok::<_, Infallible>(Owner::current());
    let done = a.lock(&key).owner(owner.clone()).run(body).await.unwrap();
    assert_eq!(done, Ok(Some(owner.clone())));
    let done = owner.scope(async { a.lock(&key).run(body).await.unwrap() }).await;
    assert_eq!(done, Ok(Some(owner)));
}

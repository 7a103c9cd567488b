//! Owners: a nested call re-enters, a concurrent call does not.

use std::time::Duration;

use tenure::{Error, Locker, Owner};
use tenure_testkit::wait::within;
use tokio::sync::Barrier;

use crate::support::alone;

#[tenure::lock(key = "order:{id}", locker = locker, held = held)]
async fn outer(locker: &Locker, id: u64) -> Result<(u64, u64, u32), Error> {
    let (inner, depth) = inner(locker, id).await?;
    Ok((held.fence().get(), inner, depth))
}

#[tenure::lock(key = "order:{id}", locker = locker, held = held)]
async fn inner(locker: &Locker, id: u64) -> Result<(u64, u32), Error> {
    Ok((held.fence().get(), locker.hold_count("order:1")))
}

/// E3: a nested `#[lock]` on the same key re-enters, without an owner scope of the caller.
#[tokio::test]
async fn e3_nested_calls_re_enter() {
    let (_, locker) = alone();
    let (outer_fence, inner_fence, depth) = outer(&locker, 1).await.unwrap();
    assert_eq!((outer_fence, depth), (inner_fence, 2));
    assert_eq!(locker.hold_count("order:1"), 0);
    assert!(Owner::current().is_none(), "the scope ends with the call");
}

/// E3: the owner in scope, as a web layer sets it for a request, holds the lock.
#[tokio::test]
async fn e3_the_scope_of_a_request_is_kept() {
    #[tenure::lock(key = "order:1", locker = locker)]
    async fn whose(locker: &Locker) -> Result<Option<Owner>, Error> {
        Ok(Owner::current())
    }
    let (_, locker) = alone();
    let request = Owner::new();
    assert_eq!(request.scope(whose(&locker)).await.unwrap(), Some(request.clone()));
    let (guard, inside) = request
        .scope(async { (locker.lock("order:1").await.unwrap(), whose(&locker).await) })
        .await;
    assert!(inside.is_ok(), "a plain lock of the request is re-entered too");
    drop(guard);
}

#[tenure::lock(key = "order:{id}", locker = locker)]
async fn meet(locker: &Locker, id: u64, inside: &Barrier, done: &Barrier) -> Result<(), Error> {
    inside.wait().await;
    done.wait().await;
    Ok(())
}

/// E3: two concurrent calls are different owners: the second gets a busy error and does not enter.
#[tokio::test]
async fn e3_concurrent_calls_exclude_each_other() {
    let (_, locker) = alone();
    let (inside, done) = (Barrier::new(2), Barrier::new(2));
    let second = async {
        inside.wait().await;
        let busy = inner(&locker, 1).await;
        done.wait().await;
        busy
    };
    let (first, second) = tokio::join!(meet(&locker, 1, &inside, &done), second);
    first.unwrap();
    assert!(second.unwrap_err().is_busy());
}

/// E3: a spawned task is another owner, unless it gets the owner in scope.
#[tokio::test]
async fn e3_spawned_tasks_on_demand() {
    #[tenure::lock(key = "order:1", locker = locker)]
    async fn spawns(locker: &Locker) -> Result<(bool, u32), Error> {
        let (other, same) = (locker.clone(), locker.clone());
        let stranger = tokio::spawn(async move { inner(&other, 1).await });
        let owner = Owner::current().unwrap();
        let ours = tokio::spawn(owner.scope(async move { inner(&same, 1).await }));
        let busy = stranger.await.unwrap().unwrap_err().is_busy();
        Ok((busy, ours.await.unwrap()?.1))
    }
    let (_, locker) = alone();
    assert_eq!(spawns(&locker).await.unwrap(), (true, 2));
}

/// A18: re-entry that is refused is an error, not a deadlock.
#[tokio::test]
async fn a18_reentry_refused() {
    #[tenure::lock(key = "order:1", locker = locker, reentry = "refuse", wait = "forever")]
    async fn once(locker: &Locker, deeper: bool) -> Result<(), Error> {
        if deeper { Box::pin(once(locker, false)).await } else { Ok(()) }
    }
    let (_, locker) = alone();
    once(&locker, false).await.unwrap();
    let refused = within("no dead-lock", once(&locker, true)).await.unwrap_err();
    assert!(refused.is_already_held(), "{refused}");
}

/// A18: with `within_process = "fail"`, a lock held by another owner of this process is an error, however
/// long the wait.
#[tokio::test]
async fn a18_within_process_fails() {
    #[tenure::lock(key = "order:1", locker = locker, within_process = "fail", wait = "1h")]
    async fn alone_here(locker: &Locker) -> Result<(), Error> {
        Ok(())
    }
    let (_, locker) = alone();
    let guard = locker.lock("order:1").ttl(Duration::from_secs(10)).await.unwrap();
    let refused = within("no wait", alone_here(&locker)).await.unwrap_err();
    assert!(refused.is_already_held(), "{refused}");
    drop(guard);
}

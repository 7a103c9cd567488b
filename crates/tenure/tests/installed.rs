//! The locker of the process. Only one test, because there is one process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use tenure::{Error, Locker, Memory};

#[tenure::lock(key = "order:{id}", ttl = "15s")]
async fn pay(id: u64) -> Result<u64, Error> {
    Ok(id)
}

/// E1: without a locker a function returns an error with advice; with one it runs; a second locker is
/// refused.
#[tokio::test]
async fn e1_the_locker_of_the_process() {
    let error = pay(1).await.unwrap_err();
    assert!(error.is_invalid());
    assert_eq!(
        error.to_string(),
        "no locker is installed: call `tenure::install(locker)` first, or say `locker = …` in \
         `#[lock]`"
    );
    let locker = Locker::new(Memory::space("installed"));
    tenure::install(locker.clone()).unwrap();
    assert_eq!(pay(1).await.unwrap(), 1);
    let guard = locker.lock("order:1").await.unwrap();
    assert!(pay(1).await.unwrap_err().is_busy());
    drop(guard);
    let again = tenure::install(locker).unwrap_err();
    assert_eq!(again.to_string(), "a locker is already installed");
}

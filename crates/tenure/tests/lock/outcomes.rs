//! Every way a function under a lock can end.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Locker, Memory};
use tenure_testkit::wait::within;
use tokio::sync::Notify;

use crate::support::{AppError, alone, only_key};

/// Signals between a test and the body.
#[derive(Default)]
struct Stage {
    entered: Notify,
    go: Notify,
}

#[tenure::lock(key = "order:{id}", locker = locker)]
async fn pay(locker: &Locker, id: u64, stage: &Stage) -> Result<u64, AppError> {
    stage.entered.notify_one();
    stage.go.notified().await;
    if id == 0 { Err(AppError::Declined) } else { Ok(id) }
}

/// A call that is inside its body.
async fn entered(
    locker: &Locker,
    id: u64,
) -> (tokio::task::JoinHandle<Result<u64, AppError>>, Arc<Stage>) {
    let (stage, locker) = (Arc::<Stage>::default(), locker.clone());
    let inside = stage.clone();
    let call = tokio::spawn(async move { pay(&locker, id, &inside).await });
    within("the body to begin", stage.entered.notified()).await;
    (call, stage)
}

/// E1: by default a second call does not wait: it gets a busy error, and its body does not run.
#[tokio::test]
async fn e1_busy_at_once() {
    let (_, locker) = alone();
    let (call, stage) = entered(&locker, 42).await;
    let second = Stage::default();
    let error = within("an answer", pay(&locker, 42, &second)).await.unwrap_err().lock();
    assert!(error.is_busy(), "{error}");
    assert_eq!(error.key().unwrap().as_str(), "order:42");
    // The body would have sent this signal.
    let entered = std::pin::pin!(second.entered.notified());
    assert!(futures_pending(entered).await);
    stage.go.notify_one();
    assert_eq!(call.await.unwrap().unwrap(), 42);
}

/// Polls once. Returns whether the future is still pending.
async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(future.as_mut().poll(context).is_pending())
    })
    .await
}

/// A11: the lock is free after every outcome: a value, an error, a panic, a dropped future.
#[tokio::test]
async fn a11_released_on_every_way_out() {
    // So long that no lock expires while the test waits.
    let locker = Locker::builder(Memory::space("every-way-out")).ttl(Duration::from_secs(300));
    let locker = locker.build().unwrap();
    let is_free = async |key: &str| {
        let guard = within("the lock", locker.lock(key).into_future()).await.unwrap();
        guard.release().await.unwrap();
    };
    for id in [42, 0] {
        let (call, stage) = entered(&locker, id).await;
        stage.go.notify_one();
        assert_eq!(call.await.unwrap().is_ok(), id == 42);
        assert_eq!(only_key(&locker).await, None);
    }

    #[tenure::lock(key = "order:1", locker = locker)]
    async fn panics(locker: Locker) -> Result<(), AppError> {
        panic!("on purpose")
    }
    assert!(tokio::spawn(panics(locker.clone())).await.unwrap_err().is_panic());
    is_free("order:1").await;

    let (call, _) = entered(&locker, 42).await;
    call.abort();
    is_free("order:42").await;
}

/// A11: a lock lost while the body runs cancels the body, and is reported as lost.
#[tokio::test]
async fn a11_loss_cancels_the_body() {
    let (memory, locker) = alone();
    let (call, stage) = entered(&locker, 42).await;
    memory.revoke("order:42").unwrap();
    let error = within("the loss", call).await.unwrap().unwrap_err().lock();
    assert!(error.is_lost(), "{error}");
    assert_eq!(Arc::strong_count(&stage), 1, "the body is gone");
}

#[tenure::lock(key = "order:{id}", locker = locker)]
async fn expires(locker: &Locker, memory: &Memory, id: u64, fails: bool) -> Result<(), AppError> {
    memory.expire(&format!("order:{id}")).unwrap();
    if fails { Err(AppError::Declined) } else { Ok(()) }
}

/// A11: a loss that only the release finds is reported after a body that succeeded, and does not hide the
/// error of a body that failed.
#[tokio::test]
async fn a11_loss_found_at_release() {
    let (memory, locker) = alone();
    let error = expires(&locker, &memory, 1, false).await.unwrap_err().lock();
    assert!(error.is_lost() && error.is_late_loss(), "{error}");
    assert!(error.to_string().ends_with("; the work under it was done"), "{error}");
    let error = expires(&locker, &memory, 2, true).await.unwrap_err();
    assert!(matches!(error, AppError::Declined), "{error:?}");
}

/// A11: `on_late_loss` makes the result from the value and the loss, and is not called in any other case.
#[tokio::test]
async fn a11_a_late_loss_keeps_the_value() {
    #[derive(Debug)]
    enum PayError {
        Lock(tenure::Error),
        Paid(u64, tenure::Error),
    }
    impl From<tenure::Error> for PayError {
        fn from(error: tenure::Error) -> Self {
            PayError::Lock(error)
        }
    }
    #[tenure::lock(
        key = "order:{id}",
        locker = locker,
        on_late_loss = |receipt, error| Err(PayError::Paid(receipt, error))
    )]
    async fn pay(locker: &Locker, memory: &Memory, id: u64) -> Result<u64, PayError> {
        match id {
            0 => {}
            1 => assert!(memory.expire("order:1").unwrap()),
            _ => {
                memory.revoke("order:2").unwrap();
                std::future::pending().await
            }
        }
        Ok(id + 10)
    }
    let (memory, locker) = alone();
    assert_eq!(pay(&locker, &memory, 0).await.unwrap(), 10);
    match pay(&locker, &memory, 1).await.unwrap_err() {
        PayError::Paid(11, error) => assert!(error.is_late_loss(), "{error}"),
        other => panic!("{other:?}"),
    }
    match within("the loss", pay(&locker, &memory, 2)).await.unwrap_err() {
        PayError::Lock(error) => assert!(error.is_lost() && !error.is_late_loss(), "{error}"),
        other => panic!("{other:?}"),
    }
    let _guard = locker.lock("order:0").await.unwrap();
    match pay(&locker, &memory, 0).await.unwrap_err() {
        PayError::Lock(error) => assert!(error.is_busy(), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// A11: `on_late_loss` may be a function, and may return the value as a success.
#[tokio::test]
async fn a11_a_late_loss_may_be_fine() {
    fn keep(value: u64, _: tenure::Error) -> Result<u64, AppError> {
        Ok(value)
    }
    #[tenure::lock(key = "order:1", locker = locker, on_late_loss = keep)]
    async fn pay(locker: &Locker, memory: &Memory) -> Result<u64, AppError> {
        memory.expire("order:1").unwrap();
        Ok(7)
    }
    let (memory, locker) = alone();
    assert_eq!(pay(&locker, &memory).await.unwrap(), 7);
}

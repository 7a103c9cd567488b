//! Futures dropped at every await point.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{Backend, BoxFuture, Fault};
use tenure_core::{Claim, Error, Guard, Locker, Memory};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::{eventually, nothing_is_left, within};
use tokio::sync::Semaphore;

use crate::support::{Dir, Store};

type Acquire = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

/// Polls once.
async fn poll_once(acquire: &mut Acquire) -> Option<Result<Guard, Error>> {
    poll_fn(|cx| match acquire.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Polls up to `times` times, each time that the future is woken.
async fn poll_times(acquire: &mut Acquire, times: usize) -> Option<Result<Guard, Error>> {
    for _ in 0..times {
        let mut polled = false;
        let step = poll_fn(|cx| match std::mem::replace(&mut polled, true) {
            false => acquire.as_mut().poll(cx).map(Some),
            true => Poll::Ready(None),
        });
        // A future that is not woken any more has come as far as it can.
        match tokio::time::timeout(Duration::from_millis(300), step).await {
            Ok(None) => {}
            Ok(output) => return output,
            Err(_) => return None,
        }
    }
    None
}

/// Drops the acquire after each number of polls until one of them is granted. Each time the lock can be
/// acquired afterwards, and nothing is queued.
async fn dropped_at_every_point(store: &impl Store) {
    let (a, b) = (store.locker(), store.locker());
    for polls in 0.. {
        let mut acquire = a.lock("k").into_future();
        let granted = poll_times(&mut acquire, polls).await;
        drop(acquire);
        let done = granted.is_some();
        drop(granted);
        nothing_is_left(&b, "k").await;
        nothing_is_left(&a, "k").await;
        if done {
            return;
        }
    }
}

/// The same while another process, or another task, holds the lock and releases it at some point.
async fn dropped_while_contended(holder: &Locker, waiter: &Locker) {
    for polls in 0..6 {
        for released_after in 0..=polls {
            let guard = within("a free lock", holder.lock("k").into_future()).await.unwrap();
            let mut acquire = waiter.lock("k").into_future();
            for _ in 0..released_after {
                assert!(poll_once(&mut acquire).await.is_none(), "it is held by another");
                tokio::task::yield_now().await;
            }
            guard.release().await.unwrap();
            let granted = poll_times(&mut acquire, polls - released_after).await;
            drop(acquire);
            drop(granted);
            nothing_is_left(holder, "k").await;
            nothing_is_left(waiter, "k").await;
        }
    }
}

async fn torture(store: &impl Store) {
    dropped_at_every_point(store).await;
    let (a, b) = (store.locker(), store.locker());
    dropped_while_contended(&a, &b).await;
    dropped_while_contended(&a, &a).await;
}

/// t06: an acquire on `memory:` that is dropped at any await point leaves nothing behind.
#[tokio::test]
async fn t06_acquire_dropped_on_memory() {
    torture(&Memory::space("t06")).await;
}

/// t06: an acquire on `file:` that is dropped at any await point leaves nothing behind.
#[tokio::test]
async fn t06_acquire_dropped_on_file() {
    torture(&Dir::fresh()).await;
}

/// t06: nothing is left behind with several threads, where a grant and a drop can coincide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t06_a_grant_and_a_drop_meet() {
    let store = Memory::space("t06-meet");
    let (a, b) = (store.locker(), store.locker());
    for round in 0..300 {
        let guard = a.lock("k").await.unwrap();
        let waiting = tokio::spawn(b.lock("k").into_future());
        let releasing = tokio::spawn(guard.release());
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        releasing.await.unwrap().unwrap();
        drop(waiting.await);
    }
    nothing_is_left(&a, "k").await;
    nothing_is_left(&b, "k").await;
}

/// Delays abandons until they are let through.
struct Late {
    let_through: Semaphore,
    under_way: AtomicUsize,
}

impl Interceptor for Late {
    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Box::pin(async move {
            let _permit = self.let_through.acquire().await;
            let done = inner.abandon(claim).await;
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            done
        })
    }
}

/// t06: the first task in a process's queue is dropped, and the next one takes over its claim and is granted.
/// An abandon that arrives only then must not release that grant.
#[tokio::test]
async fn t06_a_late_abandon_hits_nobody() {
    let memory = Memory::space("t06-late");
    let late = Arc::new(Late { let_through: Semaphore::new(0), under_way: AtomicUsize::new(0) });
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), late.clone()));
    let rival = memory.locker();
    let guard = rival.lock("k").await.unwrap();
    let mut head = locker.lock("k").into_future();
    let mut next = locker.lock("k").into_future();
    for acquire in [&mut head, &mut next] {
        assert!(poll_once(acquire).await.is_none());
    }
    drop(head);
    assert!(poll_once(&mut next).await.is_none());
    guard.release().await.unwrap();
    let next = within("the successor's turn", next).await.unwrap();
    late.let_through.add_permits(100);
    let quiet = || async { late.under_way.load(Ordering::Acquire) == 0 };
    eventually("abandons to arrive", quiet).await;
    assert!(rival.try_lock("k").await.unwrap().is_none(), "an abandon freed the successor's lock");
    next.renew().await.unwrap();
    assert!(next.is_held());
}

//! Futures dropped at every await point, while replies of the server are under way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tenure_core::{Error, Guard, Locker};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::servers::proxy::{Action, Rule, Way};
use tenure_testkit::wait::within;

use crate::support::{is_freed, locker, locker_through, proxied};

type Acquire = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

/// Polls up to `times` times, each time that the future is woken; gives up after a second without a wake-up.
async fn poll_times(acquire: &mut Acquire, times: usize) -> Option<Result<Guard, Error>> {
    for _ in 0..times {
        let mut polled = false;
        let step = poll_fn(|cx| match std::mem::replace(&mut polled, true) {
            false => acquire.as_mut().poll(cx).map(Some),
            true => Poll::Ready(None),
        });
        match tokio::time::timeout(Duration::from_secs(1), step).await {
            Ok(None) => {}
            Ok(output) => return output,
            Err(_) => return None,
        }
    }
    None
}

/// Checks that every request gets its own reply: the guard has the requested key, and `inspect` agrees with each step.
async fn replies_match_requests(locker: &Locker) {
    for name in ["one", "two", "three"] {
        let guard = within("a lock", locker.lock(name).into_future()).await.unwrap();
        assert_eq!(guard.key().as_str(), name);
        assert!(locker.inspect(name).await.unwrap().is_some());
        guard.release().await.unwrap();
        assert!(locker.inspect(name).await.unwrap().is_none());
    }
}

/// Drops an acquire after each number of polls until one is granted; returns that number.
async fn dropped_at_every_point(server: &RedisServer, locker: &Locker) -> usize {
    for polls in 0.. {
        // A long ttl: if only the expiry freed the lock, the test would not end in time.
        let mut acquire = locker.lock("k").ttl(Duration::from_secs(300)).into_future();
        let granted = poll_times(&mut acquire, polls).await;
        drop(acquire);
        let done = granted.is_some();
        drop(granted);
        is_freed(server, "k").await;
        replies_match_requests(locker).await;
        if done {
            return polls;
        }
    }
    unreachable!("every number of polls is tried")
}

/// t06: an acquire that is dropped at any await point leaves nothing behind, also if each reply is delayed
/// and the drop comes between request and reply.
#[tokio::test]
async fn t06_acquire_dropped_at_every_point() {
    let (server, proxy) = proxied();
    let slow = Action::Delay(Duration::from_millis(20));
    proxy.rule(Rule::on(Way::Replies, slow).containing("granted"));
    let polls = dropped_at_every_point(&server, &locker_through(&proxy).await).await;
    assert!(polls > 1, "it waited for the server at least once");
}

/// t06: the same while another process holds the lock and releases it during the wait.
#[tokio::test]
async fn t06_a_wait_dropped_at_every_point() {
    let server = RedisServer::start();
    let (holder, waiter) = (locker(&server).await, locker(&server).await);
    for polls in 0..8 {
        for released_after in 0..=polls {
            let guard = within("a free lock", holder.lock("k").into_future()).await.unwrap();
            let request = waiter.lock("k").ttl(Duration::from_secs(300));
            let mut acquire = request.retry_interval(Duration::from_millis(10)).into_future();
            assert!(poll_times(&mut acquire, released_after).await.is_none(), "it is held");
            guard.release().await.unwrap();
            let granted = poll_times(&mut acquire, polls - released_after).await;
            drop(acquire);
            drop(granted);
            is_freed(&server, "k").await;
        }
    }
    replies_match_requests(&waiter).await;
}

/// t06: many waits, each dropped at another moment, leave nothing behind and shift no reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t06_many_dropped_waits() {
    let server = RedisServer::start();
    let lockers = [locker(&server).await, locker(&server).await];
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..400_u64 {
        let locker = lockers[usize::from(number % 2 == 0)].clone();
        tasks.spawn(async move {
            let request = locker.lock("k").ttl(Duration::from_secs(300)).into_future();
            drop(tokio::time::timeout(Duration::from_micros(number * 25), request).await);
        });
    }
    while let Some(ended) = within("everybody to end", tasks.join_next()).await {
        ended.unwrap();
    }
    is_freed(&server, "k").await;
    for locker in &lockers {
        replies_match_requests(locker).await;
    }
}

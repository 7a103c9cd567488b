//! Many locks and many browsers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use tenure::backend::{BoxFuture, Fault, FaultKind, LockInfo, Operator, Query};
use tenure::{Locker, Memory};
use tenure_testkit::intercept::{Intercepted, Interceptor};
use tenure_testkit::wait::eventually;
use tower::ServiceExt as _;

use crate::support::{Site, get};

/// Counts the looks at all locks.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU32>);

impl Interceptor for Counted {
    fn inspect<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        inner.inspect(query)
    }
}

/// t70: 10,000 locks are paged at the server; a page has a bounded size, and data that is there is sent in under 100
/// ms.
#[tokio::test]
async fn t70_ten_thousand_locks_are_paged() {
    let locker = Locker::new(Memory::space("page-many"));
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(locker.lock(format!("order:{n:05}")).await.unwrap());
    }
    let site = Site::of(&locker);
    let page = site.shows("/now", "Page 1 of 100").await;
    assert!(page.contains("Locks: 10000") && page.len() < 150_000, "{} bytes", page.len());
    assert_eq!(page.matches("<tr>").count(), 101);
    let filtered = site.page("/now?filter=order:0999*").await;
    assert!(
        filtered.contains(": 10, the most")
            && filtered.contains("order:09990")
            && !filtered.contains("Page 1")
    );
    assert!(site.page("/now?page=100").await.contains("Page 100 of 100"));
    let json = site.page("/api/locks?page=10").await;
    assert!(
        json.contains("\"total\":10000,\"page\":10,\"pages\":10"),
        "{}",
        &json[json.len() - 200..]
    );
    // The best of several: this machine has others to serve.
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        site.page("/now?page=50").await;
        best = best.min(start.elapsed());
    }
    assert!(best < Duration::from_millis(100), "{best:?}");
}

/// t70: fifty browsers with a stream each, which load a page at every event, cost the engine no more looks than one: at
/// most eleven in a second, ten of the watch on an engine without notifications and one of the page.
#[tokio::test]
async fn t70_fifty_browsers_ask_as_often_as_one() {
    let counted = Counted::default();
    let locker = Locker::new(Intercepted::new(
        Arc::new(Memory::space("page-fifty")),
        Arc::new(counted.clone()),
    ));
    let _held = locker.lock("k").await.unwrap();
    let site = Site::of(&locker);
    site.shows("/now", "lock?key=k").await;
    let (start, before) = (Instant::now(), counted.0.load(Ordering::Relaxed));
    let events = Arc::new(AtomicU32::new(0));
    let browsers: Vec<_> =
        (0..50).map(|_| tokio::spawn(browse(site.clone(), events.clone()))).collect();
    eventually("every browser to have loaded four pages", || async {
        events.load(Ordering::Relaxed) >= 200
    })
    .await;
    let (looks, took) = (counted.0.load(Ordering::Relaxed) - before, start.elapsed());
    // Each period that has begun counts, and an event of the one lock at the start may cause a look of its own.
    let most = 11.0 * took.as_secs_f64().ceil() + 4.0;
    assert!(f64::from(looks) <= most, "{looks} looks in {took:?}");
    browsers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// t70: while the engine fails, fifty browsers cause no more requests to it than one: two in a second.
#[tokio::test]
async fn t70_a_dead_engine_is_not_asked_more_often() {
    let dead = Dead::default();
    let memory = Arc::new(Memory::space("page-dead"));
    let locker = Locker::new(Intercepted::new(memory, Arc::new(dead.clone())));
    let site = Site::of(&locker);
    site.shows("/now", "The engine does not answer.").await;
    let (start, before) = (Instant::now(), dead.0.load(Ordering::Relaxed));
    let events = Arc::new(AtomicU32::new(0));
    let browsers: Vec<_> =
        (0..50).map(|_| tokio::spawn(browse(site.clone(), events.clone()))).collect();
    let enough = || async { events.load(Ordering::Relaxed) >= 150 };
    eventually("every browser to have loaded three pages", enough).await;
    let (looks, took) = (dead.0.load(Ordering::Relaxed) - before, start.elapsed());
    assert!(f64::from(looks) <= 2.0 * took.as_secs_f64().ceil() + 2.0, "{looks} looks in {took:?}");
    browsers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Counts the looks, and fails all of them.
#[derive(Clone, Default)]
struct Dead(Arc<AtomicU32>);

impl Interceptor for Dead {
    fn inspect<'a>(
        &'a self,
        _inner: &'a dyn Operator,
        _query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(Fault::new(FaultKind::Unavailable, "it is dead")) })
    }
}

async fn browse(site: Site, events: Arc<AtomicU32>) {
    let answer = site.0.clone().oneshot(get("/live").body(Body::empty()).unwrap()).await.unwrap();
    let mut stream = answer.into_body().into_data_stream();
    while futures_util::StreamExt::next(&mut stream).await.is_some() {
        site.page("/now").await;
        events.fetch_add(1, Ordering::Relaxed);
    }
}

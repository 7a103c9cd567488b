//! The output of logs and metrics. One test, since both are installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory, Owner};

/// Every event and metric has the documented name, level and fields; none ever shows a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_e5_events_and_metrics() {
    let (log, metrics) = (Log::install(), install_recorder());
    let server = Memory::space("observe");
    let locker = Locker::new(server.clone());
    let token = live_through_everything(&server, &locker).await;

    renew_late(&log).await;
    wait_for_moments().await;
    wait_in_a_crowd(&log).await;
    wait_out_of_order(&log).await;
    shut_down().await;
    count_by_name(&metrics).await;
    count_by_mode(&metrics).await;
    // Another thread logs the loss, after the holder has been notified.
    let text = log.until("lock lost").await;
    for line in [
        r#"DEBUG tenure_core::observe: lock acquired component="tenure" key=order:1 owner="owner-1" label="trace-7f" result="acquired""#,
        r#"DEBUG tenure_core::observe: lock busy component="tenure" key=order:1"#,
        r#"DEBUG tenure_core::observe: lock not acquired component="tenure" key=order:1 result="timeout""#,
        r#" INFO tenure_core::observe: lock acquired after a wait component="tenure" key=order:4 result="acquired" waited=100ms"#,
        r#"DEBUG tenure_core::observe: lock acquired component="tenure" key=order:4 result="acquired" waited=99ms"#,
        r#" INFO tenure_core::observe: lock ended by the shutdown of its locker component="tenure" key=order:5 result="shutdown""#,
        r#"DEBUG tenure_core::observe: lock not acquired component="tenure" key=order:1 result="busy""#,
        r#"DEBUG tenure_core::observe: lock released component="tenure" key=order:1 owner="owner-1" result="handed_over""#,
        r#"DEBUG tenure_core::observe: lock released component="tenure" key=order:1 owner="owner-2" result=Freed"#,
        r#"DEBUG tenure_core::observe: lock renewed component="tenure" key=order:2 owner="owner-3" result="renewed""#,
        r#"ERROR tenure_core::observe: lock lost: the engine no longer knows it as ours component="tenure" key=order:2 owner="owner-3" result="lost" reason="gone""#,
    ] {
        assert!(text.contains(line), "no line `{line}` in:\n{text}");
    }
    assert!(!text.contains(&token), "the token is in the log");
    let errors = text.lines().filter(|line| line.contains("ERROR") && line.contains("key=order:"));
    assert_eq!(errors.count(), 1, "a planned end is no error:\n{text}");

    let seen = seen(&metrics);
    for name in [
        "tenure_lock_acquire_duration_seconds{name=order:{id},outcome=acquired,mode=exclusive}",
        "tenure_lock_acquire_duration_seconds{name=unnamed,outcome=busy,mode=exclusive}",
        "tenure_lock_acquire_duration_seconds{name=unnamed,outcome=timeout,mode=exclusive}",
        "tenure_lock_acquire_duration_seconds{name=unnamed,outcome=busy,mode=permits}",
        "tenure_lock_hold_duration_seconds{name=order:{id},mode=exclusive}",
        "tenure_lock_hold_duration_seconds{name=a,mode=shared}",
        "tenure_lock_hold_duration_seconds{name=slot,mode=permits}",
        "tenure_lock_contentions_total{mode=exclusive}",
        "tenure_lock_contentions_total{mode=permits}",
        "tenure_lock_losses_total{name=refund:{id},reason=gone,mode=exclusive}",
        "tenure_lock_losses_total{name=a,reason=gone,mode=shared}",
        "tenure_lock_losses_total{name=b,reason=gone,mode=shared}",
        "tenure_lock_losses_total{name=slot,reason=gone,mode=permits}",
        "tenure_lock_renewal_duration_seconds{outcome=renewed,mode=exclusive}",
        "tenure_lock_renewal_duration_seconds{outcome=renewed,mode=shared}",
    ] {
        assert!(seen.contains_key(name), "no metric `{name}` in {:?}", seen.keys());
    }
    assert!(!seen.keys().any(|name| name.contains("shutdown")), "{:?}", seen.keys());
    for name in ["order:{id}", "refund:{id}", "unnamed"] {
        assert_eq!(
            seen[&format!("tenure_lock_active{{name={name},mode=exclusive}}")],
            "0",
            "{name}"
        );
    }
    for name in ["order:{id}", "unnamed"] {
        assert_eq!(
            seen[&format!("tenure_lock_waiters{{name={name},mode=exclusive}}")],
            "0",
            "{name}"
        );
    }
}

/// Held and waiting locks are counted under the name of the holder and of the waiter, also after a local
/// hand-over.
async fn count_by_name(metrics: &Snapshotter) {
    let locker = Locker::new(Memory::space("names"));
    // A snapshot resets all values to zero, so each value is the change since the last snapshot.
    let changes = || {
        let seen = seen(metrics);
        let gauges = ["active{name=a", "active{name=b", "waiters{name=a", "waiters{name=b"];
        gauges.map(|gauge| seen[&format!("tenure_lock_{gauge},mode=exclusive}}")].clone())
    };
    let first = locker.lock("k").name("a").await.unwrap();
    let mut waiting = Box::pin(locker.lock("k").name("b").into_future());
    assert!(poll_once(&mut waiting).await, "it should wait");
    assert_eq!(changes(), ["1", "0", "0", "1"]);
    first.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert_eq!(changes(), ["-1", "1", "0", "-1"]);
    second.release().await.unwrap();
    assert_eq!(changes(), ["0", "-1", "0", "0"]);
}

/// Readers count under the name of each, although they share a lease. Permits count apart from readers and locks.
async fn count_by_mode(metrics: &Snapshotter) {
    let server = Memory::space("modes");
    let locker = Locker::new(server.clone());
    let changes = || {
        let seen = seen(metrics);
        let gauges = ["{name=a,mode=shared}", "{name=b,mode=shared}", "{name=slot,mode=permits}"];
        gauges.map(|gauge| {
            seen.get(&format!("tenure_lock_active{gauge}")).cloned().unwrap_or("0".into())
        })
    };
    let one = locker.read("k").name("a").await.unwrap();
    let other = locker.read("k").name("b").await.unwrap();
    let again = locker.read("k").name("b").await.unwrap();
    assert_eq!(changes(), ["1", "2", "0"]);
    again.release().await.unwrap();
    assert_eq!(changes(), ["0", "-1", "0"]);
    one.renew().await.unwrap();
    server.revoke("k").unwrap();
    one.lost().await;
    other.lost().await;
    drop((one, other));

    let slots = locker.semaphore("slots", 1);
    let permit = slots.acquire().name("slot").await.unwrap();
    assert!(slots.try_acquire().await.unwrap().is_none());
    assert_eq!(changes(), ["-1", "-1", "1"]);
    permit.release().await.unwrap();
    let permit = slots.acquire().name("slot").await.unwrap();
    server.revoke("slots").unwrap();
    permit.lost().await;
    drop(permit);
    assert_eq!(changes(), ["0", "0", "-1"]);
}

/// Two waits, of 99 and 100 ms: only the second is long enough for the `INFO` level.
async fn wait_for_moments() {
    let clock = Clock::manual();
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    for waited in [99, 100] {
        let guard = locker.lock("order:4").await.unwrap();
        let mut waiting = Box::pin(locker.lock("order:4").into_future());
        assert!(poll_once(&mut waiting).await, "it should wait");
        clock.advance(Duration::from_millis(waited));
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
}

/// Many long waits a second for the locks of one name are one line at `INFO`, and the rest is at `DEBUG`. Another name
/// has a line of its own.
async fn wait_in_a_crowd(log: &Log) {
    let (clock, start) = (Clock::manual(), std::time::Instant::now());
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    let names = [["crowd"; 50].as_slice(), &["quiet"]].concat();
    for name in &names {
        let guard = locker.lock(name).name(*name).await.unwrap();
        let mut waiting = Box::pin(locker.lock(name).name(*name).into_future());
        assert!(poll_once(&mut waiting).await, "it should wait");
        clock.advance(Duration::from_millis(150));
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
    // The run may touch one second more at each end.
    let most = start.elapsed().as_secs() as usize + 2;
    let (text, after) = (log.text(), "lock acquired after a wait component=\"tenure\"");
    let lines = |level: &str, key: &str| {
        let ours = text.lines().filter(|line| line.contains(after) && line.contains(key));
        ours.filter(|line| line.contains(level)).count()
    };
    let (told, quiet) = (lines("INFO", "key=crowd"), lines("DEBUG", "key=crowd"));
    assert!((1..=most).contains(&told), "{told} lines, and {quiet} at debug");
    assert_eq!(told + quiet, 50);
    assert_eq!(lines("INFO", "key=quiet"), 1);
}

/// A task that holds a key and waits for several smaller ones is warned, whether an owner tells who it is or not. It is
/// not warned if the key is smaller, or one of those that it asks for.
async fn wait_out_of_order(log: &Log) {
    for (owner, outside, all) in [
        (Some(Owner::new()), "z", ["a", "b"]),
        (None, "z", ["a", "b"]),
        (Some(Owner::new()), "A", ["a", "b"]),
        (Some(Owner::new()), "z", ["a", "z"]),
        (None, "A", ["a", "b"]),
    ] {
        let warned = || log.text().matches("while the same task holds a larger one").count();
        let (before, due) = (warned(), outside == "z" && !all.contains(&"z"));
        let locker = Locker::new(Memory::with_clock(Clock::manual()));
        let busy = locker.lock("a").owner(Owner::new()).await.unwrap();
        let (mut one, mut several) = (locker.lock(outside), locker.lock_all(all));
        if let Some(owner) = owner {
            (one, several) = (one.owner(owner.clone()), several.owner(owner));
        }
        let _one = one.await.unwrap();
        let mut waiting = several.into_future();
        // The first poll tries all keys, and the next ones release the larger and queue.
        for _ in 0..3 {
            assert!(poll_once(&mut waiting).await, "it should wait");
        }
        assert_eq!(warned() - before, usize::from(due), "{outside} {all:?}");
        busy.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
    assert!(log.text().contains("key=a owner=\"owner-"), "{}", log.text());
    assert!(log.text().contains("held=z"), "{}", log.text());
}

/// A lock that ends in a planned shutdown does not count as lost.
async fn shut_down() {
    let locker = Locker::new(Memory::space("planned"));
    let guard = locker.lock("order:5").await.unwrap();
    assert_eq!(locker.shutdown(Duration::ZERO).await.released, 1);
    assert!(!guard.is_held());
}

/// One of each: acquired, busy, timed out, handed over, renewed, lost. Returns a token.
async fn live_through_everything(server: &Memory, locker: &Locker) -> String {
    let ask = locker.lock("order:1").owner(Owner::new()).label("trace-7f").name("order:{id}");
    let guard = ask.await.unwrap();
    let info = locker.inspect("order:1").await.unwrap().unwrap();
    let token = info.holders[0].token.unwrap().expose();
    assert!(locker.try_lock("order:1").await.unwrap().is_none());
    assert!(locker.lock("order:1").wait(Duration::from_millis(1)).await.unwrap_err().is_timeout());
    let at_once = locker.lock("order:1").wait(Duration::ZERO).await.unwrap_err();
    assert!(at_once.is_busy() && !at_once.is_timeout(), "{at_once}");
    let mut waiting = Box::pin(locker.lock("order:1").owner(Owner::new()).into_future());
    assert!(poll_once(&mut waiting).await, "it should wait");
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();

    let guard = locker.lock("order:2").owner(Owner::new()).name("refund:{id}").await.unwrap();
    guard.renew().await.unwrap();
    server.revoke("order:2").unwrap();
    guard.lost().await;
    drop(guard);
    token
}

/// A renewal when less than a third of the lease is left, as after a long pause.
async fn renew_late(log: &Log) {
    let clock = Clock::manual();
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    let guard = locker.lock("order:3").ttl(Duration::from_secs(30)).await.unwrap();
    clock.advance(Duration::from_secs(21));
    let text = log.until("lock renewed late").await;
    let line = r#" WARN tenure_core::observe: lock renewed late component="tenure" key=order:3 result="renewed" left=8."#;
    assert!(text.contains(line), "no line `{line}` in:\n{text}");
    guard.release().await.unwrap();
}

/// Polls once; returns whether the future is still pending.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
    })
    .await
}

fn install_recorder() -> Snapshotter {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    snapshotter
}

/// The recorded values, by name and labels.
fn seen(metrics: &Snapshotter) -> BTreeMap<String, String> {
    let all = metrics.snapshot().into_vec().into_iter();
    all.map(|(key, _, _, value)| {
        let labels: Vec<String> =
            key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let value = match value {
            DebugValue::Gauge(value) => value.to_string(),
            other => format!("{other:?}"),
        };
        (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
    })
    .collect()
}

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn install() -> Self {
        let log = Log::default();
        let writer = log.clone();
        let format = tracing_subscriber::fmt().with_ansi(false).without_time();
        format
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    async fn until(&self, last: &str) -> String {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !self.text().contains(last) {
            assert!(std::time::Instant::now() < deadline, "no `{last}` in:\n{}", self.text());
            tokio::task::yield_now().await;
        }
        self.text()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

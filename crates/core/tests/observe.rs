//! What logs and metrics say. One test, since both are installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory, Owner};

/// Every event and metric has the documented name, level and fields; neither ever shows a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_e5_events_and_metrics() {
    let (log, metrics) = (Log::install(), install_recorder());
    let server = Memory::space("observe");
    let locker = Locker::new(server.clone());
    let token = live_through_everything(&server, &locker).await;

    renew_late(&log).await;
    // The loss is logged by another thread, after the holder has been told.
    let text = log.until("lock lost").await;
    for line in [
        r#"DEBUG tenure_core::observe: lock acquired component="tenure" key=order:1 owner="owner-1" label="trace-7f" result="acquired""#,
        r#"DEBUG tenure_core::observe: lock busy component="tenure" key=order:1"#,
        r#"DEBUG tenure_core::observe: lock not acquired component="tenure" key=order:1 result="timeout""#,
        r#" INFO tenure_core::observe: lock acquired after a wait component="tenure" key=order:1"#,
        r#"DEBUG tenure_core::observe: lock not acquired component="tenure" key=order:1 result="busy""#,
        r#"DEBUG tenure_core::observe: lock released component="tenure" key=order:1 owner="owner-1" result="handed_over""#,
        r#"DEBUG tenure_core::observe: lock released component="tenure" key=order:1 owner="owner-2" result=Freed"#,
        r#"DEBUG tenure_core::observe: lock renewed component="tenure" key=order:2 owner="owner-3" result="renewed""#,
        r#"ERROR tenure_core::observe: lock lost: the engine no longer knows it as ours component="tenure" key=order:2 owner="owner-3" result="lost" reason="gone""#,
    ] {
        assert!(text.contains(line), "no line `{line}` in:\n{text}");
    }
    assert!(!text.contains(&token), "the token is in the log");

    let seen = seen(&metrics);
    for name in [
        "tenure_lock_acquire_duration_seconds{name=order:{id},outcome=acquired}",
        "tenure_lock_acquire_duration_seconds{name=unnamed,outcome=busy}",
        "tenure_lock_acquire_duration_seconds{name=unnamed,outcome=timeout}",
        "tenure_lock_hold_duration_seconds{name=order:{id}}",
        "tenure_lock_contentions_total{}",
        "tenure_lock_losses_total{reason=gone}",
        "tenure_lock_renewal_duration_seconds{outcome=renewed}",
    ] {
        assert!(seen.contains_key(name), "no metric `{name}` in {:?}", seen.keys());
    }
    assert_eq!(seen["tenure_lock_active{}"], "0");
    assert_eq!(seen["tenure_lock_waiters{}"], "0");
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

    let guard = locker.lock("order:2").owner(Owner::new()).await.unwrap();
    guard.renew().await.unwrap();
    server.revoke("order:2").unwrap();
    guard.lost().await;
    drop(guard);
    token
}

/// A renewal that comes when less than a third of the lease is left, as after a long pause.
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

/// Polls once; whether it is still pending.
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

/// What was recorded, by name and labels.
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

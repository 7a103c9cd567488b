//! Contention between processes, as the metrics show it. The recorder is local to the test thread.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::future::{IntoFuture, poll_fn};
use std::task::Poll;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tenure_core::time::Clock;
use tenure_core::{Locker, Memory};

/// A wait behind another process counts as one contention, like a wait behind another task.
#[test]
fn contention_between_processes_is_counted() {
    let recorder = DebuggingRecorder::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(wait_once()));
    assert_eq!(contentions(&recorder.snapshotter()), 1);
}

async fn wait_once() {
    let memory = Memory::with_clock(Clock::manual());
    let (holder, rival) = (Locker::new(memory.clone()), Locker::new(memory));
    let guard = holder.lock("k").await.unwrap();
    let mut waiting = rival.lock("k").into_future();
    let waits = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
    assert!(waits);
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

fn contentions(metrics: &Snapshotter) -> u64 {
    let all = metrics.snapshot().into_vec().into_iter();
    all.filter(|(key, ..)| key.key().name() == "tenure_lock_contentions_total")
        .map(|(.., value)| match value {
            DebugValue::Counter(count) => count,
            other => panic!("not a counter: {other:?}"),
        })
        .sum()
}

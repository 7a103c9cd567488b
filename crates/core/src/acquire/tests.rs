//! The warning for a task that waits for itself.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::time::Clock;
use crate::{Guard, LockRequest, Locker, Memory, Owner};

const WARNING: &str = "still waiting for a lock that this process itself holds";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines with the warning that `work` logs. Everything runs on this thread.
fn warnings<F: Future<Output = ()>>(work: impl FnOnce(Locker, Clock) -> F) -> Vec<String> {
    let (log, clock) = (Log::default(), Clock::manual());
    let writer = log.clone();
    let log_to = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locker = Locker::new(Memory::with_clock(clock.clone()));
    let run = || runtime.block_on(work(locker, clock));
    crate::observe::tests::log_to(log_to.finish(), run);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| line.contains(WARNING)).map(Into::into).collect()
}

/// Keeps `request` waiting for three seconds of the clock, polling it every half second.
async fn wait_for_three_seconds(request: LockRequest, clock: Clock) {
    let mut waiting = Box::pin(request.into_future());
    for _ in 0..6 {
        let waits = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
        assert!(waits.await, "the lock is held");
        clock.advance(Duration::from_millis(500));
    }
}

async fn hold(locker: &Locker) -> Guard {
    locker.lock("order:42").await.unwrap()
}

/// A task that waits for a lock that it acquired itself, without an owner, is warned once. The warning has
/// the key.
#[test]
fn a_task_that_waits_for_itself_is_warned_once() {
    let alone = warnings(async |locker, clock| {
        let _guard = hold(&locker).await;
        wait_for_three_seconds(locker.lock("order:42"), clock).await;
    });
    assert_eq!(alone.len(), 1, "{alone:?}");
    assert!(alone[0].contains(" WARN ") && alone[0].contains("key=order:42"), "{alone:?}");
    let spawned = warnings(async |locker, clock| {
        let task = async move {
            let _guard = hold(&locker).await;
            wait_for_three_seconds(locker.lock("order:42").owner(Owner::new()), clock).await;
        };
        tokio::spawn(task).await.unwrap();
    });
    assert_eq!(spawned.len(), 1, "{spawned:?}");
}

/// There is no warning for a lock of another task, for a lock with an owner, or before one second has passed.
#[test]
fn an_ordinary_wait_is_no_warning() {
    let of_another = warnings(async |locker, clock| {
        let _guard = hold(&locker).await;
        let task = async move {
            let request = locker.lock("order:42");
            wait_for_three_seconds(request, clock).await;
        };
        tokio::spawn(task).await.unwrap();
    });
    assert_eq!(of_another, Vec::<String>::new());
    let of_an_owner = warnings(async |locker, clock| {
        let _guard = locker.lock("order:42").owner(Owner::new()).await.unwrap();
        wait_for_three_seconds(locker.lock("order:42").owner(Owner::new()), clock).await;
    });
    assert_eq!(of_an_owner, Vec::<String>::new());
    let brief = warnings(async |locker, clock| {
        let guard = hold(&locker).await;
        let mut waiting = Box::pin(locker.lock("order:42").into_future());
        for _ in 0..2 {
            let waits = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            clock.advance(Duration::from_millis(499));
        }
        guard.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    });
    assert_eq!(brief, Vec::<String>::new());
}

//! The thread of a quorum, from which its nodes are asked.
//!
//! In: work on a claim or lease. Out: its result.
//!
//! A lock is ten requests to five servers. On the caller's runtime, each request and each reply would be
//! handed from thread to thread; here the caller is suspended once and woken once, and the steps between cost
//! no wake-up. Work that has begun here also survives the end of the caller's runtime, and continues while
//! that runtime is blocked.
//!
//! Work begins in the order in which it arrives, on one thread: a request that undoes a claim never overtakes
//! the request that made it.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use tenure_core::backend::{Fault, FaultKind};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

#[derive(Debug)]
pub(super) struct Worker {
    here: Handle,
    /// The thread ends when this is dropped, possibly on the thread itself.
    _end: oneshot::Sender<()>,
}

/// Aborts the work when its caller is dropped; work that has not begun never begins.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (here, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        thread::Builder::new().name("tenure-quorum".into()).spawn(move || stay(&runtime, ended))?;
        Ok(Arc::new(Worker { here, _end: end }))
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.here
    }

    /// Runs work that only its caller needs; dropping the call aborts it. Aborted work sends nothing after
    /// work that is submitted to this worker later.
    pub(super) async fn run_cancellable<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let mut wanted = AbortOnDrop(self.here.spawn(work));
        (&mut wanted.0).await.unwrap_or_else(|error| Err(broken(error)))
    }

    /// Runs work to its end, even if the call is dropped.
    pub(super) async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.here.spawn(work).await.unwrap_or_else(|error| Err(broken(error)))
    }
}

fn stay(runtime: &Runtime, ended: oneshot::Receiver<()>) {
    // Nothing is ever sent: this returns when the sender is dropped.
    let _ = runtime.block_on(ended);
}

/// A panic is passed to the caller; the thread continues.
fn broken(error: JoinError) -> Fault {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Fault::new(FaultKind::Unknown, "the thread that asks the nodes has ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;

    /// The thread ends when its last user is dropped.
    #[tokio::test]
    async fn a_home_ends_with_its_last_user() {
        let worker = Worker::start().unwrap();
        let here = worker.handle().clone();
        assert_eq!(worker.run_cancellable(async { Ok(7) }).await.unwrap(), 7);
        let waits = here.spawn(pending::<()>());
        // Dropped on the thread itself, as by the last late answer.
        here.spawn(async move { drop(worker) }).await.unwrap();
        assert!(waits.await.unwrap_err().is_cancelled());
    }

    /// Work without a caller is aborted, unless it must run to completion.
    #[tokio::test]
    async fn work_that_nobody_waits_for() {
        let worker = Worker::start().unwrap();
        let given_up = |ended: oneshot::Sender<()>| async move {
            let _ended = ended;
            pending::<Result<(), Fault>>().await
        };
        let (ended, end) = oneshot::channel();
        let asked = tokio::time::timeout(
            Duration::from_millis(10),
            worker.run_cancellable(given_up(ended)),
        );
        assert!(asked.await.is_err());
        assert!(end.await.is_err(), "it is dropped");
        let (done, seen) = oneshot::channel();
        let (go, goes) = oneshot::channel::<()>();
        let work = async move {
            let _ = goes.await;
            done.send(7).map_err(|_| Fault::new(FaultKind::Unknown, "nobody looks"))
        };
        assert!(
            tokio::time::timeout(Duration::from_millis(10), worker.run_to_completion(work))
                .await
                .is_err()
        );
        drop(go);
        assert_eq!(seen.await, Ok(7));
    }
}

//! Where a quorum is asked: on a thread of its own.
//!
//! In: work on a claim or lease. Out: what came of it.
//!
//! A lock is ten requests to five servers. Asked from a caller's runtime, each of them and each answer is
//! handed from thread to thread; here the caller is left once and woken once, and what lies between costs no
//! wake-up. What has begun here also outlives a runtime that ends, and goes on where one stands still.
//!
//! The order in which work comes is the order in which it begins, on one thread: what undoes a claim never
//! overtakes what asked for it.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use tenure_core::backend::{Fault, FaultKind};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

#[derive(Debug)]
pub(super) struct Home {
    here: Handle,
    /// The thread ends when this is dropped, which may be on the thread itself.
    _end: oneshot::Sender<()>,
}

/// Work that nobody waits for any more is not begun, and does not go on.
struct Wanted<T>(JoinHandle<T>);

impl<T> Drop for Wanted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Home {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (here, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        thread::Builder::new().name("tenure-quorum".into()).spawn(move || stay(&runtime, ended))?;
        Ok(Arc::new(Home { here, _end: end }))
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.here
    }

    /// Does what is of use only to whoever waits for it. Given up, it sends nothing after what is asked of
    /// this home next.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let mut wanted = Wanted(self.here.spawn(work));
        (&mut wanted.0).await.unwrap_or_else(|error| Err(broken(error)))
    }

    /// Does what is to be done whether or not anybody waits for it.
    pub(super) async fn see_to<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.here.spawn(work).await.unwrap_or_else(|error| Err(broken(error)))
    }
}

fn stay(runtime: &Runtime, ended: oneshot::Receiver<()>) {
    // Nothing is ever sent: it ends when the other side is gone.
    let _ = runtime.block_on(ended);
}

/// A panic is the caller's; the thread goes on.
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

    /// The thread lasts as long as it is used, and no longer.
    #[tokio::test]
    async fn a_home_ends_with_its_last_user() {
        let home = Home::start().unwrap();
        let here = home.handle().clone();
        assert_eq!(home.ask(async { Ok(7) }).await.unwrap(), 7);
        let waits = here.spawn(pending::<()>());
        // On the thread itself, as the last late answer does.
        here.spawn(async move { drop(home) }).await.unwrap();
        assert!(waits.await.unwrap_err().is_cancelled());
    }

    /// What nobody waits for ends, unless it is to be seen to.
    #[tokio::test]
    async fn work_that_nobody_waits_for() {
        let home = Home::start().unwrap();
        let given_up = |ended: oneshot::Sender<()>| async move {
            let _ended = ended;
            pending::<Result<(), Fault>>().await
        };
        let (ended, end) = oneshot::channel();
        let asked = tokio::time::timeout(Duration::from_millis(10), home.ask(given_up(ended)));
        assert!(asked.await.is_err());
        assert!(end.await.is_err(), "it is dropped");
        let (done, seen) = oneshot::channel();
        let (go, goes) = oneshot::channel::<()>();
        let work = async move {
            let _ = goes.await;
            done.send(7).map_err(|_| Fault::new(FaultKind::Unknown, "nobody looks"))
        };
        assert!(tokio::time::timeout(Duration::from_millis(10), home.see_to(work)).await.is_err());
        drop(go);
        assert_eq!(seen.await, Ok(7));
    }
}

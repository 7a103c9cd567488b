//! A thread with its own runtime for a client: with respect to waking up, this is like a separate process.
//!
//! Clients that share a runtime can pass on a message without either of them sleeping; two processes cannot.

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

pub(crate) struct Home {
    runtime: Handle,
    leave: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Home {
    pub(crate) fn new() -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, leave) = (runtime.handle().clone(), CancellationToken::new());
        let left = leave.clone().cancelled_owned();
        let thread = std::thread::Builder::new().name("bench-client".into());
        let thread = thread.spawn(move || runtime.block_on(left))?;
        Ok(Home { runtime: handle, leave, thread: Some(thread) })
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Starts a future on the thread, and returns a future of its result.
    pub(crate) fn run<T, F>(
        &self,
        what: F,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let started = self.runtime.spawn(what);
        let ended = |error: tokio::task::JoinError| Error::surprise(error.to_string());
        async move { started.await.map_err(ended)? }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.leave.cancel();
        // The thread only has to drop its tasks.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

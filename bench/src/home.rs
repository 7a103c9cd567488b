//! A thread with a runtime of its own for a client: what it is to live in another process, as far as
//! waking up is concerned.
//!
//! Clients that share a runtime pass a message on without either of them having slept; no two
//! processes can.

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

    /// Does something there.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let ended = |error: tokio::task::JoinError| Error::surprise(error.to_string());
        self.runtime.spawn(what).await.map_err(ended)?
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.leave.cancel();
        // It has nothing left to do but to drop its tasks.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

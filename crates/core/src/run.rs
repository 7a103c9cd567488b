//! The scoped form: something done under a lock, and never without it.

use std::future::Future;

use crate::error::Error;
use crate::guard::Held;
use crate::request::Lock;

impl Lock {
    /// Runs `body` under the lock and gives it back on every way out.
    ///
    /// The body returns a `Result`; where it cannot fail, end it with `Ok::<_, Infallible>(value)`.
    /// Two results come back, as with `tokio::time::timeout`: the outer is ours, the inner the body's. If the
    /// lock is lost, the body is dropped at its next await point and the outer result
    /// [is lost](Error::is_lost). The body's own error is never hidden by ours; a loss that is only
    /// found at the release, after the body succeeded, is reported.
    ///
    /// The body runs in the scope of the [`Owner`](crate::Owner) that asks, a new one if there is none: a lock
    /// of the same key inside it re-enters, as inside `#[lock]`. So futures that are joined inside the body
    /// are one owner, and do not exclude each other, unless they say `reentry(Reentry::Refuse)` or have an
    /// [`owner`](Self::owner) each. A task that the body spawns is another owner: a body that waits for a
    /// task that wants the same key waits for ever.
    ///
    /// # Errors
    ///
    /// Those of acquiring, and a lost lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lock in the background.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Fence, Locker, Memory};
    ///
    /// async fn charge(fence: Fence) -> Result<&'static str, std::io::Error> {
    ///     Ok("receipt")
    /// }
    ///
    /// let locker = Locker::new(Memory::space("run"));
    /// let receipt = locker.lock("order:42").run(async |held| charge(held.fence()).await).await??;
    /// assert_eq!(receipt, "receipt");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<F, B, T, E>(self, body: F) -> Result<Result<T, E>, Error>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = Result<T, E>>,
    {
        self.run_judged(body, Result::is_ok).await
    }

    /// The same with a body of which `succeeded` says whether it did.
    pub(crate) async fn run_judged<F, B, R>(
        mut self,
        body: F,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> Result<R, Error>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = R>,
    {
        let owner = self.0.some_owner();
        let guard = self.await?;
        let held = guard.held();
        let done = tokio::select! {
            // The loss is looked at first: a body that ends together with its lock ended without it.
            biased;
            loss = guard.lost() => return Err(Error::lost(guard.key(), loss)),
            done = owner.scope(async move { body(held).await }) => done,
        };
        match guard.release().await {
            Err(error) if error.is_lost() && succeeded(&done) => Err(error),
            _ => Ok(done),
        }
    }
}

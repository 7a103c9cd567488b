//! Running code under a lock: the body runs only while the lock is held.

use std::fmt;
use std::future::Future;

use tracing::Instrument;

use crate::builder::LockRequest;
use crate::error::Error;
use crate::guard::Held;
use crate::mode::HeldMode;

/// Why [`LockRequest::run`] did not return the result of its body.
///
/// It converts into [`Error`]: `run(..).await.map_err(tenure::Error::from)??`. That drops the value;
/// [`Error::is_late_loss`] tells that there was one.
pub enum RunError<T> {
    /// The lock was not acquired. The body did not run.
    NotAcquired(Error),
    /// The lock was lost.
    Lost {
        /// The value of the body, if it succeeded before the loss was detected: its work is done, and another
        /// holder may have worked at the same time. `None` if the body was dropped at an await point.
        value: Option<T>,
        /// The error of the loss; it [is lost](Error::is_lost), and with a value [is late](Error::is_late_loss).
        error: Error,
    },
}

impl<T> RunError<T> {
    /// The error without the value.
    pub fn error(&self) -> &Error {
        match self {
            RunError::NotAcquired(error) | RunError::Lost { error, .. } => error,
        }
    }

    /// Combines the result of the body, `done`, with that of the release: only a loss is an error, and it
    /// never hides a failure of the body.
    pub(crate) fn unless_lost<R>(
        done: T,
        released: Result<R, Error>,
        succeeded: impl FnOnce(&T) -> bool,
    ) -> Result<T, Self> {
        match released {
            Err(error) if error.is_lost() && succeeded(&done) => {
                Err(RunError::Lost { value: Some(done), error: error.found_late() })
            }
            _ => Ok(done),
        }
    }
}

impl<T, E> RunError<Result<T, E>> {
    /// Keeps the value only of a body that succeeded.
    pub(crate) fn of_success(self) -> RunError<T> {
        match self {
            RunError::NotAcquired(error) => RunError::NotAcquired(error),
            RunError::Lost { value, error } => {
                RunError::Lost { value: value.and_then(Result::ok), error }
            }
        }
    }
}

impl<T> From<RunError<T>> for Error {
    fn from(error: RunError<T>) -> Self {
        match error {
            RunError::NotAcquired(error) | RunError::Lost { error, .. } => error,
        }
    }
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            RunError::Lost { value, error } => {
                let mut shown = f.debug_struct("Lost");
                shown.field("has_value", &value.is_some()).field("error", error).finish()
            }
        }
    }
}

impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<T> std::error::Error for RunError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl<M: HeldMode> LockRequest<M> {
    /// Runs `body` under the lock, and releases the lock on every way out.
    ///
    /// The body returns a `Result`; if it cannot fail, end it with `Ok::<_, Infallible>(value)`. The result
    /// of `run` is nested, as with `tokio::time::timeout`: the outer one is from the lock, the inner one from
    /// the body. If the lock is lost, the body is dropped at its next await point, and the outer result is
    /// [`RunError::Lost`]. An error of the body is never hidden by an error of the lock.
    ///
    /// A loss may be detected only after the body succeeded: at the release, or because the body did not
    /// await while the lock was lost. The work of the body is then done, and [`RunError::Lost`] contains its
    /// value. Match on it if the value is needed to undo or check the work, such as the receipt of a payment.
    /// Otherwise convert the error into [`Error`].
    ///
    /// The body runs in the scope of the request's [`Owner`](crate::Owner), or of a new one if there is none:
    /// a lock of the same key inside it re-enters, as inside `#[lock]`. So futures that are joined inside the
    /// body have the same owner and do not exclude each other, unless they set `reentry(Reentry::Refuse)` or
    /// different [`owner`](Self::owner)s. A task that the body spawns is another owner: if the body waits for
    /// a task that wants the same key, it waits for ever.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`LockRequest`], and [`RunError::Lost`]. If only the
    /// release fails, the result of the body is returned; the release is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and releases the lock in the background.
    ///
    /// # Tracing
    ///
    /// The wait, the body and the release are inside the span `lock` (level debug, fields `name` and `key`).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Fence, Locker, Memory, RunError};
    ///
    /// async fn charge(fence: Fence) -> Result<&'static str, std::io::Error> {
    ///     Ok("receipt")
    /// }
    ///
    /// let locker = Locker::new(Memory::space("run"));
    /// let receipt = locker.lock("order:42").run(async |held| charge(held.fence()).await).await??;
    /// assert_eq!(receipt, "receipt");
    ///
    /// match locker.lock("order:42").run(async |held| charge(held.fence()).await).await {
    ///     Ok(charged) => println!("{}", charged?),
    ///     Err(RunError::Lost { value: Some(receipt), .. }) => println!("check {receipt} by hand"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<F, B, T, E>(self, body: F) -> Result<Result<T, E>, RunError<T>>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = Result<T, E>>,
    {
        self.run_judged(body, Result::is_ok).await.map_err(RunError::of_success)
    }

    /// As [`run`](Self::run), for a body with any result; `succeeded` tells whether it succeeded.
    pub(crate) async fn run_judged<F, B, R>(
        self,
        body: F,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> Result<R, RunError<R>>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = R>,
    {
        let span = self.0.span();
        self.run_in_span(body, succeeded).instrument(span).await
    }

    async fn run_in_span<F, B, R>(
        mut self,
        body: F,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> Result<R, RunError<R>>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = R>,
    {
        let owner = self.0.some_owner();
        let guard = self.await.map_err(RunError::NotAcquired)?;
        let held = guard.held();
        let done = tokio::select! {
            // The loss is polled first: if the body ends at the moment of the loss, it ended without the
            // lock.
            biased;
            loss = guard.lost() => {
                return Err(RunError::Lost { value: None, error: Error::lost(guard.key(), loss) });
            }
            done = owner.scope(async move { body(held).await }) => done,
        };
        RunError::unless_lost(done, guard.release().await, succeeded)
    }
}

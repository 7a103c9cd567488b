//! The runtime of `#[tenure::lock]`: the locker of the process, and a body that runs under a lock.
//!
//! In: a request with the attribute's own defaults, and the body of a function. Out: the result of the
//! function. The attribute expands to one call of [`run`] or [`run_keeping`]; the same call can be written by
//! hand; [`run_all`] and [`run_all_keeping`] are the same for several keys.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::sync::OnceLock;

use crate::builder::{LockRequest, RequestBuilder};
use crate::error::Error;
use crate::guard::Held;
use crate::key::{KEY_MAX, Key};
use crate::locker::Locker;
use crate::mode::{HeldMode, Mode, Permits, Shared};
use crate::multi::{HeldAll, KeySet, LockAll};
use crate::run::RunError;

static INSTALLED: OnceLock<Locker> = OnceLock::new();

/// Makes `locker` the locker of this process: every `#[lock]` uses it unless it names another.
///
/// ```
/// use tenure::{Locker, Memory};
///
/// assert!(tenure::installed().is_err());
/// tenure::install(Locker::new(Memory::space("installed")))?;
/// assert!(tenure::installed().is_ok());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// The installed locker is never dropped. Call `install` on the main thread, as code in `#[tokio::main]`
/// does: when that thread ends, it waits for the releases that are under way, at most for `flush_timeout`.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) if a locker is installed already: two parts of a program with different
/// lockers would not exclude each other.
pub fn install(locker: Locker) -> Result<(), Error> {
    let engine = locker.engine().clone();
    INSTALLED.set(locker).map_err(|_| Error::invalid("a locker is already installed"))?;
    engine.flush_at_thread_end();
    Ok(())
}

/// The locker of this process.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) if none was [installed](install).
pub fn installed() -> Result<&'static Locker, Error> {
    INSTALLED.get().ok_or_else(|| {
        Error::invalid(
            "no locker is installed: call `tenure::install(locker)` first, or say `locker = …` in `#[lock]`",
        )
    })
}

impl Locker {
    /// A request for `key` as `#[lock]` makes it: with the defaults of the attribute, and `template` as its
    /// name in metrics. An invalid key becomes the error of the request.
    pub fn lock_for_macro(&self, template: &'static str, key: fmt::Arguments<'_>) -> LockRequest {
        LockRequest::new(self.builder_for_macro(template, key))
    }

    /// As [`lock_for_macro`](Self::lock_for_macro), to hold `key` together with other readers.
    pub fn read_for_macro(
        &self,
        template: &'static str,
        key: fmt::Arguments<'_>,
    ) -> LockRequest<Shared> {
        LockRequest::new(self.builder_for_macro(template, key).mode(Mode::Read))
    }

    /// As [`lock_for_macro`](Self::lock_for_macro), for `permits` of the `capacity` permits of `key`. A single permit
    /// is [numbered](LockRequest::numbered). Unlike a request of [`Semaphore`](crate::Semaphore), it re-enters: an
    /// owner that holds as many permits of `key` already gets no further ones.
    pub fn permits_for_macro(
        &self,
        template: &'static str,
        key: fmt::Arguments<'_>,
        capacity: u32,
        permits: u32,
    ) -> LockRequest<Permits> {
        let request = self.builder_for_macro(template, key);
        let mode = Mode::Permits { permits, capacity };
        LockRequest::new(RequestBuilder { numbered: permits == 1, ..request.mode(mode) })
    }

    /// A request for several keys as `#[lock(keys = [..])]` makes it. `template` is the name of each in metrics.
    /// [`LockAll::key_for_macro`] and [`LockAll::read_for_macro`] add the keys.
    pub fn lock_all_for_macro(&self, template: &'static str) -> LockAll {
        let keys = KeySet::default();
        LockAll(RequestBuilder::of_attribute(self.engine(), keys.first()), keys).name(template)
    }

    fn builder_for_macro(&self, template: &'static str, key: fmt::Arguments<'_>) -> RequestBuilder {
        let request = RequestBuilder::of_attribute(self.engine(), formatted(template, key));
        RequestBuilder { name: Some(template.into()), ..request }
    }
}

impl LockAll {
    /// Adds a key to hold alone, made from `template`.
    pub fn key_for_macro(mut self, template: &str, key: fmt::Arguments<'_>) -> Self {
        self.1.add(formatted(template, key), Mode::Exclusive);
        self
    }

    /// Adds a key to read, made from `template`.
    pub fn read_for_macro(mut self, template: &str, key: fmt::Arguments<'_>) -> Self {
        self.1.add(formatted(template, key), Mode::Read);
        self
    }
}

fn formatted(template: &str, key: fmt::Arguments<'_>) -> Result<Key, Error> {
    match key.as_str() {
        Some(key) => Key::new(key),
        None => made_key(template, key),
    }
}

/// The largest buffer that is kept: twice the longest key.
const ROOM_MAX: usize = 2 * KEY_MAX;

/// Formats the key into the buffer of this thread, which is cheaper than an allocation for each call.
fn made_key(template: &str, key: fmt::Arguments<'_>) -> Result<Key, Error> {
    thread_local! {
        static ROOM: Cell<String> = const { Cell::new(String::new()) };
    }
    // Taken out: if formatting a parameter calls this function again, the inner call starts with a new
    // buffer.
    let mut room = ROOM.take();
    room.clear();
    let made = match room.write_fmt(key) {
        Ok(()) => Key::new(&room),
        // A partly written key would be a different key.
        Err(_) => Err(Error::invalid(format!("no key `{template}`: a parameter cannot be shown"))),
    };
    if room.capacity() <= ROOM_MAX {
        ROOM.set(room);
    }
    made
}

/// Runs the body of a function under the lock of `request`, as [`LockRequest::run`] does: a lock of the same
/// key inside the body re-enters.
///
/// # Errors
///
/// The error of the body, or an [`Error`] converted into its type: the lock was not acquired, or was lost. If
/// the loss was detected after the body succeeded, the error [is a late loss](Error::is_late_loss) and the value is
/// dropped; [`run_keeping`] keeps it.
///
/// # Cancel safety
///
/// Dropping the future drops the body, and releases the lock in the background.
pub async fn run<M, F, B, R>(request: Result<LockRequest<M>, Error>, body: F) -> R
where
    M: HeldMode,
    F: FnOnce(Held) -> B,
    B: Future<Output = R>,
    R: Outcome,
{
    match request {
        Ok(request) => outcome(request.run_judged(body, R::is_ok).await),
        Err(error) => R::not_under_lock(error),
    }
}

/// As [`run`], for several keys.
///
/// # Errors
///
/// Those of [`run`]; the error names the key that was in the way, or was lost.
///
/// # Cancel safety
///
/// Dropping the future drops the body, and releases all keys in the background.
pub async fn run_all<F, B, R>(request: Result<LockAll, Error>, body: F) -> R
where
    F: FnOnce(HeldAll) -> B,
    B: Future<Output = R>,
    R: Outcome,
{
    match request {
        Ok(request) => outcome(request.run_judged(body, R::is_ok).await),
        Err(error) => R::not_under_lock(error),
    }
}

fn outcome<R: Outcome>(done: Result<R, RunError<R>>) -> R {
    done.unwrap_or_else(|error| R::not_under_lock(error.into()))
}

/// As [`run`]. If the body succeeded but the lock had been lost, `on_late_loss` makes the result from the
/// value of the body and the error of the loss.
///
/// # Errors
///
/// The error of the body, an [`Error`] converted into its type, or the error of `on_late_loss`.
///
/// # Cancel safety
///
/// Dropping the future drops the body, and releases the lock in the background.
pub async fn run_keeping<M, F, B, T, E>(
    request: Result<LockRequest<M>, Error>,
    body: F,
    on_late_loss: impl FnOnce(T, Error) -> Result<T, E>,
) -> Result<T, E>
where
    M: HeldMode,
    F: FnOnce(Held) -> B,
    B: Future<Output = Result<T, E>>,
    E: From<Error>,
{
    kept(request?.run_judged(body, Result::is_ok).await, on_late_loss)
}

/// As [`run_keeping`], for several keys.
///
/// # Errors
///
/// Those of [`run_keeping`].
///
/// # Cancel safety
///
/// Dropping the future drops the body, and releases all keys in the background.
pub async fn run_all_keeping<F, B, T, E>(
    request: Result<LockAll, Error>,
    body: F,
    on_late_loss: impl FnOnce(T, Error) -> Result<T, E>,
) -> Result<T, E>
where
    F: FnOnce(HeldAll) -> B,
    B: Future<Output = Result<T, E>>,
    E: From<Error>,
{
    kept(request?.run_judged(body, Result::is_ok).await, on_late_loss)
}

fn kept<T, E: From<Error>>(
    done: Result<Result<T, E>, RunError<Result<T, E>>>,
    on_late_loss: impl FnOnce(T, Error) -> Result<T, E>,
) -> Result<T, E> {
    match done.map_err(RunError::of_success) {
        Ok(done) => done,
        Err(RunError::Lost { value: Some(value), error }) => on_late_loss(value, error),
        Err(error) => Err(Error::from(error).into()),
    }
}

/// The result of a function under `#[lock]`: a `Result` whose error type can be made from
/// [`tenure::Error`](Error).
#[diagnostic::on_unimplemented(
    message = "a function under `#[lock]` must return a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "its error is made `From<tenure::Error>` when the lock is busy or lost"
)]
pub trait Outcome {
    /// Whether the body succeeded.
    fn is_ok(&self) -> bool;
    /// The result if the lock was not acquired, or was lost.
    fn not_under_lock(error: Error) -> Self;
}

impl<T, E: From<Error>> Outcome for Result<T, E> {
    fn is_ok(&self) -> bool {
        self.is_ok()
    }

    fn not_under_lock(error: Error) -> Self {
        Err(error.into())
    }
}

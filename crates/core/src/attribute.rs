//! What `#[tenure::lock]` stands on: the locker of the process, and a body that runs under a lock.
//!
//! In: a request with the attribute's own defaults, and the body of a function. Out: what the function
//! returns. The attribute expands to one call of [`run`]; nothing here is hidden from who wants to
//! write that call by hand.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::sync::OnceLock;

use tracing::Instrument;

use crate::error::Error;
use crate::guard::Held;
use crate::key::{KEY_MAX, Key};
use crate::locker::Locker;
use crate::request::{Lock, Request};

static INSTALLED: OnceLock<Locker> = OnceLock::new();

/// Makes `locker` the one of this process: for every `#[lock]` that names no other.
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
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) if there is one already: half of a program on another locker is
/// half a program without locks.
pub fn install(locker: Locker) -> Result<(), Error> {
    INSTALLED.set(locker).map_err(|_| Error::invalid("a locker is already installed"))
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
    /// Asks for `key` as `#[lock]` does: with its defaults, under the name of its template.
    pub fn lock_by_attribute(&self, template: &'static str, key: fmt::Arguments<'_>) -> Lock {
        let key = match key.as_str() {
            Some(key) => Key::new(key),
            None => made_key(template, key),
        };
        Lock(Request::of_attribute(self.engine(), key)).name(template)
    }
}

/// The largest room for a key that is kept: twice what a key may have.
const ROOM_MAX: usize = 2 * KEY_MAX;

/// Writes the key where the last one of this thread was written: that is cheaper than new room for
/// each call.
fn made_key(template: &str, key: fmt::Arguments<'_>) -> Result<Key, Error> {
    thread_local! {
        static ROOM: Cell<String> = const { Cell::new(String::new()) };
    }
    // Taken: should showing a parameter lead here again, it finds a new one.
    let mut room = ROOM.take();
    room.clear();
    let made = match room.write_fmt(key) {
        Ok(()) => Key::new(&room),
        // Half a key is another key.
        Err(_) => Err(Error::invalid(format!("no key `{template}`: a parameter cannot be shown"))),
    };
    if room.capacity() <= ROOM_MAX {
        ROOM.set(room);
    }
    made
}

/// Runs the body of a function under the lock that `request` asks for, as [`Lock::run`] does: what the
/// body calls re-enters.
///
/// # Errors
///
/// The body's, or one made of ours: the lock was not had, or was lost.
///
/// # Cancel safety
///
/// That of [`Lock::run`].
pub async fn run<F, B, R>(request: Result<Lock, Error>, body: F) -> R
where
    F: FnOnce(Held) -> B,
    B: Future<Output = R>,
    R: Outcome,
{
    let request = match request {
        Ok(request) => request,
        Err(error) => return R::not_under_lock(error),
    };
    let span = request.span();
    let done = request.run_judged(body, R::is_ok).instrument(span).await;
    done.unwrap_or_else(R::not_under_lock)
}

impl Lock {
    /// Around everything that is said while the lock is waited for and held.
    fn span(&self) -> tracing::Span {
        let Request { key, name, .. } = &self.0;
        let key = key.as_ref().map_or("", |key| key.as_str());
        tracing::debug_span!("lock", name = name.as_deref(), key)
    }
}

/// What a function under `#[lock]` returns: a `Result` whose error can be made of a
/// [`tenure::Error`](Error).
#[diagnostic::on_unimplemented(
    message = "a function under `#[lock]` must return a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "its error is made `From<tenure::Error>` when the lock is busy or lost"
)]
pub trait Outcome {
    /// Whether the body did what it was to do.
    fn is_ok(&self) -> bool;
    /// The lock was not had, or was lost.
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

//! Several keys at once, for threads: the twins of `LockAll`, `TryLockAll` and `GuardAll`.

use std::sync::Arc;
use std::time::Duration;

use super::{Thread, run_as};
use crate::builder::{RequestBuilder, setters, trying_setters, waiting_setters};
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::key::Key;
use crate::multi::{self, HeldAll, KeySet};
use crate::options::{Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::run::RunError;

/// A request for several keys, all or none: set options, then [`acquire`](Self::acquire) them, or [`run`](Self::run)
/// code under them. See [`tenure::LockAll`](crate::LockAll).
///
/// ```
/// use tenure::{Locker, Memory, blocking};
///
/// let locker = blocking::Locker::new(Locker::new(Memory::space("thread-all")));
/// let both = locker.lock_all(["account:7", "account:3"]).acquire()?;
/// assert!(both.is_held() && locker.holds("account:3"));
/// both.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "a request does nothing until it is acquired"]
pub struct LockAll(RequestBuilder, KeySet);

setters!(LockAll);
waiting_setters!(LockAll);

impl LockAll {
    pub(super) fn of(multi::LockAll(request, keys): multi::LockAll) -> Self {
        LockAll(request.of_thread(), keys)
    }

    /// Adds keys to hold together with other readers, as [`tenure::LockAll::read`](crate::LockAll::read).
    pub fn read(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.1.read(keys);
        self
    }

    /// Blocks until all keys are acquired, or the wait ends.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::LockAll`](crate::LockAll), and [`is_invalid`](Error::is_invalid) on a worker thread of an
    /// async runtime.
    pub fn acquire(mut self) -> Result<GuardAll, Error> {
        self.0.key = self.1.first();
        let thread = self.0.thread("lock_all")?;
        let inner = thread.handle.block_on(self.1.lock(self.0))?;
        Ok(GuardAll { inner, thread })
    }

    /// Runs `body` under all keys, and releases them on every way out. A blocking body cannot be stopped: a loss is
    /// reported when the body has ended.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`acquire`](Self::acquire), and [`RunError::Lost`] with the value
    /// of the body if one of the keys was lost before its release.
    pub fn run<T, E>(
        mut self,
        body: impl FnOnce(HeldAll) -> Result<T, E>,
    ) -> Result<Result<T, E>, RunError<T>> {
        let owner = self.0.some_owner();
        let guard = self.acquire().map_err(RunError::NotAcquired)?;
        let held = guard.held();
        run_as(&owner, || body(held), || guard.release())
    }
}

/// A request for several keys that does not fail if one is busy. Of two that ask at the same moment, both may get
/// `None`.
#[must_use = "a request does nothing until it is acquired"]
pub struct TryLockAll(RequestBuilder, KeySet);

setters!(TryLockAll);
trying_setters!(TryLockAll);

impl TryLockAll {
    pub(super) fn of(multi::TryLockAll(request, keys): multi::TryLockAll) -> Self {
        TryLockAll(request.of_thread(), keys)
    }

    /// Adds keys to hold together with other readers, as [`tenure::LockAll::read`](crate::LockAll::read).
    pub fn read(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.1.read(keys);
        self
    }

    /// Acquires all keys; `None` if another holder has one of them.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::TryLockAll`](crate::TryLockAll), and [`is_invalid`](Error::is_invalid) on a worker thread of
    /// an async runtime.
    pub fn acquire(mut self) -> Result<Option<GuardAll>, Error> {
        self.0.key = self.1.first();
        let thread = self.0.thread("try_lock_all")?;
        let inner = thread.handle.block_on(self.1.try_lock(self.0))?;
        Ok(inner.map(|inner| GuardAll { inner, thread }))
    }
}

/// Several held keys. Dropping the guard releases all of them in the background. It cannot be sent to another thread,
/// because its thread is the owner.
#[must_use = "if unused, the locks are released at once"]
#[derive(Debug)]
pub struct GuardAll {
    inner: multi::GuardAll,
    thread: Thread,
}

impl GuardAll {
    /// The keys that are locked, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.inner.keys()
    }

    /// The fence of `key`; `None` if it is not one of the keys.
    pub fn fence(&self, key: &str) -> Option<Fence> {
        self.inner.fence(key)
    }

    /// Whether every key can be relied on. Reads the clock and sends no request.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Blocks until one of the keys is lost, at most for `longest`. Returns which one and why, or `None`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) on a worker thread of an async runtime.
    pub fn lost(&self, longest: Duration) -> Result<Option<(Key, Loss)>, Error> {
        self.thread.wait_at_most("lost", longest, self.inner.lost())
    }

    /// A view of the keys without the right to release them.
    pub fn held(&self) -> HeldAll {
        self.inner.held()
    }

    /// Releases all keys, and waits for the replies of the engine.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::GuardAll::release`](crate::GuardAll::release). On a worker thread of an async runtime
    /// [`is_invalid`](Error::is_invalid); the keys are then released in the background.
    pub fn release(self) -> Result<(), Error> {
        self.thread.wait("release", self.inner.release())?
    }
}

//! The same without a runtime: `lock`, `try_lock` and `release` for threads.
//!
//! Calls wait on the calling thread; timers and connections live on the engine's own. Inside an
//! async runtime they would block it, so there they err. Re-entry is by
//! [`owner(..)`](Lock::owner), since a thread has no task-local scope; what is not here (`run`,
//! `inspect`, `shutdown`) is on the [`Locker`](crate::Locker) beneath: [`Locker::inner`].

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::fence::Fence;
use crate::guard::{Held, Released};
use crate::key::Key;
use crate::options::{Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::request::{Request, setters, waiting_setters};

/// A [`Locker`](crate::Locker) for threads.
///
/// ```
/// use tenure::{Locker, Memory, blocking};
///
/// let locker = blocking::Locker::new(Locker::new(Memory::space("threads")));
/// let guard = locker.lock("order:42").acquire()?;
/// assert!(locker.try_lock("order:42").acquire()?.is_none());
/// guard.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    inner: crate::Locker,
}

impl Locker {
    /// The blocking twin of `locker`; the two share everything.
    pub fn new(locker: crate::Locker) -> Self {
        Locker { inner: locker }
    }

    /// The async locker that this one shares everything with.
    pub fn inner(&self) -> &crate::Locker {
        &self.inner
    }

    /// Asks for `key`: set options on what this returns, then [`acquire`](Lock::acquire).
    pub fn lock(&self, key: impl AsRef<str>) -> Lock {
        Lock(Request::new(self.inner.engine(), key.as_ref()))
    }

    /// Asks for `key` once.
    pub fn try_lock(&self, key: impl AsRef<str>) -> TryLock {
        TryLock(Request::new(self.inner.engine(), key.as_ref()))
    }
}

/// A request for a lock.
#[must_use = "a request does nothing until it is acquired"]
pub struct Lock(Request);

setters!(Lock);
waiting_setters!(Lock);

impl Lock {
    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Lock`](crate::Lock), and [`is_invalid`](Error::is_invalid) inside an async runtime.
    pub fn acquire(self) -> Result<Guard, Error> {
        let handle = self.0.handle("lock")?;
        let inner = handle.block_on(self.0.lock())?;
        Ok(Guard { inner, handle })
    }
}

/// A request for a lock that is had at once or not at all.
#[must_use = "a request does nothing until it is acquired"]
pub struct TryLock(Request);

setters!(TryLock);

impl TryLock {
    /// The lock, or `None` if another holds it.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::TryLock`](crate::TryLock), and [`is_invalid`](Error::is_invalid) inside an async runtime.
    pub fn acquire(self) -> Result<Option<Guard>, Error> {
        let handle = self.0.handle("try_lock")?;
        let inner = handle.block_on(self.0.try_lock())?;
        Ok(inner.map(|inner| Guard { inner, handle }))
    }
}

impl Request {
    /// The runtime to wait with, unless the caller has one that waiting would block.
    fn handle(&self, what: &'static str) -> Result<Handle, Error> {
        refuse_inside_runtime(what)?;
        self.background()
    }
}

fn refuse_inside_runtime(what: &'static str) -> Result<(), Error> {
    match Handle::try_current() {
        Ok(_) => Err(Error::blocking_inside_runtime(what)),
        Err(_) => Ok(()),
    }
}

/// A held lock. Dropping it releases the lock in the background.
#[must_use = "if unused, the lock is released at once"]
#[derive(Debug)]
pub struct Guard {
    inner: crate::Guard,
    handle: Handle,
}

impl Guard {
    /// What is locked.
    pub fn key(&self) -> &Key {
        self.inner.key()
    }

    /// The number of this grant.
    pub fn fence(&self) -> Fence {
        self.inner.fence()
    }

    /// Whether the lock may be relied on.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// How much of the lease is left.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// The same view without the right to release.
    pub fn held(&self) -> Held {
        self.inner.held()
    }

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Guard::release`](crate::Guard::release). Inside an async runtime
    /// [`is_invalid`](Error::is_invalid); the lock is then released in the background.
    pub fn release(self) -> Result<Released, Error> {
        refuse_inside_runtime("release")?;
        self.handle.block_on(self.inner.release())
    }
}

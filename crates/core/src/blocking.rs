//! The blocking API: a [`Locker`] for threads.
//!
//! Calls block the calling thread; timers and connections run on the engine's background thread. A worker
//! thread of an async runtime must not block, so a call there returns an error. In `spawn_blocking` and
//! `block_in_place` it is allowed.
//!
//! A thread is an [`Owner`]: it can acquire a lock again that it holds. Two threads exclude each other.
//! Inside [`LockRequest::run`] and [`Owner::scope`] the owner is the one in scope; [`LockRequest::owner`]
//! sets another.
//!
//! In place of `cancel_on` there is [`LockRequest::wait`]. The other methods (`inspect`, `shutdown`) are on the async
//! [`Locker`](crate::Locker): see [`Locker::inner`].

mod election;
mod multi;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::coop;

use crate::builder::{RequestBuilder, setters, trying_setters, waiting_setters};
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::guard::{self, Held, Released};
use crate::key::Key;
use crate::locker;
use crate::mode::{Exclusive, HeldMode, Permits, Shared};
use crate::options::{Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::run::RunError;
use crate::time::Clock;

pub use election::{Campaign, Election, Leader};
pub use multi::{GuardAll, LockAll, TryLockAll};

/// A [`Locker`](crate::Locker) for threads. Cheap to clone; clones share everything.
///
/// ```
/// use tenure::{Locker, Memory, blocking};
///
/// let locker = blocking::Locker::new(Locker::new(Memory::space("threads")));
/// let guard = locker.lock("order:42").acquire()?;
/// assert!(locker.try_lock("order:42").acquire()?.is_some(), "the same thread: a re-entry");
/// guard.release()?;
/// std::thread::spawn(move || assert!(!locker.holds("order:42"))).join().unwrap();
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    inner: locker::Locker,
}

impl Locker {
    /// The blocking form of `locker`; the two share everything.
    pub fn new(locker: locker::Locker) -> Self {
        Locker { inner: locker }
    }

    /// The async locker that this one was made from.
    pub fn inner(&self) -> &locker::Locker {
        &self.inner
    }

    /// Returns a request for `key`: set its options, then [`acquire`](LockRequest::acquire) the lock.
    pub fn lock(&self, key: impl AsRef<str>) -> LockRequest {
        LockRequest::of(self.inner.lock(key).0)
    }

    /// Returns a request for `key` that does not fail if the lock is busy. It tries once, unless
    /// [`wait`](TryLockRequest::wait) is set. Then [`acquire`](TryLockRequest::acquire) the lock.
    pub fn try_lock(&self, key: impl AsRef<str>) -> TryLockRequest {
        TryLockRequest::of(self.inner.try_lock(key).0)
    }

    /// Returns a request to hold `key` together with other readers, as [`tenure::Locker::read`](crate::Locker::read).
    pub fn read(&self, key: impl AsRef<str>) -> LockRequest<Shared> {
        LockRequest::of(self.inner.read(key).0)
    }

    /// The same as [`lock`](Self::lock), beside [`read`](Self::read): it holds the key alone.
    pub fn write(&self, key: impl AsRef<str>) -> LockRequest {
        self.lock(key)
    }

    /// As [`read`](Self::read), for a request that does not fail if the key is busy: `None` if a writer holds it or
    /// waits for it.
    ///
    /// ```
    /// use tenure::{Locker, Memory, blocking};
    ///
    /// let locker = blocking::Locker::new(Locker::new(Memory::space("blocking-readers")));
    /// let reader = locker.try_read("catalog").acquire()?.expect("nobody writes");
    /// reader.release()?;
    /// locker.write("catalog").acquire()?.release()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn try_read(&self, key: impl AsRef<str>) -> TryLockRequest<Shared> {
        TryLockRequest::of(self.inner.try_read(key).0)
    }

    /// The same as [`try_lock`](Self::try_lock), beside [`try_read`](Self::try_read): `None` if anybody holds the key
    /// or waits for it.
    pub fn try_write(&self, key: impl AsRef<str>) -> TryLockRequest {
        self.try_lock(key)
    }

    /// Returns `key` as a semaphore with `capacity` permits.
    pub fn semaphore(&self, key: impl AsRef<str>, capacity: u32) -> Semaphore {
        Semaphore { inner: self.inner.semaphore(key, capacity) }
    }

    /// Returns a request for all of `keys`, or none of them, as [`tenure::Locker::lock_all`](crate::Locker::lock_all).
    pub fn lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> LockAll {
        LockAll::of(self.inner.lock_all(keys))
    }

    /// As [`lock_all`](Self::lock_all), for a request that does not fail if a key is busy.
    pub fn try_lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> TryLockAll {
        TryLockAll::of(self.inner.try_lock_all(keys))
    }

    /// Whether the calling thread holds `key`, or the owner in scope if there is one. Sends no request. For
    /// any thread of this process, use [`tenure::Locker::holds`](crate::Locker::holds).
    pub fn holds(&self, key: &str) -> bool {
        Owner::current().unwrap_or_else(Owner::of_thread).holds(&self.inner, key)
    }
}

/// A [`tenure::Semaphore`](crate::Semaphore) for threads.
///
/// ```
/// use tenure::{Locker, Memory, blocking};
///
/// let locker = blocking::Locker::new(Locker::new(Memory::space("thread-permits")));
/// let reports = locker.semaphore("limit:reports", 1);
/// let permit = reports.acquire().acquire()?;
/// assert!(reports.try_acquire().acquire()?.is_none());
/// permit.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: crate::Semaphore,
}

impl Semaphore {
    /// Returns a request for one permit.
    pub fn acquire(&self) -> LockRequest<Permits> {
        self.acquire_many(1)
    }

    /// Returns a request for `permits` permits at once, as
    /// [`tenure::Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn acquire_many(&self, permits: u32) -> LockRequest<Permits> {
        LockRequest::of(self.inner.acquire_many(permits).0)
    }

    /// As [`acquire`](Self::acquire), for a request that does not fail if no permit is free: `None`, also if
    /// another request waits.
    pub fn try_acquire(&self) -> TryLockRequest<Permits> {
        self.try_acquire_many(1)
    }

    /// As [`acquire_many`](Self::acquire_many), for a request that does not fail if too few permits are free.
    ///
    /// ```
    /// use tenure::{Locker, Memory, blocking};
    ///
    /// let locker = blocking::Locker::new(Locker::new(Memory::space("blocking-tries")));
    /// let reports = locker.semaphore("limit:reports", 3);
    /// let heavy = reports.try_acquire_many(2).acquire()?.expect("three are free");
    /// assert!(reports.try_acquire_many(2).acquire()?.is_none());
    /// assert_eq!(reports.acquire().numbered().acquire()?.slot(), Some(0));
    /// heavy.release()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn try_acquire_many(&self, permits: u32) -> TryLockRequest<Permits> {
        TryLockRequest::of(self.inner.try_acquire_many(permits).0)
    }

    /// The same key with another capacity.
    pub fn with_capacity(&self, capacity: u32) -> Self {
        Semaphore { inner: self.inner.with_capacity(capacity) }
    }

    /// How many permits are free, as the engine sees it: for people.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Semaphore::available_permits`](crate::Semaphore::available_permits), and
    /// [`is_invalid`](Error::is_invalid) on a worker thread of an async runtime.
    pub fn available_permits(&self) -> Result<u32, Error> {
        let thread = self.inner.acquire().0.thread("available_permits")?;
        thread.handle.block_on(self.inner.available_permits())
    }

    /// The async semaphore that this one was made from.
    pub fn inner(&self) -> &crate::Semaphore {
        &self.inner
    }
}

/// A request for a lock: set options, then [`acquire`](Self::acquire) it, or [`run`](Self::run) code under
/// it.
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest<M: HeldMode = Exclusive>(RequestBuilder, PhantomData<M>);

setters!(LockRequest<M>, M);
waiting_setters!(LockRequest<M>, M);

impl<M: HeldMode> LockRequest<M> {
    fn of(request: RequestBuilder) -> Self {
        LockRequest(request.of_thread(), PhantomData)
    }

    /// Blocks until the lock is acquired, or the wait ends.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::LockRequest`](crate::LockRequest), and [`is_invalid`](Error::is_invalid) on a
    /// worker thread of an async runtime.
    pub fn acquire(self) -> Result<Guard<M>, Error> {
        let thread = self.0.thread("lock")?;
        let inner = thread.handle.block_on(self.0.lock())?;
        Ok(Guard { inner, thread })
    }

    /// Runs `body` under the lock, and releases the lock on every way out, as
    /// [`tenure::LockRequest::run`](crate::LockRequest::run) does.
    ///
    /// A blocking body cannot be stopped: a loss is reported when the body has ended. The body itself can
    /// check [`Held::is_held`].
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`acquire`](Self::acquire), and [`RunError::Lost`] with
    /// the value of the body if the lock was lost before its release.
    ///
    /// ```
    /// use tenure::{Locker, Memory, blocking};
    ///
    /// let locker = blocking::Locker::new(Locker::new(Memory::space("thread-run")));
    /// let fence = locker.lock("order:42").run(|held| Ok::<_, std::io::Error>(held.fence()))??;
    /// # let _ = fence;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<T, E>(
        mut self,
        body: impl FnOnce(Held) -> Result<T, E>,
    ) -> Result<Result<T, E>, RunError<T>> {
        let owner = self.0.some_owner();
        let guard = self.acquire().map_err(RunError::NotAcquired)?;
        let held = guard.held();
        run_as(&owner, || body(held), || guard.release())
    }
}

/// Runs `body` with `owner` in scope, and then `release`, for `run` of one key or several.
fn run_as<T, E, R>(
    owner: &Owner,
    body: impl FnOnce() -> Result<T, E>,
    release: impl FnOnce() -> Result<R, Error>,
) -> Result<Result<T, E>, RunError<T>> {
    let done = owner.scope_sync(body);
    RunError::unless_lost(done, release(), Result::is_ok).map_err(RunError::of_success)
}

/// A request for a lock that does not fail if the lock is busy.
#[must_use = "a request does nothing until it is acquired"]
pub struct TryLockRequest<M: HeldMode = Exclusive>(RequestBuilder, PhantomData<M>);

setters!(TryLockRequest<M>, M);
trying_setters!(TryLockRequest<M>, M);

impl<M: HeldMode> TryLockRequest<M> {
    fn of(request: RequestBuilder) -> Self {
        TryLockRequest(request.of_thread(), PhantomData)
    }

    /// Acquires the lock; `None` if another holder has it.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::TryLockRequest`](crate::TryLockRequest), and [`is_invalid`](Error::is_invalid) on a
    /// worker thread of an async runtime.
    pub fn acquire(self) -> Result<Option<Guard<M>>, Error> {
        let thread = self.0.thread("try_lock")?;
        let inner = thread.handle.block_on(self.0.try_lock())?;
        Ok(inner.map(|inner| Guard { inner, thread }))
    }
}

impl RequestBuilder {
    /// Makes the calling thread the owner, unless there is an owner in scope.
    fn of_thread(mut self) -> Self {
        self.owner.get_or_insert_with(Owner::of_thread);
        self
    }

    /// The calling thread, to wait on. An error if it must not block.
    fn thread(&self, what: &'static str) -> Result<Thread, Error> {
        refuse_on_worker(what)?;
        let clock = self.engine.clock.clone();
        Ok(Thread { handle: self.background()?, clock, stays: PhantomData })
    }
}

/// A thread that waits for work on the engine's background runtime.
#[derive(Debug)]
struct Thread {
    handle: Handle,
    clock: Clock,
    /// Makes the guards not `Send`, but `Sync`.
    stays: PhantomData<MutexGuard<'static, ()>>,
}

impl Thread {
    /// Blocks until `work` is done. An error if the thread must not block; `what` is the call that it names.
    fn wait<T>(&self, what: &'static str, work: impl Future<Output = T>) -> Result<T, Error> {
        refuse_on_worker(what)?;
        Ok(self.handle.block_on(work))
    }

    /// Blocks at most for `longest`; `None` if `work` is not done by then.
    fn wait_at_most<T>(
        &self,
        what: &'static str,
        longest: Duration,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        self.wait(what, self.clock.at_most(longest, work))
    }
}

fn refuse_on_worker(what: &'static str) -> Result<(), Error> {
    match is_worker() {
        true => Err(Error::blocking_inside_runtime(what)),
        false => Ok(()),
    }
}

/// Whether this thread is polling a future for a runtime, so that blocking it would block other tasks.
///
/// tokio gives every poll a budget of at most [`u8::MAX`], and no budget to code that may block. So the
/// thread is inside a poll if the budget can be used up. Using it up costs the caller one early yield, and
/// only if the result is an error.
///
/// `tokio::task::unconstrained` takes the budget away: inside it a worker is not recognised, and `block_on`
/// panics. tokio has no function that would tell.
fn is_worker() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    (0..=u8::MAX).any(|_| {
        let _ = pin!(coop::consume_budget()).poll(&mut context);
        !coop::has_budget_remaining()
    })
}

/// A held lock. Dropping the guard releases the lock in the background.
///
/// It cannot be sent to another thread, because its thread is the owner: that thread could acquire the same
/// key again, and two threads would work under one lock. Other threads can use a view, [`held`](Self::held).
///
/// ```compile_fail
/// # use tenure::{Locker, Memory, blocking};
/// # let locker = blocking::Locker::new(Locker::new(Memory::space("stays")));
/// let guard = locker.lock("order:42").acquire()?;
/// std::thread::spawn(move || drop(guard));
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "if unused, the lock is released at once"]
#[derive(Debug)]
pub struct Guard<M: HeldMode = Exclusive> {
    inner: guard::Guard<M>,
    thread: Thread,
}

impl<M: HeldMode> Guard<M> {
    /// The key that is locked.
    pub fn key(&self) -> &Key {
        self.inner.key()
    }

    /// The fence of this grant.
    pub fn fence(&self) -> Fence {
        self.inner.fence()
    }

    /// How many times the owner held the lock when this guard was acquired, this guard included.
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }

    /// Whether the lock can be relied on. Reads the clock and sends no request.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// How much of the lease remains.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// A view of this lock without the right to release it.
    pub fn held(&self) -> Held {
        self.inner.held()
    }

    /// Blocks until the lock is lost, at most for `longest`. Returns why it was lost, or `None` if it was
    /// not. A second thread can wait here with a reference while the first one works.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) on a worker thread of an async runtime.
    pub fn lost(&self, longest: Duration) -> Result<Option<Loss>, Error> {
        self.thread.wait_at_most("lost", longest, self.inner.lost())
    }

    /// Blocks until another process is known to wait for the key, at most for `longest`. Returns whether one waits. For
    /// a reader and a permit, another task of this process counts too.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) on a worker thread of an async runtime.
    pub fn contended(&self, longest: Duration) -> Result<bool, Error> {
        let contended = self.thread.wait_at_most("contended", longest, self.inner.contended())?;
        Ok(contended.is_some())
    }

    /// Renews the lease now.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Guard::renew`](crate::Guard::renew), and [`is_invalid`](Error::is_invalid) on a
    /// worker thread of an async runtime.
    pub fn renew(&self) -> Result<(), Error> {
        self.thread.wait("renew", self.inner.renew())?
    }

    /// Releases the lock, and waits for the reply of the engine.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Guard::release`](crate::Guard::release). On a worker thread of an async runtime
    /// [`is_invalid`](Error::is_invalid); the lock is then released in the background.
    pub fn release(self) -> Result<Released, Error> {
        self.thread.wait("release", self.inner.release())?
    }
}

impl Guard<Permits> {
    /// How many permits these are.
    pub fn num_permits(&self) -> u32 {
        self.inner.num_permits()
    }

    /// The number of a numbered permit, below the capacity.
    pub fn slot(&self) -> Option<u32> {
        self.inner.slot()
    }
}

impl LockRequest<Permits> {
    /// Gives the permit a number, as [`tenure::LockRequest::numbered`](crate::LockRequest::numbered).
    pub fn numbered(mut self) -> Self {
        self.0.numbered = true;
        self
    }
}

impl TryLockRequest<Permits> {
    /// Gives the permit a number, as [`tenure::LockRequest::numbered`](crate::LockRequest::numbered).
    pub fn numbered(mut self) -> Self {
        self.0.numbered = true;
        self
    }
}

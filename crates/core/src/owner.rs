//! The owner of a lock: the unit of re-entry.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static IN_SCOPE: Owner;
}

thread_local! {
    static OF_THREAD: Owner = Owner::new();
}

/// The identity that a lock is held by. An owner can acquire a lock again that it holds: the holds are
/// counted, and no request is sent. Tasks that share an owner share its locks.
///
/// An owner that acquires the lock again before it has released it keeps the lock for as long as it likes:
/// fairness between owners applies to hand-overs, not to re-entry.
///
/// If the second request has `fencing` on, the first must have it on too.
///
/// [`LockRequest::run`](crate::LockRequest::run) and `#[lock]` give their body an owner. Any other request
/// without an owner, set or in scope, is an owner of its own and never re-enters, as with
/// `tokio::sync::Mutex`. In [`blocking`](crate::blocking) the thread is the owner.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory, Owner};
///
/// async fn outer(locker: &Locker) -> Result<u32, tenure::Error> {
///     let _outer = locker.lock("order:42").await?;
///     let inner = locker.lock("order:42").await?; // the same owner: no dead-lock
///     Ok(inner.depth())
/// }
///
/// let locker = Locker::new(Memory::space("owners"));
/// assert_eq!(Owner::new().scope(outer(&locker)).await?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Identity);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Identity {
    Local(u64),
    Shared(Arc<str>),
}

impl Owner {
    /// Makes a new owner, different from every other in this process.
    #[allow(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(Identity::Local(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// An owner that several processes share: all that use the same `id` share its locks. The server counts
    /// the holds, so not every engine supports it (see
    /// [`Capabilities::shared_owners`](crate::backend::Capabilities::shared_owners)).
    ///
    /// Processes share the exclusive locks of such an owner, and neither its readers nor its permits. If it reads in
    /// one process and reads the same key again in another, the second read waits behind a writer that came in
    /// between, and the writer waits for the first read. A read in another process while the owner writes waits for
    /// itself. Set a [`wait`](crate::LockRequest::wait), or read in one process only.
    pub fn shared(id: impl Into<Arc<str>>) -> Self {
        Owner(Identity::Shared(id.into()))
    }

    /// Runs `body` with this owner in scope: every `lock(..)` that is built inside has this owner. A spawned
    /// task does not inherit the scope; wrap its future in another `scope`.
    pub fn scope<F: Future>(&self, body: F) -> impl Future<Output = F::Output> + use<F> {
        IN_SCOPE.scope(self.clone(), body)
    }

    /// Runs code that does not await with this owner in scope.
    pub(crate) fn scope_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        IN_SCOPE.sync_scope(self.clone(), body)
    }

    /// The owner of the calling thread, for [`blocking`](crate::blocking).
    pub(crate) fn of_thread() -> Self {
        // A thread that is ending has no thread-local owner left. It gets a new one, which does not re-enter.
        OF_THREAD.try_with(Clone::clone).unwrap_or_else(|_| Owner::new())
    }

    /// The owner in scope, if there is one.
    pub fn current() -> Option<Self> {
        IN_SCOPE.try_with(Clone::clone).ok()
    }

    /// The number of a local owner; zero for a shared one.
    pub(crate) fn number(&self) -> u64 {
        match &self.0 {
            Identity::Local(number) => *number,
            Identity::Shared(_) => 0,
        }
    }

    /// The local owner with this number.
    pub(crate) fn numbered(number: u64) -> Self {
        Owner(Identity::Local(number))
    }

    /// The id of a shared owner.
    pub(crate) fn shared_id(&self) -> Option<&Arc<str>> {
        match &self.0 {
            Identity::Shared(id) => Some(id),
            Identity::Local(_) => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Identity::Local(number) => write!(f, "owner-{number}"),
            Identity::Shared(id) => f.write_str(id),
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

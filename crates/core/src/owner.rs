//! Who asks: the unit of re-entry.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static IN_SCOPE: Owner;
}

/// Who asks for a lock. The same owner gets a lock that it holds again, counted; tasks that share
/// an owner share its locks.
///
/// An owner that asks again before it lets go keeps the lock for as long as it likes: the turns that
/// other owners are given are about hand-offs, not about re-entry.
///
/// To re-enter, `fencing` must be on for the first lock if it is on for the second.
///
/// [`Lock::run`](crate::Lock::run) and `#[lock]` give their body an owner. Any other call with no owner,
/// given or in scope, is its own owner and never re-enters, as with `tokio::sync::Mutex`.
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
    /// A new owner, different from every other of this process.
    #[allow(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(Identity::Local(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// An owner that other processes may be as well: whoever declares the same `id` shares its
    /// locks. Counted at the server, so not every engine can do it.
    pub fn shared(id: impl Into<Arc<str>>) -> Self {
        Owner(Identity::Shared(id.into()))
    }

    /// Runs `body` with this owner in scope: every `lock(..)` built inside is asked for by it.
    /// A task spawned inside has its own scope; give it the owner by another `scope`.
    pub fn scope<F: Future>(&self, body: F) -> impl Future<Output = F::Output> + use<F> {
        IN_SCOPE.scope(self.clone(), body)
    }

    /// The owner in scope.
    pub fn current() -> Option<Self> {
        IN_SCOPE.try_with(Clone::clone).ok()
    }

    /// What tells local owners apart; zero for a shared one.
    pub(crate) fn number(&self) -> u64 {
        match &self.0 {
            Identity::Local(number) => *number,
            Identity::Shared(_) => 0,
        }
    }

    /// The local owner of this number.
    pub(crate) fn numbered(number: u64) -> Self {
        Owner(Identity::Local(number))
    }

    /// The id that other processes know it by.
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

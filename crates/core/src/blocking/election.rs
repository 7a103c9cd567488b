//! Elections for threads: the twins of `Election`, `Campaign` and `Leader`.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use super::{Locker, Thread};
use crate::builder::{RequestBuilder, lease_setters, waiting_setters};
use crate::election::{self, Leadership, Leading};
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::guard::Released;
use crate::options::{Renew, Wait};
use crate::run::RunError;

impl Locker {
    /// Returns `key` as an election, as [`tenure::Locker::election`](crate::Locker::election).
    pub fn election(&self, key: impl AsRef<str>) -> Election {
        Election { inner: self.inner.election(key) }
    }
}

/// A [`tenure::Election`](crate::Election) for threads. To observe it, use [`inner`](Self::inner).
///
/// ```
/// use tenure::{Locker, Memory, blocking};
///
/// let locker = blocking::Locker::new(Locker::new(Memory::space("thread-elections")));
/// let election = locker.election("leader:scheduler");
/// let leader = election.campaign("10.0.0.7:8080").acquire()?;
/// assert_eq!(election.leader()?.expect("it leads").value, "10.0.0.7:8080");
/// leader.resign()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    inner: election::Election,
}

impl Election {
    /// Returns a request to lead with `value`.
    pub fn campaign(&self, value: impl Into<Arc<str>>) -> Campaign {
        Campaign(self.inner.campaign(value).0.of_thread())
    }

    /// Returns who leads now; `None` if nobody does.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Election::leader`](crate::Election::leader), and [`is_invalid`](Error::is_invalid) on a
    /// worker thread of an async runtime.
    pub fn leader(&self) -> Result<Option<Leadership>, Error> {
        self.campaign("").0.thread("leader")?.handle.block_on(self.inner.leader())
    }

    /// The async election that this one was made from.
    pub fn inner(&self) -> &election::Election {
        &self.inner
    }
}

/// A request to lead: set options, then [`acquire`](Self::acquire) it, or [`run`](Self::run) code while leading.
#[must_use = "a campaign does nothing until it is acquired"]
pub struct Campaign(RequestBuilder);

lease_setters!(Campaign);
waiting_setters!(Campaign);

impl Campaign {
    /// Blocks until this process leads, or the wait ends.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Campaign`](crate::Campaign), and [`is_invalid`](Error::is_invalid) on a worker thread of an
    /// async runtime.
    pub fn acquire(self) -> Result<Leader, Error> {
        let thread = self.0.thread("campaign")?;
        let inner = thread.handle.block_on(election::Campaign(self.0).into_future())?;
        Ok(Leader { inner, thread })
    }

    /// Leads while `body` runs, and resigns on every way out. A blocking body cannot be stopped: a loss is reported
    /// when the body has ended. The body itself can check [`Leader::is_held`].
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`acquire`](Self::acquire), and [`RunError::Lost`] with the value
    /// of the body if the leadership was lost before its end.
    pub fn run<T, E>(
        mut self,
        body: impl FnOnce(&Leader) -> Result<T, E>,
    ) -> Result<Result<T, E>, RunError<T>> {
        let owner = self.0.some_owner();
        let leader = self.acquire().map_err(RunError::NotAcquired)?;
        let done = owner.scope_sync(|| body(&leader));
        RunError::unless_lost(done, leader.resign(), Result::is_ok).map_err(RunError::of_success)
    }
}

/// The leadership of this process. Dropping it resigns in the background. It cannot be sent to another thread, because
/// its thread is the owner.
#[must_use = "if unused, the leader resigns at once"]
#[derive(Debug)]
pub struct Leader {
    inner: election::Leader,
    thread: Thread,
}

impl Leader {
    /// The number of this leadership, higher than that of every earlier leader.
    pub fn term(&self) -> Fence {
        self.inner.term()
    }

    /// Whether the leadership can be relied on. Reads the clock and sends no request.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// A view of the leadership, which async code and other threads can use.
    pub fn leading(&self) -> Leading {
        self.inner.leading()
    }

    /// Blocks until the leadership is lost, at most for `longest`. Returns why, or `None` if it was not lost.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) on a worker thread of an async runtime.
    pub fn lost(&self, longest: Duration) -> Result<Option<Loss>, Error> {
        self.thread.wait_at_most("lost", longest, self.inner.lost())
    }

    /// Replaces the value that others see. The term stays the same.
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Leader::proclaim`](crate::Leader::proclaim), and [`is_invalid`](Error::is_invalid) on a
    /// worker thread of an async runtime.
    pub fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<(), Error> {
        self.thread.wait("proclaim", self.inner.proclaim(value))?
    }

    /// Resigns, and waits for the reply of the engine. See [`tenure::Leader::resign`](crate::Leader::resign).
    ///
    /// # Errors
    ///
    /// Those of [`tenure::Leader::resign`](crate::Leader::resign). On a worker thread of an async runtime
    /// [`is_invalid`](Error::is_invalid); the leader then resigns in the background.
    pub fn resign(self) -> Result<Released, Error> {
        self.thread.wait("resign", self.inner.resign())?
    }
}

//! Locks between the processes of one machine, kept by the kernel; no server needed.
//!
//! In: claims. Out: grants that last until they are released or the process ends.
//!
//! In reading order: `dir.rs` the directory, `name.rs` a key's file name, `files.rs` the kernel's lock and
//! **why exclusion holds**, `mark.rs` who waits, `record.rs` who holds, `count.rs` the fence, `state.rs` what
//! this process has to do with it, `take.rs` from claim to grant, `wait.rs` waiting, `heed.rs` noticing others,
//! `end.rs` renewal and release, `look.rs` inspection, `doctor.rs` whether a directory will do.
//!
//! Per lock there are `<name>.lock`, `<name>.json` and, while somebody waits, `<name>.wait`; they go with the
//! release. `fence` stays. File-system calls take microseconds and are made where they are needed; only the wait
//! for a lock, which has no bound, has a thread.
//!
//! Absent on purpose: expiry (the kernel frees a dead process's lock), order among processes (the kernel has none),
//! permits and shared owners.

mod dir;
mod name;
mod files;
mod mark;
mod record;
mod count;
mod state;
mod take;
mod wait;
mod heed;
mod end;
mod look;
mod doctor;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use dir::default_dir;
pub use doctor::examine;

use state::Shared;

use crate::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, LockInfo,
    Loss, Notices, Query, Release, Then,
};
use crate::claim::{Claim, Mode, Token};
use crate::doctor::{Finding, trial};
use crate::error::Error;
use crate::key::Key;
use crate::lease::Lease;
use crate::time::Clock;

/// Locks in a directory, between the processes of one machine.
///
/// The kernel keeps them: a lock ends with its release or with the process that holds it, however
/// that ends, and has no ttl. Processes get their turn in no particular order.
///
/// The directory must belong to the user, be writable to nobody else, and not be on a network file
/// system. Cheap to clone; the locks end when the last clone goes.
///
/// ```
/// use tenure::FileLocks;
///
/// let dir = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
/// let locks = FileLocks::open(&dir)?;
/// assert_eq!(locks.dir(), dir);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileLocks {
    shared: Arc<Shared>,
}

impl FileLocks {
    /// The locks in `dir`, which is made if it is missing (but not its parents).
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if the directory cannot be made, or cannot be trusted: it is a link,
    /// belongs to another user, can be written to by others, or is on a network file system.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_clock(dir.as_ref(), Clock::system()).map_err(|fault| Error::backend(None, fault))
    }

    fn with_clock(dir: &Path, clock: Clock) -> Result<Self, Fault> {
        let dir = dir::absolute(dir)?;
        dir::prepare(&dir)?;
        Ok(FileLocks { shared: Arc::new(Shared::new(dir, clock)) })
    }

    /// Where the locks are.
    pub fn dir(&self) -> &Path {
        self.shared.dir()
    }

    fn check(&self, claim: &Claim) -> Result<(), Fault> {
        let flaw = match claim.mode() {
            Mode::Permits { .. } => "file locks are exclusive: they have no permits",
            Mode::Exclusive if claim.shared_owner().is_some() => {
                "file locks belong to one process: they have no shared owners"
            }
            Mode::Exclusive if self.shared.pid != std::process::id() => {
                return Err(Fault::new(FaultKind::Invalid, FORKED));
            }
            Mode::Exclusive => return Ok(()),
        };
        Err(Fault::new(FaultKind::Unsupported, flaw))
    }
}

/// Why a forked child cannot use what its parent opened.
const FORKED: &str = "the lock directory was opened by the process that forked this one";

impl Backend for FileLocks {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: false,
            expires: false,
            shared_owners: false,
            permits: false,
            adoptable: false,
            forcible: false,
            ..Capabilities::full("file")
        }
    }

    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(self.attempt(claim))
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (index, lease) in leases.iter().enumerate() {
                answers(index, self.renew_one(lease.claim().token()));
            }
        })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move { self.end(lease, then) })
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let held = self.shared.withdraw(claim);
            held.into_iter().for_each(|held| self.shared.give_back(held));
            Ok(())
        })
    }

    fn heed(&self, lease: &Arc<Lease>) {
        self.shared.heed(lease.claim().token());
    }

    fn notices(&self) -> Notices {
        Notices::of(&self.shared.notices)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(self.shared.inspect(query))
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        let state = self.shared.state();
        let fates =
            ended.iter().map(|(_, token)| state.is_buried(*token).then_some(Loss::Session.into()));
        let fates = fates.collect();
        Box::pin(async { Ok(fates) })
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        _by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.force_release(key, seen))
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(async move {
            let mut findings = doctor::look(self.dir());
            findings.push(trial(self, ttl).await);
            findings
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // There is no connection; what is held is released lease by lease.
        Box::pin(async {})
    }
}

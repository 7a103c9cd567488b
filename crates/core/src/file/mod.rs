//! Locks between the processes of one machine, kept by the kernel; no server needed.
//!
//! In: claims. Out: grants that end with their release or with the process.
//!
//! Reading order: `dir.rs` the directory, `name.rs` the file name of a key, `files.rs` the kernel's lock and **why
//! exclusion holds**, `waiter_mark.rs` the mark of waiters, `writer_mark.rs` that of writers, `record.rs` the
//! description of the holder, `readers.rs` that of readers, `fence.rs` the fence counter, `state.rs` the holds and
//! waits of this process, `acquire.rs` from claim to grant, `wait.rs` waiting, `contention.rs` detecting waiters,
//! `release.rs` renewal and release, `inspect.rs` inspection, `doctor.rs` checks of a directory.
//!
//! Each lock has `<name>.lock`, `<name>.json`, while the record is written `<name>.tmp`, and while claims wait
//! `<name>.wait`, and `<name>.want` if a writer waits. Each reader has `<name>.~<fence>.0`. The release removes them.
//! The file `fence` stays. File-system calls take microseconds and are made inline. Only the wait for a lock, which has
//! no limit, has a thread.
//!
//! Absent on purpose: expiry (the kernel frees the lock of a dead process), order among processes (the kernel
//! has none), permits and shared owners.

mod dir;
mod name;
mod files;
mod waiter_mark;
mod writer_mark;
mod readers;
mod record;
mod fence;
mod state;
mod acquire;
mod wait;
mod contention;
mod release;
mod inspect;
mod doctor;
#[cfg(test)]
#[cfg(unix)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use dir::default_dir;
pub use doctor::diagnose;

use state::FileEngine;

use crate::backend::{Answers, Backend, Notices, Operator};
use crate::claim::Claim;
use crate::doctor::{Finding, self_test};
use crate::error::Error;
use crate::fault::{Fault, FaultKind, Loss};
use crate::grant::{AfterRelease, Attempt, Capabilities, Grant, Release};
use crate::key::Key;
use crate::lease::Lease;
use crate::mode::Mode;
use crate::report::{ClaimEnd, LockInfo, Query};
use crate::time::Clock;
use crate::token::Token;
use async_trait::async_trait;

/// Locks in a directory, between the processes of one machine.
///
/// The kernel keeps them: a lock ends with its release or with the process that holds it, no matter how the
/// process ends. It has no ttl. Waiting processes acquire it in no particular order.
///
/// The directory must belong to the user, must not be writable by other users, and must not be on a network
/// file system. Cheap to clone; the locks end when the last clone is dropped.
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
    shared: Arc<FileEngine>,
}

impl FileLocks {
    /// Opens the locks in `dir`. The directory is created if it is missing, but its parents are not.
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if the directory cannot be created or cannot be trusted: it is a
    /// link, belongs to another user, can be written to by others, or is on a network file system.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_clock(dir.as_ref(), Clock::system()).map_err(|fault| Error::backend(None, fault))
    }

    fn with_clock(dir: &Path, clock: Clock) -> Result<Self, Fault> {
        let dir = dir::absolute(dir)?;
        dir::prepare(&dir)?;
        Ok(FileLocks { shared: Arc::new(FileEngine::new(dir, clock)) })
    }

    /// The directory of the locks.
    pub fn dir(&self) -> &Path {
        self.shared.dir()
    }

    fn check(&self, claim: &Claim) -> Result<(), Fault> {
        let flaw = match claim.mode() {
            Mode::Permits { .. } => "the kernel does not count file locks: they have no permits",
            Mode::SharedOwner(_) => "file locks belong to one process: they have no shared owners",
            Mode::Exclusive | Mode::Read if self.shared.pid != std::process::id() => {
                return Err(Fault::new(FaultKind::Invalid, FORKED));
            }
            Mode::Exclusive | Mode::Read => return Ok(()),
        };
        Err(Fault::new(FaultKind::Unsupported, flaw))
    }
}

/// The error of a forked child that uses a directory opened by its parent.
const FORKED: &str = "the lock directory was opened by the process that forked this one";

#[async_trait]
impl Backend for FileLocks {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: false,
            expires: false,
            shared_owners: false,
            permits: false,
            adoptable: false,
            force_release: false,
            ..Capabilities::full("file")
        }
    }

    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.attempt(claim).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.wait(claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        for (index, lease) in leases.iter().enumerate() {
            answers(index, self.renew_one(lease));
        }
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.end(lease, then)
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        let held = self.shared.withdraw(claim);
        held.into_iter().for_each(|held| self.shared.give_back(held));
        Ok(())
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        self.shared.watch_contention(lease.claim().token());
    }

    fn subscribe(&self, _: Duration) -> Notices {
        self.shared.notifier.notices()
    }

    async fn close(&self) {
        // There is no connection; held locks are released lease by lease.
    }

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for FileLocks {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.shared.inspect(query).await
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        let state = self.shared.state();
        let reasons = ended
            .iter()
            .map(|(_, token)| state.is_recorded_dead(*token).then_some(Loss::Session.into()));
        let reasons = reasons.collect();
        Ok(reasons)
    }

    async fn force_release(&self, key: &Key, seen: Token, _by: &str) -> Result<Release, Fault> {
        self.shared.force_release(key, seen).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        let mut findings = doctor::look(self.dir());
        findings.push(self_test(self, ttl).await);
        findings
    }
}

//! The contract between the core and an engine that stores the locks.
//!
//! In: claims and leases. Out: typed answers, never a guess. In this module, "the core" is the code that
//! calls a [`Backend`].
//!
//! # Contract
//!
//! - **Atomic.** Each call takes effect at one moment at the server, or not at all.
//! - **By token.** A claim is granted, renewed, released or abandoned under its token only. No call affects a
//!   newer claim.
//! - **Idempotent.** Every call may be repeated. A claim that was granted is granted again with the same
//!   fence or a higher one, never a lower one. If the first grant has ended meanwhile, the second is a new
//!   grant. A repeated `release` returns [`Release::NotHeld`] after the first one was answered. A repeated
//!   `abandon` does nothing.
//! - **Never shorter.** After a renewal or a second grant the server keeps the lock at least as long as it
//!   would have without it, whatever ttl was requested: the holder relies on the longer time.
//! - **Unknown is an answer.** If the server may or may not have done it, the fault is
//!   [`FaultKind::Unknown`]. The core then repeats the call, abandons the claim, or waits until the lease has
//!   ended by its clock. It repeats a `release` with the same [`AfterRelease`].
//! - **Bounded.** Every call except `acquire` and `run` ends within the backend's response time-out;
//!   `diagnose` makes many requests, and needs at most that time for each. The core does not rely on it, and
//!   treats the result as unknown after 10 s, or after 1.25 times [`Capabilities::call_time`] if that is
//!   longer; after 60 s for an inspection of many locks; at the end of the leases for a renewal. Only
//!   `diagnose` has no such limit.
//! - **Cancelled means undone later.** Dropping a future sends nothing to the server, and a request that was
//!   sent may still take effect. The core undoes it with `abandon` or `release`. Every claim that was ever
//!   sent ends with one of the two, also a lost one, and its token is never used again. If the server would
//!   keep something for longer than a ttl after that, the backend itself continues to undo it.
//! - **One future per claim.** At most one `acquire` of a claim exists at a time. When an `acquire` future is
//!   dropped, nothing works for the claim until the core calls `acquire` or `abandon`, which it does at once.
//! - **Times are safe.** [`Validity::Lease::from`] is read from [`clock`](Backend::clock) *before* the
//!   request is sent. It may be earlier than the call that returns it.
//!
//! Not part of a backend: deadlines, re-entry, hand-over between tasks, the schedule of renewals, and the
//! handling of losses. The core does these, so that they are the same on every engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;

use crate::claim::Claim;
use crate::doctor::{self, Finding};
use crate::key::Key;
use crate::lease::Lease;
use crate::time::Clock;
use crate::token::Token;

pub use crate::change_hints::{Hint, HintSender, Hints, hints};
pub use crate::fault::{Fault, FaultKind, Loss};
pub use crate::grant::{AfterRelease, Attempt, Capabilities, Grant, Release, Renewal, Validity};
pub use crate::report::{ClaimEnd, Holding, LockInfo, Query, Waiting};

/// How many notices a locker may be behind. If it misses some, it gets [`Notice::Reconnected`].
const NOTICES_KEPT: usize = 1024;

/// A boxed future that can be sent between threads; boxed so that [`Backend`] is object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An engine that stores locks. The [module](self) documents what it must guarantee.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this engine can and cannot do.
    fn capabilities(&self) -> Capabilities;

    /// The clock of all times in its answers.
    fn clock(&self) -> Clock;

    /// Tries once. "Held by another" is an answer, not an error.
    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault>;

    /// Waits until the claim is granted. Meanwhile the backend calls [`Claim::report_wait`] with the holder,
    /// or with an error of the server that may be temporary. The first report is due within the response
    /// time-out, because other tasks of the process wait for it. If called again with a claim that is queued
    /// already, it continues at the same position.
    ///
    /// An error means that this claim can no longer be granted. A server that cannot be reached is not such
    /// an error: the backend calls [`Claim::report_wait`] after each attempt and retries. The core decides
    /// how long the caller waits for it.
    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault>;

    /// Extends each lease to its current [`Lease::ttl`], in one batch, and calls `answers` for each lease as
    /// soon as its result is known, so that a slow shard does not delay the others. No answer means unknown.
    /// Never revives a lease that has ended. The ttl may change during the call: read it once.
    ///
    /// If the label of the claim [was changed](Claim::new_label), the new one is shown with the lock when the answer
    /// is `Renewed`. An engine that cannot do this says so in [`Capabilities::relabels`].
    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>);

    /// Releases the lock, or keeps it closed to everyone for some more time.
    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault>;

    /// Undoes everything that this claim has acquired or queued, including the effect of requests that are
    /// still under way. After an error the claim may not be undone, and the core calls again.
    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault>;

    /// Takes over a lock that another process has relinquished, under the same token. Returns its new
    /// validity, or `None` if the lock is no longer held under that token, or together with others.
    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        let _ = claim;
        Err(self.capabilities().not_adoptable())
    }

    /// Makes a lease independent of this process, so that another process can [`adopt`](Self::adopt) it
    /// within its ttl. Afterwards this process does not renew it.
    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        let _ = lease;
        Err(self.capabilities().not_adoptable())
    }

    /// Tasks of this process wait for the lock of `lease`, or several readers share it. Until the lease ends,
    /// send [`Notice::Contended`] once if another process waits for it too, also if it waits already. Called again
    /// for a lease after a renewal that saw no waiter: the next one is to be reported too. Engines that report
    /// every waiter need not implement this. Must not block or call back.
    fn watch_contention(&self, lease: &Arc<Lease>) {
        let _ = lease;
    }

    /// The background work of the backend, such as keeping sessions and connections alive. It runs on the
    /// core's background thread, from before the first claim until the last `Locker` and guard are dropped.
    async fn run(&self) {}

    /// Called before the first claim. Returns the notices for one locker from then on: each call returns a
    /// separate stream. Most claims will have `default_ttl`; an engine that keeps several locks alive
    /// together can prepare for it. Must not block.
    fn subscribe(&self, default_ttl: Duration) -> Notices;

    /// Closes the connections that this backend has opened itself.
    async fn close(&self);

    /// What operators and watches need, if this engine has it.
    fn operator(&self) -> Option<&dyn Operator> {
        None
    }
}

/// What an engine offers to those who look at locks and intervene: `ls`, `show`, `watch`, `force_release`, `doctor`.
/// Locks work without it.
#[async_trait]
pub trait Operator: Backend {
    /// Returns who holds and who waits for the locks of `query`.
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault>;

    /// Reports from now on which locks of `query` have changed, until the returned value is dropped; one stream for
    /// each watch. It may report changes of other locks too. `None` if this engine cannot report changes, or lacks
    /// the rights; the watch then polls all locks.
    async fn change_hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        let _ = query;
        Ok(None)
    }

    /// How claims ended that no longer hold their lock, as far as the engine knows; `None` for the others,
    /// which are judged by the clock. An engine remembers a forced release for as long as the lease would
    /// have been valid.
    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        Ok(vec![None; ended.len()])
    }

    /// Releases the lock in place of the holder with the token `seen`, and notifies that holder with a
    /// [`Notice::Lost`].
    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault>;

    /// Checks what makes locks with this ttl unsafe, with advice for each finding. Leaves nothing behind at
    /// the server. A server that cannot be reached is a finding too.
    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        vec![doctor::self_test(self, ttl).await]
    }
}

/// Receives the answer to the renewal of the lease with this index.
pub type Answers<'a> = dyn Fn(usize, Renewal) + Send + Sync + 'a;

/// A message that a backend sends on its own. Notices are hints: correctness never depends on the arrival of
/// one, and a notice may arrive before the grant that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Another process waits for the lock that this claim holds.
    Contended {
        /// The key of the lock.
        key: Key,
        /// The claim that holds it.
        token: Token,
    },
    /// The lock of this claim was lost.
    Lost {
        /// The key of the lock.
        key: Key,
        /// The claim that held it.
        token: Token,
        /// Why it was lost.
        loss: Loss,
    },
    /// The connection was restored: all leases must be renewed now.
    Reconnected,
}

/// Sends notices to every locker on a backend. Clones send to the same lockers.
#[derive(Clone, Debug)]
pub struct Notifier(broadcast::Sender<Notice>);

impl Default for Notifier {
    fn default() -> Self {
        Notifier(broadcast::Sender::new(NOTICES_KEPT))
    }
}

impl Notifier {
    /// Sends a notice to the lockers that there are.
    pub fn send(&self, notice: Notice) {
        // An error means that there is no locker: then the notice is not needed.
        let _ = self.0.send(notice);
    }

    /// The notices that are sent from now on.
    pub fn notices(&self) -> Notices {
        Notices(self.0.subscribe())
    }
}

/// A stream of [`Notice`]s.
#[derive(Debug)]
pub struct Notices(broadcast::Receiver<Notice>);

impl Notices {
    /// The next notice; `None` when the backend is gone. Dropping the future loses no notice.
    ///
    /// If notices were missed, the result is [`Notice::Reconnected`], because anything may have happened.
    pub async fn next(&mut self) -> Option<Notice> {
        match self.0.recv().await {
            Ok(notice) => Some(notice),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Notice::Reconnected),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

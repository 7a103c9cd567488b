//! `memory:`, locks inside one process. The reference: the contract in plain Rust.
//!
//! In: claims of the `Locker`s of this process. Out: the replies that every server should give.
//!
//! Absent on purpose: networks, and so every result that can be `Unknown`.

mod space;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::backend::{Answers, Backend, Notices, Operator};
use crate::change_hints::Hints;
use crate::claim::Claim;
use crate::doctor::{Check, Finding, self_test};
use crate::error::Error;
use crate::fault::{Fault, Loss};
use crate::grant::{AfterRelease, Attempt, Capabilities, Grant, Release, Renewal, Validity};
use crate::holder::WaitStatus;
use crate::key::Key;
use crate::lease::Lease;
use crate::report::{ClaimEnd, LockInfo, Query};
use crate::time::Clock;
use crate::token::Token;
use async_trait::async_trait;
use space::{Answer, Space};

/// Locks in the memory of this process: for tests, for single-process programs, and as the reference for
/// every other engine.
///
/// Values created with the same name share their locks, like clients of one server.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("docs"));
/// let guard = locker.lock("order:42").await?;
/// assert!(locker.try_lock("order:42").await?.is_none());
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In tests of your own code, make a lock disappear and check what your code does:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let server = Memory::space("my-test");
/// let guard = Locker::new(server.clone()).lock("order:42").await?;
/// server.revoke("order:42")?;
/// guard.lost().await; // resolves: the holder has been notified
/// assert!(!guard.is_held());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    space: Arc<Space>,
}

impl Memory {
    /// The locks with this `name` in this process. `memory:` uses the empty name.
    pub fn space(name: &str) -> Self {
        static SPACES: OnceLock<Mutex<HashMap<String, Memory>>> = OnceLock::new();
        let spaces = SPACES.get_or_init(Mutex::default);
        let mut spaces = spaces.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.entry(name.into()).or_insert_with(|| Memory::with_clock(Clock::system())).clone()
    }

    /// Separate locks, on `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Memory { space: Arc::new(Space::new(clock)) }
    }

    /// Removes the holder of `key`, as if its ttl had passed. As on a server, the holder notices it at its
    /// next renewal. Returns `true` if the lock was held.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not a valid [`Key`].
    pub fn expire(&self, key: &str) -> Result<bool, Error> {
        Ok(!self.space.evict(&Key::new(key)?).is_empty())
    }

    /// Like [`expire`](Self::expire), and notifies the holder at once.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not a valid [`Key`].
    pub fn revoke(&self, key: &str) -> Result<bool, Error> {
        let key = Key::new(key)?;
        let evicted = self.space.evict(&key);
        for token in &evicted {
            self.space.notify_lost(&key, *token, Loss::Gone);
        }
        Ok(!evicted.is_empty())
    }

    async fn wait_for(&self, claim: &Claim) -> Result<Grant, Fault> {
        loop {
            match self.space.queue(claim)? {
                Answer::Granted(grant) => return Ok(grant),
                Answer::Wait { holder, position, changed, until } => {
                    claim.report_wait(WaitStatus::of(holder, Some(position)));
                    tokio::select! {
                        () = changed.notified() => {}
                        () = self.space.clock().sleep_until(until) => {}
                    }
                }
            }
        }
    }

    fn renew_one(&self, lease: &Lease) -> Renewal {
        let (from, ttl) = (self.space.clock().now(), lease.ttl());
        match self.space.renew(lease.claim(), from, ttl) {
            Some(contended) => {
                Renewal::Renewed { validity: Validity::Lease { from, ttl }, contended }
            }
            None => {
                let forced = self.space.forced(lease.claim().token());
                Renewal::Lost(forced.unwrap_or(Loss::Gone))
            }
        }
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full("memory")
    }

    fn clock(&self) -> Clock {
        self.space.clock().clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.space.ask(claim)
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.wait_for(claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        for (index, lease) in leases.iter().enumerate() {
            answers(index, self.renew_one(lease));
        }
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        let (from, ttl) = (self.space.clock().now(), claim.ttl());
        let held = self.space.renew(claim, from, ttl).is_some();
        Ok(held.then_some(Validity::Lease { from, ttl }))
    }

    async fn relinquish(&self, _: &Arc<Lease>) -> Result<(), Fault> {
        Ok(())
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        Ok(self.space.release(lease.claim(), then))
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.space.abandon(claim);
        Ok(())
    }

    fn subscribe(&self, _: Duration) -> Notices {
        self.space.notifier.notices()
    }

    async fn close(&self) {}

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for Memory {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        Ok(self.space.inspect(query))
    }

    async fn change_hints(&self, _: &Query) -> Result<Option<Hints>, Fault> {
        Ok(Some(self.space.hints()))
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        let reason = |(_, token): &(Key, Token)| self.space.forced(*token).map(ClaimEnd::from);
        Ok(ended.iter().map(reason).collect())
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        Ok(self.space.force_release(key, seen, by))
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        let scope = Check::new("scope", "memory:", "see who shares these locks");
        let scope = scope.warning(
            "only the tasks of this process: no other process is excluded",
            "for several processes use `file:DIR`, `redis://HOST` or `etcd://HOST`",
        );
        vec![scope, self_test(self, ttl).await]
    }
}

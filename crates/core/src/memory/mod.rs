//! `memory:`, locks inside one process. The reference: the contract in plain Rust.
//!
//! In: claims of this process's `Locker`s. Out: the answers any server should give.
//!
//! Absent on purpose: networks, and with them everything that can be `Unknown`.

mod space;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, LockInfo,
    Loss, Notices, Query, Release, Renewal, Term, Then,
};
use crate::claim::{Claim, Mode, Sight, Token};
use crate::doctor::{Check, Finding, trial};
use crate::error::Error;
use crate::key::Key;
use crate::lease::Lease;
use crate::time::Clock;
use space::{Answer, Space};

/// Locks in the memory of this process: for tests, for one-process programs, and as the reference
/// for every other engine.
///
/// Values made from the same name share their locks, like clients of one server.
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
/// In tests of your own code, make a lock go away and see what your code does:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let server = Memory::space("my-test");
/// let guard = Locker::new(server.clone()).lock("order:42").await?;
/// server.revoke("order:42")?;
/// guard.lost().await; // resolves: the holder has been told
/// assert!(!guard.is_held());
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    space: Arc<Space>,
}

impl Memory {
    /// The locks known by `name` in this process. The empty name is what `memory:` means.
    pub fn space(name: &str) -> Self {
        static SPACES: OnceLock<Mutex<HashMap<String, Memory>>> = OnceLock::new();
        let spaces = SPACES.get_or_init(Mutex::default);
        let mut spaces = spaces.lock().unwrap_or_else(PoisonError::into_inner);
        spaces.entry(name.into()).or_insert_with(|| Memory::with_clock(Clock::system())).clone()
    }

    /// Locks of their own, on `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Memory { space: Arc::new(Space::new(clock)) }
    }

    /// Forgets who holds `key`, as if its ttl had passed. The holder finds out as it would on a
    /// server: at its next renewal. `true` if it was held.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a name that is no [`Key`].
    pub fn expire(&self, key: &str) -> Result<bool, Error> {
        Ok(!self.space.evict(&Key::new(key)?).is_empty())
    }

    /// As [`expire`](Self::expire), and tells the holder at once.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a name that is no [`Key`].
    pub fn revoke(&self, key: &str) -> Result<bool, Error> {
        let key = Key::new(key)?;
        let evicted = self.space.evict(&key);
        for token in &evicted {
            self.space.tell_lost(&key, *token, Loss::Gone);
        }
        Ok(!evicted.is_empty())
    }

    async fn wait_for(&self, claim: &Claim) -> Result<Grant, Fault> {
        refuse_permits(claim)?;
        loop {
            match self.space.queue(claim)? {
                Answer::Granted(grant) => return Ok(grant),
                Answer::Wait { holder, place, changed, until } => {
                    claim.saw(Sight::of(holder, Some(place)));
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
            Some(contended) => Renewal::Renewed { term: Term::Lease { from, ttl }, contended },
            None => Renewal::Lost(Loss::Gone),
        }
    }
}

fn refuse_permits(claim: &Claim) -> Result<(), Fault> {
    match claim.mode() {
        Mode::Exclusive => Ok(()),
        Mode::Permits { .. } => {
            Err(Fault::new(FaultKind::Unsupported, "`memory:` grants exclusive claims only"))
        }
    }
}

impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("memory");
        can.permits = false;
        can
    }

    fn clock(&self) -> Clock {
        self.space.clock().clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(async move {
            refuse_permits(claim)?;
            self.space.ask(claim)
        })
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.wait_for(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (index, lease) in leases.iter().enumerate() {
                answers(index, self.renew_one(lease));
            }
        })
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        Box::pin(async move {
            let (from, ttl) = (self.space.clock().now(), claim.ttl());
            let held = self.space.renew(claim, from, ttl).is_some();
            Ok(held.then_some(Term::Lease { from, ttl }))
        })
    }

    fn let_go<'a>(&'a self, _: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move { Ok(self.space.release(lease.claim(), then)) })
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            self.space.abandon(claim);
            Ok(())
        })
    }

    fn notices(&self) -> Notices {
        self.space.notices()
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(async move { Ok(self.space.inspect(query)) })
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        Box::pin(
            async move { Ok(ended.iter().map(|(_, token)| self.space.fate(*token)).collect()) },
        )
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move { Ok(self.space.force_release(key, seen, by)) })
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        let scope = Check::new("scope", "memory:", "see who shares these locks");
        let scope = scope.warning(
            "only the tasks of this process: no other process is excluded",
            "for several processes use `file:DIR`, `redis://HOST` or `etcd://HOST`",
        );
        Box::pin(async move { vec![scope, trial(self, ttl).await] })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

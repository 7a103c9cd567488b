//! Changes that have to be undone at the server, however long that takes.
//!
//! In: cleanups that failed, or that nobody waits for. Out: the same cleanups, until they are done. `background.rs`
//! runs them. This module sends no request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Clock, Time};
use tokio::sync::Notify;

use crate::claim_key::ClaimKey;

/// A change to undo.
#[derive(Clone, Debug)]
pub(crate) enum Cleanup {
    /// A lease without keys of ours, and its ttl.
    Revoke(i64, Duration),
    /// A claim that was abandoned.
    Undo(Arc<ClaimKey>),
    /// A lock that is to be released, or kept closed until the given time.
    Release(Arc<ClaimKey>, Option<Time>),
}

impl Cleanup {
    fn is_for(&self, claim_key: &Arc<ClaimKey>) -> bool {
        match self {
            Cleanup::Undo(claim) | Cleanup::Release(claim, _) => Arc::ptr_eq(claim, claim_key),
            Cleanup::Revoke(..) => false,
        }
    }

    fn is(&self, other: &Cleanup) -> bool {
        match (self, other) {
            (Cleanup::Revoke(one, _), Cleanup::Revoke(other, _)) => one == other,
            (Cleanup::Undo(_), Cleanup::Undo(other)) => self.is_for(other),
            (Cleanup::Release(..), Cleanup::Release(other, _)) => self.is_for(other),
            _ => false,
        }
    }
}

/// The queued cleanups, each with the time at which the server has done it by itself.
#[derive(Debug)]
pub(crate) struct Cleanups {
    clock: Clock,
    queue: Mutex<Vec<(Cleanup, Time)>>,
    /// Notified when a cleanup was queued.
    pub(crate) queued: Notify,
}

impl Cleanups {
    pub(crate) fn new(clock: Clock) -> Self {
        Cleanups { clock, queue: Mutex::default(), queued: Notify::new() }
    }

    /// Queues a cleanup, to be run as soon as possible.
    pub(crate) fn queue(&self, cleanup: Cleanup) {
        let until = match &cleanup {
            // A new leader gives every lease its whole ttl again, so the lease may last twice as long.
            Cleanup::Revoke(_, ttl) => self.clock.now().after(ttl.saturating_mul(2)),
            // A session that lives on does not delete the key.
            Cleanup::Undo(_) | Cleanup::Release(..) => Time::NEVER,
        };
        let mut queue = self.locked();
        if !queue.iter().any(|(queued, _)| queued.is(&cleanup)) {
            queue.push((cleanup, until));
        }
        drop(queue);
        self.queued.notify_one();
    }

    /// The queued cleanups, without those that the server has done by itself.
    pub(crate) fn pending(&self) -> Vec<Cleanup> {
        let (mut queue, now) = (self.locked(), self.clock.now());
        queue.retain(|(_, until)| now < *until);
        queue.iter().map(|(cleanup, _)| cleanup.clone()).collect()
    }

    /// Removes a cleanup.
    pub(crate) fn done(&self, cleanup: &Cleanup) {
        self.locked().retain(|(queued, _)| !queued.is(cleanup));
    }

    /// Removes all cleanups of this claim.
    pub(crate) fn done_for(&self, claim_key: &Arc<ClaimKey>) {
        self.locked().retain(|(queued, _)| !queued.is_for(claim_key));
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(Cleanup, Time)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

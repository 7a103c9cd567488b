//! Releases and abandoned claims.
//!
//! In: leases and claims. Out: their final state at the server.
//!
//! Every transaction has a condition on our key's create revision (or on its value). So a request that runs
//! late cannot hit a later claim. If the key may be on another session of ours, the transaction also has a
//! condition on its lease. A cleanup that fails is queued, and `background.rs` repeats it.
//! Otherwise the key would stay on a shared session for as long as the session lives.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Fault, Loss, Release};
use tenure_core::time::Time;
use tenure_core::{Claim, Lease};

use crate::claim_key::{ClaimKey, ClaimKeys, KeyState};
use crate::cleanup::{Cleanup, Cleanups};
use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::Link;
use crate::proto::{KeyValue, LeaseGrantRequest, RangeResponse, TxnRequest};
use crate::session::{seconds, whole_seconds};
use crate::sessions::Sessions;

/// The shortest lease that a server grants, in seconds.
const LEASE_MIN: i64 = 2;

/// The result of a release request.
enum ReleaseOutcome {
    /// The lock was ours, and is released.
    Released,
    /// The lock was not ours, or not any more.
    NotHeld,
    /// The key is on another session of ours: send the release again.
    Moved,
}

impl From<ReleaseOutcome> for Release {
    fn from(outcome: ReleaseOutcome) -> Release {
        match outcome {
            ReleaseOutcome::Released => Release::Freed,
            ReleaseOutcome::NotHeld | ReleaseOutcome::Moved => Release::NotHeld,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Releaser {
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) cleanups: Arc<Cleanups>,
}

impl Releaser {
    /// Releases the lock, or keeps it closed for a while.
    pub(crate) async fn release(
        &self,
        lease: &Lease,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        let Some(claim_key) = self.claim_keys.get(lease.claim().token()) else {
            return Ok(Release::NotHeld);
        };
        claim_key.end();
        let ours = self.calls.now() < lease.valid_until();
        let mut answer = self.release_once(&claim_key, ours, then).await;
        // An earlier request had moved the key to another session.
        if let Ok(ReleaseOutcome::Moved) = answer {
            answer = self.release_once(&claim_key, ours, then).await;
        }
        match answer {
            // The key is gone, but a request may still create it.
            Ok(ReleaseOutcome::NotHeld) if claim_key.snapshot().in_flight => {
                self.cleanups.queue(Cleanup::Undo(claim_key));
                Ok(Release::NotHeld)
            }
            Ok(outcome) => {
                self.remove_claim(&claim_key);
                Ok(outcome.into())
            }
            Err(error) => {
                let closed = match then {
                    AfterRelease::Free => None,
                    AfterRelease::Cooldown(rest) => Some(self.calls.now().after(rest)),
                };
                self.cleanups.queue(Cleanup::Release(claim_key, closed));
                Err(error.into())
            }
        }
    }

    /// Runs a queued cleanup, by requests on `link`.
    pub(crate) async fn clean_up(&self, cleanup: &Cleanup, link: &Link) -> Result<(), EngineError> {
        match cleanup {
            Cleanup::Revoke(lease, _) => link.revoke(*lease).await,
            Cleanup::Undo(claim_key) => self.undo(claim_key, link).await,
            Cleanup::Release(claim_key, closed) => {
                self.release_late(claim_key, *closed, link).await
            }
        }
    }

    /// Repeats a release that failed, and keeps the lock closed for the rest of its time.
    async fn release_late(
        &self,
        claim_key: &Arc<ClaimKey>,
        closed: Option<Time>,
        link: &Link,
    ) -> Result<(), EngineError> {
        let rest = closed.map_or(Duration::ZERO, |until| until.since(self.calls.now()));
        let then = if rest.is_zero() { AfterRelease::Free } else { AfterRelease::Cooldown(rest) };
        while let ReleaseOutcome::Moved = self.release_once(claim_key, false, then).await? {}
        match claim_key.snapshot().in_flight {
            true => self.undo(claim_key, link).await,
            false => {
                self.remove_claim(claim_key);
                Ok(())
            }
        }
    }

    async fn release_once(
        &self,
        claim_key: &ClaimKey,
        ours: bool,
        then: AfterRelease,
    ) -> Result<ReleaseOutcome, EngineError> {
        let state = claim_key.snapshot();
        match then {
            AfterRelease::Free => {
                self.send_release(claim_key, &state, ours, claim_key.txn_release(&state)).await
            }
            AfterRelease::Cooldown(rest) => {
                Box::pin(self.close_for(claim_key, &state, ours, rest)).await
            }
        }
    }

    async fn close_for(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        ours: bool,
        rest: Duration,
    ) -> Result<ReleaseOutcome, EngineError> {
        let ttl = whole_seconds(rest).max(LEASE_MIN);
        let lease = self.calls.call(LeaseGrantRequest { ttl }).await?.id;
        let answer =
            self.send_release(claim_key, state, ours, claim_key.txn_close(state, lease)).await;
        // If the outcome is unknown, the lease stays: the lock may still be closed with it.
        if matches!(answer, Ok(ReleaseOutcome::Moved | ReleaseOutcome::NotHeld)) {
            self.cleanups.queue(Cleanup::Revoke(lease, seconds(ttl)));
        }
        answer
    }

    /// Sends the release. If the lock was ours when an earlier release was sent whose reply was lost, and no
    /// operator forced a release, the earlier request has released it.
    async fn send_release(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        ours: bool,
        request: TxnRequest,
    ) -> Result<ReleaseOutcome, EngineError> {
        let sent_before = state.release_sent;
        claim_key.set_release_sent(ours);
        let answer = match self.calls.call(request).await {
            // The session is gone, and all keys on it.
            Err(error) if error.kind() == ErrorKind::NoLease => return Ok(ReleaseOutcome::NotHeld),
            answer => answer?,
        };
        if answer.succeeded {
            self.record_blocked(claim_key, state, answer.revision());
            return Ok(ReleaseOutcome::Released);
        }
        Box::pin(self.explain_failure(claim_key, state, sent_before)).await
    }

    /// Finds out why the release failed.
    async fn explain_failure(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        sent_before: Option<bool>,
    ) -> Result<ReleaseOutcome, EngineError> {
        let answer = self.calls.call(claim_key.txn_outcome(&self.keys, state)).await?;
        let mut found = answer.ranges().map(RangeResponse::first);
        let (mine, forced) = (found.next().flatten(), found.next().flatten());
        let is_same = |kv: &KeyValue| kv.create_revision == state.created && kv.lease != 0;
        if let Some(mine) = mine.filter(is_same)
            && mine.lease != state.session.lease()
            && claim_key.locate(mine.lease, mine.mod_revision)
        {
            return Ok(ReleaseOutcome::Moved);
        }
        let by_us = sent_before == Some(true) && forced.is_none();
        Ok(if by_us { ReleaseOutcome::Released } else { ReleaseOutcome::NotHeld })
    }

    /// Records that requests sent before `revision` cannot be executed any more, on a session that outlives
    /// the claim. On a session of one claim, its end has the same effect.
    fn record_blocked(&self, claim_key: &ClaimKey, state: &KeyState, revision: i64) {
        if state.in_flight && !state.session.is_single() {
            state.session.record_revision(revision);
            claim_key.none_in_flight();
        }
    }

    /// Forgets a claim that has nothing left at the server.
    fn remove_claim(&self, claim_key: &Arc<ClaimKey>) {
        self.claim_keys.remove(claim_key.token);
        self.cleanups.done_for(claim_key);
        self.sessions.end_if_single(&claim_key.session());
    }

    pub(crate) async fn abandon(&self, claim: &Claim) -> Result<(), Fault> {
        let Some(claim_key) = self.claim_keys.get(claim.token()) else { return Ok(()) };
        claim_key.end();
        self.undo(&claim_key, &self.calls).await.map_err(|error| {
            self.cleanups.queue(Cleanup::Undo(claim_key));
            error.into()
        })
    }

    /// Undoes what the claim has acquired or queued, or may still acquire.
    async fn undo(&self, claim_key: &Arc<ClaimKey>, link: &Link) -> Result<(), EngineError> {
        let state = claim_key.snapshot();
        let lease = state.session.lease();
        let ended = state.session.loss().is_some() && !state.session.is_foreign();
        if state.sent && (state.in_flight && state.session.is_single() || ended) {
            // Revoking the lease deletes all keys on it, and blocks requests that would put one later.
            state.session.end(Loss::Session);
            if !state.session.is_revoked() {
                link.revoke(lease).await?;
            }
            state.session.set_revoked();
            self.sessions.remove(&state.session);
            self.cleanups.done(&Cleanup::Revoke(lease, state.session.ttl()));
        } else if state.sent {
            match link.call(claim_key.txn_undo(&state)).await {
                Err(error) if error.kind() == ErrorKind::NoLease => {}
                answer => self.record_blocked(claim_key, &state, answer?.revision()),
            }
        }
        self.remove_claim(claim_key);
        Ok(())
    }
}

//! Locks that move: to a session of their own, and to another process.
//!
//! In: held locks, and claims of locks that other processes have relinquished. Out: locks on the session that they
//! need.
//!
//! A key that moves keeps its position in the queue and its fence. A move whose reply was lost is resolved before
//! the lock is relied on again.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fault, Validity};
use tenure_core::{Claim, Lease, Mode};
use tenure_net::ForkGuard;

use crate::claim_key::{ClaimKey, ClaimKeys};
use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::Link;
use crate::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::session::{Kind, Session, SessionValidity, seconds};
use crate::sessions::Sessions;
use crate::value;

#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) fork_guard: ForkGuard,
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) sessions: Arc<Sessions>,
}

impl Transfer {
    /// Moves a held lock to a session of its own with `ttl`, without automatic keep-alives. `false` if the
    /// lock is not ours any more, or if an earlier request may still create its key.
    pub(crate) async fn move_out(
        &self,
        claim_key: &ClaimKey,
        ttl: Duration,
    ) -> Result<bool, EngineError> {
        if claim_key.snapshot().in_flight || !self.resolve_move(claim_key).await? {
            return Ok(false);
        }
        let (session, state) = (self.sessions.single_session(ttl).await?, claim_key.snapshot());
        claim_key.set_moving_to(session.clone());
        let request = claim_key.txn_move(&self.keys, &state, session.lease());
        let answer = self.calls.call(request).await?;
        if !answer.succeeded {
            claim_key.pinned(state.written).inspect(|session| self.sessions.end_if_single(session));
            return Ok(false);
        }
        claim_key.set_moved(&session, answer.revision());
        self.sessions.end_if_single(&state.session);
        Ok(true)
    }

    /// Finds the session of the lock after a move whose reply was lost, and makes a late move fail. Until
    /// then, the validity of its old session proves nothing about the lock. `false` if the lock is not ours.
    pub(crate) async fn resolve_move(&self, claim_key: &ClaimKey) -> Result<bool, EngineError> {
        if !claim_key.may_have_moved() {
            return Ok(true);
        }
        let state = claim_key.snapshot();
        let answer = self.calls.call(claim_key.txn_pin_lease(&state)).await?;
        if answer.succeeded {
            claim_key
                .pinned(answer.revision())
                .inspect(|session| self.sessions.end_if_single(session));
            return Ok(true);
        }
        let mine = answer.ranges().next().and_then(RangeResponse::first);
        let ours = mine.filter(|kv| kv.create_revision == state.created);
        Ok(ours.is_some_and(|kv| claim_key.locate(kv.lease, kv.mod_revision)))
    }

    /// Lets a lease continue without this process, until its ttl is over.
    pub(crate) async fn relinquish(&self, lease: &Lease) -> Result<(), Fault> {
        let Some(claim_key) = self.claim_keys.get(lease.claim().token()) else { return Ok(()) };
        self.resolve_move(&claim_key).await?;
        if !claim_key.session().is_single() && !self.move_out(&claim_key, lease.ttl()).await? {
            let what = "the lock is not ours any more, or cannot go on without this process";
            return Err(self.calls.error(ErrorKind::Busy, what).into());
        }
        self.sessions.remove(&claim_key.session());
        self.claim_keys.remove(claim_key.token);
        Ok(())
    }

    /// Adopts a lock that another process has relinquished.
    pub(crate) async fn adopt(&self, claim: &Claim) -> Result<Option<Validity>, Fault> {
        self.fork_guard.refuse_forked()?;
        let Some(found) = self.find_held(claim).await? else { return Ok(None) };
        let from = self.calls.now();
        let within = self.calls.response_timeout();
        let answer = self.calls.keep_alive(found.lease, within).await?;
        if answer.ttl <= 0 {
            return Ok(None);
        }
        let raft_term = answer.header.unwrap_or_default().raft_term;
        let validity = SessionValidity { from, ttl: seconds(answer.ttl), raft_term };
        // Read again: a lease that a faulty server kept alive by mistake is gone by now, see `session.rs`.
        let Some(found) = self.find_held(claim).await?.filter(|again| again.lease == found.lease)
        else {
            return Ok(None);
        };
        let kind = self.session_kind(&found).await?;
        let session = Arc::new(Session::of(&self.keys, found.lease, kind, claim.ttl(), validity));
        self.claim_keys.adopt(claim, session, found);
        Ok(Some(validity.as_validity()))
    }

    /// Whether the session of the claim `found` belongs to this claim alone. The key of such a session is
    /// written by the transaction that puts the claim on it. The key of a shared session is written
    /// separately.
    async fn session_kind(&self, found: &KeyValue) -> Result<Kind, EngineError> {
        let own = RangeRequest::one(self.keys.session(found.lease)).keys_only();
        let own = self.calls.call(own).await?.first();
        Ok(match own {
            Some(own) if own.mod_revision == found.mod_revision => Kind::Single,
            _ => Kind::Foreign,
        })
    }

    /// The claim's key, if it holds the lock alone. Readers and permits are not relinquished.
    async fn find_held(&self, claim: &Claim) -> Result<Option<KeyValue>, EngineError> {
        let oldest = self.calls.oldest_under(self.keys.queue(claim.key())).await?;
        Ok(oldest.filter(|kv| {
            let token = value::token(&kv.value);
            let alone = self.keys.parse(&kv.key).is_some_and(|(_, mode)| mode == Mode::Exclusive);
            alone && token == Some(claim.token()) && !value::is_closed(&kv.value) && kv.lease != 0
        }))
    }
}

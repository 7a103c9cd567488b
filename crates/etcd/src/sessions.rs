//! The sessions of one locker: one that most locks share, and one for each other lock.
//!
//! In: claims. Out: a session for each claim, alive at that moment, and notices for the holders on a session that is
//! lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Loss, Notice, Notifier};
use tenure_core::{Claim, TTL_DEFAULT};
use tokio::sync::Notify;

use crate::claim_key::ClaimKeys;
use crate::cleanup::{Cleanup, Cleanups};
use crate::epoch::Epoch;
use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::Link;
use crate::proto::{LeaseGrantRequest, Op, RangeRequest, RangeResponse, StatusRequest, TxnRequest};
use crate::session::{Kind, Session, SessionValidity, seconds, whole_seconds};

#[derive(Debug)]
pub(crate) struct Sessions {
    keys: Arc<Keys>,
    calls: Arc<Link>,
    epoch: Arc<Epoch>,
    claim_keys: Arc<ClaimKeys>,
    cleanups: Arc<Cleanups>,
    notifier: Notifier,
    state: Mutex<State>,
    /// Held while the shared session is made, so that it is made once.
    making: tokio::sync::Mutex<()>,
    /// Notified when a session needs attention.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
struct State {
    shared_ttl: Duration,
    shared: Option<Arc<Session>>,
    all: Vec<Arc<Session>>,
}

impl Sessions {
    pub(crate) fn new(
        keys: Arc<Keys>,
        calls: Arc<Link>,
        epoch: Arc<Epoch>,
        claim_keys: Arc<ClaimKeys>,
        cleanups: Arc<Cleanups>,
        notifier: Notifier,
    ) -> Self {
        let state = Mutex::new(State { shared_ttl: TTL_DEFAULT, shared: None, all: vec![] });
        let (making, changed) = Default::default();
        Sessions { keys, calls, epoch, claim_keys, cleanups, notifier, state, making, changed }
    }

    /// Makes locks of this ttl share a session from now on.
    pub(crate) fn share(&self, ttl: Duration) {
        self.state().shared_ttl = ttl;
    }

    /// Whether the claim's lock can be on the shared session: all locks there are kept alive together.
    pub(crate) fn shares(&self, claim: &Claim) -> bool {
        claim.renewed() && claim.ttl() == self.state().shared_ttl
    }

    /// All sessions that have not been removed yet.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.state().all.clone()
    }

    /// Removes a session: it gets no keep-alives any more.
    pub(crate) fn remove(&self, session: &Arc<Session>) {
        let mut state = self.state();
        state.all.retain(|known| !Arc::ptr_eq(known, session));
        state.shared.take_if(|known| Arc::ptr_eq(known, session));
    }

    /// A session for the claim's lock, made if necessary.
    pub(crate) async fn session_for(&self, claim: &Claim) -> Result<Arc<Session>, EngineError> {
        match self.shares(claim) {
            true => self.shared_session(claim.ttl()).await,
            false => self.single_session(claim.ttl()).await,
        }
    }

    async fn shared_session(&self, ttl: Duration) -> Result<Arc<Session>, EngineError> {
        if let Some(session) = self.shared(ttl) {
            return Ok(session);
        }
        let longest = self.calls.connect_timeout() + self.calls.response_timeout();
        // The task that makes the session may be on a runtime that does not run. Wait no longer than a
        // request may take; then make another session, which does no harm.
        let _one = tokio::time::timeout(longest, self.making.lock()).await;
        match self.shared(ttl) {
            Some(session) => Ok(session),
            None => self.new_session(Kind::Shared, ttl).await,
        }
    }

    fn shared(&self, ttl: Duration) -> Option<Arc<Session>> {
        let (state, now) = (self.state(), self.calls.now());
        let usable =
            |session: &&Arc<Session>| session.ttl() == ttl && session.validity(now).is_some();
        state.shared.as_ref().filter(usable).cloned()
    }

    /// A session for one lock.
    pub(crate) async fn single_session(&self, ttl: Duration) -> Result<Arc<Session>, EngineError> {
        self.new_session(Kind::Single, ttl).await
    }

    async fn new_session(&self, kind: Kind, ttl: Duration) -> Result<Arc<Session>, EngineError> {
        // Before sending: the server's ttl starts later.
        let from = self.calls.now();
        let answer = self.calls.call(LeaseGrantRequest { ttl: whole_seconds(ttl) }).await?;
        if answer.id == 0 || answer.ttl <= 0 {
            let what = format_args!("no lease was granted: {}", answer.error);
            return Err(self.calls.error(ErrorKind::Refused, what));
        }
        let session = Arc::new(Session::new(&self.keys, kind, ttl, from, &answer));
        match kind {
            Kind::Shared => self.rewrite_key(&session).await?,
            Kind::Single | Kind::Foreign => self.epoch.ensure_known().await?,
        }
        let mut state = self.state();
        state.all.push(session.clone());
        if kind == Kind::Shared {
            state.shared = Some(session.clone());
        }
        drop(state);
        self.changed.notify_one();
        Ok(session)
    }

    /// Writes the session's own key, so that every request that was sent before fails. Also reads the base of
    /// fences, as every new session must.
    pub(crate) async fn rewrite_key(&self, session: &Session) -> Result<(), EngineError> {
        let epoch = Op::range(RangeRequest::one(self.keys.epoch()));
        let success = vec![Op::put(session.key(), Bytes::new(), session.lease()), epoch];
        let answer = self.calls.call(TxnRequest { success, ..Default::default() }).await?;
        let revision = answer.revision();
        session.record_revision(revision);
        self.epoch.ensure_base(answer.ranges().next(), revision).await.map(drop)
    }

    /// Handles an attempt that failed because the session's own key has changed: records its present
    /// revision. If the key was deleted, writes it again.
    pub(crate) async fn refresh_revision(
        &self,
        session: &Session,
        found: Option<RangeResponse>,
    ) -> Result<(), EngineError> {
        match found.and_then(|found| found.kvs.first().map(|kv| kv.mod_revision)) {
            Some(revision) => session.record_revision(revision),
            None => self.rewrite_key(session).await?,
        }
        Ok(())
    }

    /// How long to wait for a reply that a session depends on.
    pub(crate) fn timeout(&self, session: &Session) -> Duration {
        session.keep_alive_timeout().min(self.calls.response_timeout())
    }

    /// Keeps a session alive, by a request on `link`.
    pub(crate) async fn keep_alive(
        &self,
        session: &Session,
        link: &Link,
    ) -> Result<(), EngineError> {
        // Before sending: the server's ttl starts later.
        let from = link.now();
        let answer = link.keep_alive(session.lease(), self.timeout(session)).await?;
        if answer.id != session.lease() {
            return Err(link.error(ErrorKind::Disconnected, "an answer about another lease"));
        }
        if answer.ttl <= 0 {
            return Err(self.has_ended(session, Loss::Session));
        }
        let header = answer.header.unwrap_or_default();
        let ttl = seconds(answer.ttl);
        let mut validity = SessionValidity { from, ttl, raft_term: header.raft_term };
        if link.has_buggy_member() {
            validity = self.check_with_leader(session, validity, header.member_id, link).await?;
        }
        match session.extend(validity, link.now()) {
            true => Ok(()),
            false => Err(self.has_ended(session, Loss::Expired)),
        }
    }

    /// Checks a keep-alive on a cluster with known bugs. There, a former leader may keep leases alive by
    /// itself, without effect on the leader's leases. Its reply counts if the member leads; otherwise the
    /// leader is asked for the rest of the lease.
    async fn check_with_leader(
        &self,
        session: &Session,
        validity: SessionValidity,
        member: u64,
        link: &Link,
    ) -> Result<SessionValidity, EngineError> {
        let within = self.timeout(session);
        let status = link.call_within(within, StatusRequest {}).await?;
        let raft_term = status.header.map_or(0, |header| header.raft_term);
        if status.leader == member && raft_term == validity.raft_term {
            return Ok(validity);
        }
        let from = link.now();
        let left = link.time_to_live(session.lease(), within).await?;
        if left.ttl < 0 {
            return Err(self.has_ended(session, Loss::Session));
        }
        // The rest is rounded down to whole seconds, and was asked for a little later.
        if seconds(left.ttl + 2) + from.since(validity.from) < validity.ttl {
            link.switch_member();
            return Err(link.error(ErrorKind::TimedOut, "a keep-alive did not reach the leader"));
        }
        let raft_term = left.header.map_or(0, |header| header.raft_term);
        Ok(SessionValidity { from, ttl: seconds(left.ttl), raft_term })
    }

    /// Marks a session as lost. Returns the error for the request that has found out.
    pub(crate) fn has_ended(&self, session: &Session, loss: Loss) -> EngineError {
        self.lose(session, loss);
        self.calls.error(ErrorKind::NoLease, "the session has ended")
    }

    /// Marks a session as lost. It is revoked if it is ours, and the holders of its locks are notified.
    pub(crate) fn lose(&self, session: &Session, loss: Loss) {
        if !session.end(loss.clone()) {
            return;
        }
        if !session.is_foreign() {
            self.cleanups.queue(Cleanup::Revoke(session.lease(), session.ttl()));
        }
        for held in self.claim_keys.held_on(session) {
            let (key, token, loss) = (held.key.clone(), held.token, loss.clone());
            self.notifier.send(Notice::Lost { key, token, loss });
        }
    }

    /// Ends a session that has no lock any more.
    pub(crate) fn end_if_single(&self, session: &Arc<Session>) {
        if session.is_single() && session.end(Loss::Session) {
            self.remove(session);
            self.cleanups.queue(Cleanup::Revoke(session.lease(), session.ttl()));
        }
    }

    /// Ends the shared sessions at the server.
    pub(crate) async fn close(&self) {
        for session in self.all().iter().filter(|session| !session.is_single()) {
            session.end(Loss::Shutdown);
            self.remove(session);
            // If the request fails, the server ends the lease when its ttl is over.
            let _ = self.calls.revoke(session.lease()).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

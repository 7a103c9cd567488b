//! The sessions of one locker: one that most locks share, and one for each of the others.
//!
//! In: claims. Out: a session to hang each on, alive when it is given.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::Claim;
use tenure_core::backend::{Loss, Notice};
use tenure_core::time::Time;
use tokio::sync::Notify;

use crate::backend::Shared;
use crate::link::Link;
use crate::proto::{
    LeaseGrantRequest, LeaseRevokeRequest, Op, RangeRequest, RangeResponse, StatusRequest,
    TxnRequest,
};
use crate::seat::Seat;
use crate::session::{Kind, Lasts, Session, seconds, whole_seconds};
use crate::trouble::{Cause, Trouble};

/// Sessions, and what is still to be undone at the server.
#[derive(Debug)]
pub(crate) struct Sessions {
    state: Mutex<State>,
    /// Held while the shared one is made, so that it is made once.
    making: tokio::sync::Mutex<()>,
    /// Told when there is something new to see to.
    pub(crate) news: Notify,
    /// Told when something is owed.
    pub(crate) owed: Notify,
}

#[derive(Debug)]
struct State {
    shared_ttl: Duration,
    shared: Option<Arc<Session>>,
    all: Vec<Arc<Session>>,
    debts: Vec<Owed>,
}

/// A debt, and when the server has paid it by itself.
#[derive(Clone, Debug)]
struct Owed {
    debt: Debt,
    until: Time,
}

/// Something that is to be undone at the server, however long that takes.
#[derive(Clone, Debug)]
pub(crate) enum Debt {
    /// A lease that nothing of ours hangs on any more, and how long it was for.
    Revoke(i64, Duration),
    /// A claim that was given up.
    Undo(Arc<Seat>),
    /// A lock that was given back, or is to be kept closed until then.
    Release(Arc<Seat>, Option<Time>),
}

impl Debt {
    fn is_for(&self, seat: &Arc<Seat>) -> bool {
        match self {
            Debt::Undo(claim) | Debt::Release(claim, _) => Arc::ptr_eq(claim, seat),
            Debt::Revoke(..) => false,
        }
    }

    fn is(&self, other: &Debt) -> bool {
        match (self, other) {
            (Debt::Revoke(one, _), Debt::Revoke(other, _)) => one == other,
            (Debt::Undo(one), Debt::Undo(other)) => Arc::ptr_eq(one, other),
            (Debt::Release(one, _), Debt::Release(other, _)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Sessions {
    pub(crate) fn new(shared_ttl: Duration) -> Self {
        let (shared, all, debts) = Default::default();
        let state = Mutex::new(State { shared_ttl, shared, all, debts });
        let (news, owed) = (Notify::new(), Notify::new());
        Sessions { state, making: tokio::sync::Mutex::default(), news, owed }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has locks of this ttl share a session from now on.
    pub(crate) fn share(&self, ttl: Duration) {
        self.state().shared_ttl = ttl;
    }

    /// Whether the claim's lock can hang on the session that others hang on: all of them are kept
    /// alive together.
    pub(crate) fn shares(&self, claim: &Claim) -> bool {
        claim.renewed() && claim.ttl() == self.state().shared_ttl
    }

    fn shared(&self, ttl: Duration, now: Time) -> Option<Arc<Session>> {
        let state = self.state();
        let fits = |session: &&Arc<Session>| session.ttl() == ttl && session.lasts(now).is_some();
        state.shared.as_ref().filter(fits).cloned()
    }

    fn add(&self, session: Session) -> Arc<Session> {
        let (session, mut state) = (Arc::new(session), self.state());
        state.all.push(session.clone());
        if !session.is_own() {
            state.shared = Some(session.clone());
        }
        drop(state);
        self.news.notify_one();
        session
    }

    /// Those that are alive or were last time somebody looked.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.state().all.clone()
    }

    /// Nobody sees to it any more.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let mut state = self.state();
        state.all.retain(|known| !Arc::ptr_eq(known, session));
        state.shared.take_if(|known| Arc::ptr_eq(known, session));
    }

    /// Has it done as soon as that can be.
    fn owe(&self, debt: Debt, now: Time) {
        let until = match &debt {
            // A new leader gives every lease its whole ttl again.
            Debt::Revoke(_, ttl) => now.after(ttl.saturating_mul(2)),
            // On a session that lives on, nobody else does it.
            Debt::Undo(_) | Debt::Release(..) => Time::NEVER,
        };
        let mut state = self.state();
        if !state.debts.iter().any(|known| known.debt.is(&debt)) {
            state.debts.push(Owed { debt, until });
        }
        drop(state);
        self.owed.notify_one();
    }

    /// What is owed, without what the server has done by itself meanwhile.
    pub(crate) fn debts(&self, now: Time) -> Vec<Debt> {
        let mut state = self.state();
        state.debts.retain(|owed| now < owed.until);
        state.debts.iter().map(|owed| owed.debt.clone()).collect()
    }

    pub(crate) fn paid(&self, debt: &Debt) {
        self.state().debts.retain(|known| !known.debt.is(debt));
    }

    /// Nothing is owed for this claim any more.
    pub(crate) fn paid_for(&self, seat: &Arc<Seat>) {
        self.state().debts.retain(|known| !known.debt.is_for(seat));
    }
}

impl Shared {
    /// A session for the claim's lock, made if need be.
    pub(crate) async fn session_for(&self, claim: &Claim) -> Result<Arc<Session>, Trouble> {
        match self.sessions.shares(claim) {
            true => self.shared_session(claim.ttl()).await,
            false => self.own_session(claim.ttl()).await,
        }
    }

    async fn shared_session(&self, ttl: Duration) -> Result<Arc<Session>, Trouble> {
        if let Some(session) = self.sessions.shared(ttl, self.clock.now()) {
            return Ok(session);
        }
        let longest = self.calls.connect_timeout() + self.calls.response_timeout();
        // The task that makes it may be on a runtime that stands still. It is waited for as long as a request may take;
        // then another session is made, which does no harm.
        let _one = tokio::time::timeout(longest, self.sessions.making.lock()).await;
        match self.sessions.shared(ttl, self.clock.now()) {
            Some(session) => Ok(session),
            None => self.new_session(Kind::Shared, ttl).await,
        }
    }

    pub(crate) async fn own_session(&self, ttl: Duration) -> Result<Arc<Session>, Trouble> {
        self.new_session(Kind::Own, ttl).await
    }

    async fn new_session(&self, kind: Kind, ttl: Duration) -> Result<Arc<Session>, Trouble> {
        // Before sending: the server's ttl starts after this.
        let from = self.clock.now();
        let answer = self.calls.call(LeaseGrantRequest { ttl: whole_seconds(ttl) }).await?;
        if answer.id == 0 || answer.ttl <= 0 {
            return Err(self.trouble(Cause::Refused, "no lease was granted", &answer.error));
        }
        let session = Session::new(&self.keys, kind, ttl, from, &answer);
        match kind {
            Kind::Shared => self.renew_guard(&session).await?,
            Kind::Own | Kind::Foreign => self.need_epoch().await?,
        }
        Ok(self.sessions.add(session))
    }

    /// Writes the session's own key: from now on everything fails that was sent before. Looks at the base of fences
    /// besides, as every session does that begins.
    pub(crate) async fn renew_guard(&self, session: &Session) -> Result<(), Trouble> {
        let key = session.key();
        let epoch = Op::range(RangeRequest::one(self.keys.epoch()));
        let success = vec![Op::put(key, Bytes::new(), session.lease()), epoch];
        let answer = self.calls.call(TxnRequest { success, ..Default::default() }).await?;
        let revision = answer.revision();
        session.guard_moved(revision);
        self.see_epoch(answer.ranges().next(), revision).await.map(drop)
    }

    /// An attempt was void because the session's own key has changed, as it was found to have. One that
    /// somebody has deleted is written anew.
    pub(crate) async fn see_guard(
        &self,
        session: &Session,
        found: Option<RangeResponse>,
    ) -> Result<(), Trouble> {
        match found.and_then(|found| found.kvs.first().map(|kv| kv.mod_revision)) {
            Some(revision) => session.guard_moved(revision),
            None => self.renew_guard(session).await?,
        }
        Ok(())
    }

    /// How long to wait for an answer that a session's life depends on.
    pub(crate) fn patience(&self, session: &Session) -> Duration {
        session.patience().min(self.renewals.response_timeout())
    }

    /// Asks the server to keep a session alive, on `link`.
    pub(crate) async fn keep_alive(&self, session: &Session, link: &Link) -> Result<(), Trouble> {
        let within = self.patience(session);
        // Before sending: the server's ttl starts after this.
        let from = self.clock.now();
        let answer = link.keep_alive(session.lease(), within).await?;
        if answer.id != session.lease() {
            return Err(self.trouble(Cause::Cut, "an answer about another lease", ""));
        }
        if answer.ttl <= 0 {
            self.lose(session, Loss::Session);
            return Err(self.trouble(Cause::NoLease, "the session has ended", ""));
        }
        let header = answer.header.unwrap_or_default();
        let mut lasts = Lasts { from, ttl: seconds(answer.ttl), term: header.raft_term };
        if link.has_suspects() {
            lasts = self.checked(session, lasts, header.member_id, link).await?;
        }
        match session.extend(lasts, self.clock.now()) {
            true => Ok(()),
            false => {
                self.lose(session, Loss::Expired);
                Err(self.trouble(Cause::NoLease, "the session ended before the answer came", ""))
            }
        }
    }

    /// On servers whose bugs are known, a member that has led before may keep leases alive by itself, with no
    /// effect on the leader's. What it says counts if it leads; else the leader is asked what is left.
    async fn checked(
        &self,
        session: &Session,
        lasts: Lasts,
        member: u64,
        link: &Link,
    ) -> Result<Lasts, Trouble> {
        let within = self.patience(session);
        let status = link.call_within(within, StatusRequest {}).await?;
        let term = status.header.map_or(0, |header| header.raft_term);
        if status.leader == member && term == lasts.term {
            return Ok(lasts);
        }
        let from = self.clock.now();
        let left = self.ask_what_is_left(session.lease(), link, within).await?;
        if left.ttl < 0 {
            self.lose(session, Loss::Session);
            return Err(self.trouble(Cause::NoLease, "the session has ended", ""));
        }
        // Rounded down to whole seconds, and asked for a little later.
        if seconds(left.ttl + 2) + from.since(lasts.from) < lasts.ttl {
            link.leave();
            return Err(self.trouble(Cause::Silent, "a keep-alive did not reach the leader", ""));
        }
        let term = left.header.map_or(0, |header| header.raft_term);
        Ok(Lasts { from, ttl: seconds(left.ttl), term })
    }

    /// Declares a session lost: it is revoked if it is ours, and those who hold a lock on it hear it.
    pub(crate) fn lose(&self, session: &Session, loss: Loss) {
        if !session.end(loss.clone()) {
            return;
        }
        if !session.is_foreign() {
            self.owe(Debt::Revoke(session.lease(), session.ttl()));
        }
        for seat in self.seats.held_on(session) {
            let (key, token, loss) = (seat.key.clone(), seat.token, loss.clone());
            self.tell(Notice::Lost { key, token, loss });
        }
    }

    /// Has it done as soon as that can be.
    pub(crate) fn owe(&self, debt: Debt) {
        self.sessions.owe(debt, self.clock.now());
    }

    /// Ends a session that nothing hangs on any more.
    pub(crate) fn let_end(&self, session: &Arc<Session>) {
        if session.is_own() && session.end(Loss::Session) {
            self.sessions.forget(session);
            self.owe(Debt::Revoke(session.lease(), session.ttl()));
        }
    }

    /// Ends a lease at the server, and with it all that hangs on it. One that is gone is as good.
    pub(crate) async fn revoke(&self, lease: i64, link: &Link) -> Result<(), Trouble> {
        match link.call(LeaseRevokeRequest { id: lease }).await {
            Err(trouble) if trouble.cause() != Cause::NoLease => Err(trouble),
            _ => Ok(()),
        }
    }
}

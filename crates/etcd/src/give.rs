//! Giving back: releases, claims that were given up, locks that go on without this process.
//!
//! In: leases and claims. Out: what became of them at the server.
//!
//! Everything is bound to the revision at which our key was created and to the session that it hangs on,
//! so that nothing which is carried out late can hit a later claim. What cannot be undone now is owed,
//! and `tend.rs` pays: on a session that many share it would otherwise stay for as long as the session.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fault, Loss, Release, Term, Then};
use tenure_core::time::Time;
use tenure_core::{Claim, Lease};

use crate::backend::Shared;
use crate::link::Link;
use crate::proto::{KeyValue, LeaseGrantRequest, RangeRequest, RangeResponse, TxnRequest};
use crate::seat::{Now, Seat};
use crate::session::{Kind, Lasts, Session, seconds, whole_seconds};
use crate::sessions::Debt;
use crate::trouble::{Cause, Trouble};
use crate::value;

/// The shortest lease that a server grants, in seconds.
const LEASE_MIN: i64 = 2;

/// What asking for a lock to be given back came to.
enum Given {
    /// It was ours, and is not any more.
    Back,
    /// It was not ours (any more).
    Not,
    /// It hangs on another session of ours: ask again.
    Elsewhere,
}

impl From<Given> for Release {
    fn from(given: Given) -> Release {
        match given {
            Given::Back => Release::Freed,
            Given::Not | Given::Elsewhere => Release::NotHeld,
        }
    }
}

impl Shared {
    /// Gives the lock back, or keeps it closed for a while longer.
    pub(crate) async fn release(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let Some(seat) = self.seats.get(lease.claim().token()) else {
            return Ok(Release::NotHeld);
        };
        seat.end();
        let ours = self.clock.now() < lease.valid_until();
        let mut answer = self.release_once(&seat, ours, then).await;
        // It hung on another session, to which an earlier request has moved it.
        if let Ok(Given::Elsewhere) = answer {
            answer = self.release_once(&seat, ours, then).await;
        }
        match answer {
            // It is gone, and yet a request may still create it.
            Ok(Given::Not) if seat.now().stray => {
                self.owe(Debt::Undo(seat));
                Ok(Release::NotHeld)
            }
            Ok(given) => {
                self.done_with(&seat);
                Ok(given.into())
            }
            Err(trouble) => {
                let closed = match then {
                    Then::Free => None,
                    Then::Closed(rest) => Some(self.clock.now().after(rest)),
                };
                self.owe(Debt::Release(seat, closed));
                Err(trouble.into())
            }
        }
    }

    /// Gives back what could not be given back before, and keeps it closed for what is left of its time.
    pub(crate) async fn release_late(
        &self,
        seat: &Arc<Seat>,
        closed: Option<Time>,
    ) -> Result<(), Trouble> {
        let rest = closed.map_or(Duration::ZERO, |until| until.since(self.clock.now()));
        let then = if rest.is_zero() { Then::Free } else { Then::Closed(rest) };
        while let Given::Elsewhere = self.release_once(seat, false, then).await? {}
        match seat.now().stray {
            true => self.undo(seat, &self.renewals).await,
            false => {
                self.done_with(seat);
                Ok(())
            }
        }
    }

    async fn release_once(&self, seat: &Seat, ours: bool, then: Then) -> Result<Given, Trouble> {
        let now = seat.now();
        match then {
            Then::Free => self.give(seat, &now, ours, seat.give_back(&now)).await,
            Then::Closed(rest) => Box::pin(self.close_for(seat, &now, ours, rest)).await,
        }
    }

    async fn close_for(
        &self,
        seat: &Seat,
        now: &Now,
        ours: bool,
        rest: Duration,
    ) -> Result<Given, Trouble> {
        let ttl = whole_seconds(rest).max(LEASE_MIN);
        let lease = self.calls.call(LeaseGrantRequest { ttl }).await?.id;
        let answer = self.give(seat, now, ours, seat.close(now, lease)).await;
        // What may yet be closed by it must stay so.
        if matches!(answer, Ok(Given::Elsewhere | Given::Not)) {
            self.owe(Debt::Revoke(lease, seconds(ttl)));
        }
        answer
    }

    /// Asks for the lock to be given back. What an earlier request did whose answer was lost, it did
    /// if the lock was ours at the time and nobody used force.
    async fn give(
        &self,
        seat: &Seat,
        now: &Now,
        ours: bool,
        ask: TxnRequest,
    ) -> Result<Given, Trouble> {
        let asked_before = now.given_back;
        seat.giving_back(ours);
        let answer = match self.calls.call(ask).await {
            // Its session is gone, and with it all that hung there.
            Err(trouble) if trouble.cause() == Cause::NoLease => return Ok(Given::Not),
            answer => answer?,
        };
        if answer.succeeded {
            self.shut_out(seat, now, answer.revision());
            return Ok(Given::Back);
        }
        Box::pin(self.not_given(seat, now, asked_before)).await
    }

    /// Why the lock could not be given back.
    async fn not_given(
        &self,
        seat: &Seat,
        now: &Now,
        asked_before: Option<bool>,
    ) -> Result<Given, Trouble> {
        let answer = self.calls.call(seat.what_became(&self.keys, now)).await?;
        let mut found = answer.ranges().map(|found| found.kvs.into_iter().next());
        let (mine, forced) = (found.next().flatten(), found.next().flatten());
        let here = |kv: &KeyValue| kv.create_revision == now.created && kv.lease != 0;
        if let Some(mine) = mine.filter(here)
            && mine.lease != now.session.lease()
            && seat.found_on(mine.lease, mine.mod_revision)
        {
            return Ok(Given::Elsewhere);
        }
        let by_us = asked_before == Some(true) && forced.is_none();
        Ok(if by_us { Given::Back } else { Given::Not })
    }

    /// Requests that were sent before `revision` cannot be carried out any more, where the session
    /// outlives the claim. Elsewhere its end shuts them out.
    fn shut_out(&self, seat: &Seat, now: &Now, revision: i64) {
        if now.stray && !now.session.is_own() {
            now.session.guard_moved(revision);
            seat.no_strays();
        }
    }

    /// Nothing of it is left at the server, and nobody here has to do with it any more.
    fn done_with(&self, seat: &Arc<Seat>) {
        self.seats.remove(seat.token);
        self.sessions.paid_for(seat);
        self.let_end(&seat.session());
    }

    pub(crate) async fn abandon(&self, claim: &Claim) -> Result<(), Fault> {
        let Some(seat) = self.seats.get(claim.token()) else { return Ok(()) };
        seat.end();
        self.undo(&seat, &self.calls).await.map_err(|trouble| {
            self.owe(Debt::Undo(seat));
            trouble.into()
        })
    }

    /// Undoes whatever the claim has won or queued, or will yet.
    pub(crate) async fn undo(&self, seat: &Arc<Seat>, link: &Link) -> Result<(), Trouble> {
        let now = seat.now();
        let lease = now.session.lease();
        let ended = now.session.loss().is_some() && !now.session.is_foreign();
        if now.sent && (now.stray && now.session.is_own() || ended) {
            // With the lease goes all that hangs on it, now or later.
            now.session.end(Loss::Session);
            if !now.session.is_revoked() {
                self.revoke(lease, link).await?;
            }
            now.session.set_revoked();
            self.sessions.forget(&now.session);
            self.sessions.paid(&Debt::Revoke(lease, now.session.ttl()));
        } else if now.sent {
            match link.call(seat.undo(&now)).await {
                Err(trouble) if trouble.cause() == Cause::NoLease => {}
                answer => self.shut_out(seat, &now, answer?.revision()),
            }
        }
        self.done_with(seat);
        Ok(())
    }

    /// Hangs a held lock on a session of its own of `ttl`, which is not kept alive by itself.
    /// `false` if it is not ours any more, or may be undone late.
    pub(crate) async fn move_out(&self, seat: &Seat, ttl: Duration) -> Result<bool, Trouble> {
        if seat.now().stray || !self.settle(seat).await? {
            return Ok(false);
        }
        let (session, now) = (self.own_session(ttl).await?, seat.now());
        seat.moving_to(session.clone());
        let ask = seat.move_to(&self.keys, &now, session.lease());
        let answer = self.calls.call(ask).await?;
        if !answer.succeeded {
            seat.stays(now.written).inspect(|session| self.let_end(session));
            return Ok(false);
        }
        seat.moved(&session, answer.revision());
        self.let_end(&now.session);
        Ok(true)
    }

    /// Finds out where the lock hangs after a move whose answer was lost, and shuts out a late one: until
    /// then, what is known of its old session says nothing about the lock. `false` if it is not ours.
    pub(crate) async fn settle(&self, seat: &Seat) -> Result<bool, Trouble> {
        if !seat.may_have_moved() {
            return Ok(true);
        }
        let now = seat.now();
        let answer = self.calls.call(seat.stay(&now)).await?;
        if answer.succeeded {
            seat.stays(answer.revision()).inspect(|session| self.let_end(session));
            return Ok(true);
        }
        let mine = answer.ranges().next().and_then(|found| found.kvs.into_iter().next());
        let ours = mine.filter(|kv| kv.create_revision == now.created);
        Ok(ours.is_some_and(|kv| seat.found_on(kv.lease, kv.mod_revision)))
    }

    /// Lets a lease go on without this process, until its ttl is over.
    pub(crate) async fn let_go(&self, lease: &Lease) -> Result<(), Fault> {
        let Some(seat) = self.seats.get(lease.claim().token()) else { return Ok(()) };
        self.settle(&seat).await?;
        if !seat.session().is_own() && !self.move_out(&seat, lease.ttl()).await? {
            let what = "the lock is not ours any more, or cannot go on without this process";
            return Err(self.trouble(Cause::NotNow, what, "").into());
        }
        self.sessions.forget(&seat.session());
        self.seats.remove(seat.token);
        Ok(())
    }

    /// Carries on what another process has let go of.
    pub(crate) async fn adopt(&self, claim: &Claim) -> Result<Option<Term>, Fault> {
        self.refuse_forked()?;
        let Some(found) = self.find(claim).await? else { return Ok(None) };
        let from = self.clock.now();
        let within = self.calls.response_timeout();
        let answer = self.calls.keep_alive(found.lease, within).await?;
        if answer.ttl <= 0 {
            return Ok(None);
        }
        let (ttl, term) = (seconds(answer.ttl), answer.header.unwrap_or_default());
        let lasts = Lasts { from, ttl, term: term.raft_term };
        // Looked at again: a lease that was kept alive by mistake is gone by now, see `session.rs`.
        let Some(found) = self.find(claim).await?.filter(|again| again.lease == found.lease) else {
            return Ok(None);
        };
        let kind = self.kind_of(&found).await?;
        let session = Arc::new(Session::of(&self.keys, found.lease, kind, claim.ttl(), lasts));
        self.seats.add(Arc::new(Seat::adopted(&self.keys, claim, session, found)));
        Ok(Some(lasts.as_term()))
    }

    /// Whether the session of the claim `found` is this claim's alone. The key of such a session is written by the
    /// transaction that hangs the claim on it. That of a shared session is written by itself.
    async fn kind_of(&self, found: &KeyValue) -> Result<Kind, Trouble> {
        let own = RangeRequest::one(self.keys.session(found.lease)).keys_only();
        let own = self.calls.call(own).await?.kvs.into_iter().next();
        Ok(match own {
            Some(own) if own.mod_revision == found.mod_revision => Kind::Own,
            _ => Kind::Foreign,
        })
    }

    /// The claim's key, if it holds the lock.
    async fn find(&self, claim: &Claim) -> Result<Option<KeyValue>, Trouble> {
        let queue = self.keys.queue(claim.key());
        let oldest = RangeRequest::under(queue).oldest_first().limit(1);
        let RangeResponse { kvs, .. } = self.calls.call(oldest).await?;
        let ours = |kv: &KeyValue| {
            let token = value::token(&kv.value);
            token == Some(claim.token()) && !value::is_closed(&kv.value) && kv.lease != 0
        };
        Ok(kvs.into_iter().find(ours))
    }
}

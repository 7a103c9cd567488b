//! The queue of a lock: enters a claim's key, and reads which claim is before it.
//!
//! In: a claim's key. Out: a [`View`] of the queue, or an [`EngineError`].
//!
//! The claims on a lock are ordered by the revision at which their keys were created, and the oldest claim
//! holds the lock, with those behind it that fit (`modes.rs`). Each read is linearizable: the cluster agrees on
//! it. An attempt whose reply was lost is resolved by another request: the value of the key has the claim's token.

use std::sync::Arc;

use tenure_core::backend::Loss;
use tenure_core::{Claim, Holder, Mode, free_slot};

use crate::claim_key::{ClaimKey, ClaimKeys, KeyState};
use crate::contention::ContentionHints;
use crate::epoch::Epoch;
use crate::error::{EngineError, ErrorKind};
use crate::link::Link;
use crate::modes;
use crate::position::{Before, Position};
use crate::proto::{KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::session::SessionValidity;
use crate::sessions::Sessions;
use crate::value;

/// How often an attempt is repeated that failed because the session's own key, the base of fences or the name
/// of the claim's key has changed.
pub(crate) const ATTEMPTS_MAX: u32 = 16;

/// Which claim is before a claim, as of a revision.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) created: i64,
    pub(crate) revision: i64,
    pub(crate) raft_term: u64,
    /// What the claim waits for; `None` if it holds the lock.
    pub(crate) before: Option<Before>,
    /// Whether another claim waits.
    pub(crate) contended: bool,
    /// The oldest claim and the number of all claims, if they were read.
    pub(crate) first: Option<(KeyValue, i64)>,
    /// The validity of the session that was known before the request was sent, and that the reply confirms.
    pub(crate) validity: Option<SessionValidity>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) calls: Arc<Link>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) contention: ContentionHints,
}

impl Queue {
    /// Puts the claim's key into the queue, unless it is there already.
    pub(crate) async fn enter(&self, claim_key: &ClaimKey) -> Result<View, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let state = claim_key.snapshot();
            match self.try_enter(claim_key, &state).await? {
                Entered::Queued(view) => {
                    self.contention.set(&claim_key.queue, view.contended);
                    claim_key.set_revisions(view.created, view.created);
                    return Ok(view);
                }
                Entered::Busy => self.contention.set(&claim_key.queue, true),
                Entered::Earlier(mine) => {
                    claim_key.set_revisions(mine.create_revision, mine.mod_revision);
                    if let Some(view) = self.read(claim_key).await? {
                        return Ok(view);
                    }
                }
                other => self.prepare_again(claim_key, &state, other).await?,
            }
        }
        Err(self.too_many_attempts())
    }

    /// Handles an attempt that failed because of the name of the key or a condition.
    pub(crate) async fn prepare_again(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        entered: Entered,
    ) -> Result<(), EngineError> {
        match entered {
            Entered::NameTaken => self.change_name(claim_key, state).await,
            Entered::Stale(found, revision) => {
                self.refresh_conditions(claim_key, state, found, revision).await
            }
            Entered::Queued(_) | Entered::Busy | Entered::Earlier(_) => Ok(()),
        }
    }

    /// The first request is enough for an uncontended lock; the second one works for every lock. Permits are counted
    /// by the names that the second one reads.
    async fn try_enter(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
    ) -> Result<Entered, EngineError> {
        let validity = state.session.validity(self.calls.now());
        let counts = matches!(claim_key.mode, Mode::Permits { .. });
        if !counts && !self.contention.is_contended(&claim_key.queue) {
            let answer = self.send(claim_key, claim_key.txn_take(state)).await?;
            return Ok(Entered::of_take(&answer, validity));
        }
        let answer = self.send(claim_key, claim_key.txn_enqueue(state)).await?;
        if answer.succeeded {
            return Ok(Entered::of_enqueue(claim_key, state, answer, validity));
        }
        let why = self.calls.call(claim_key.txn_diagnose(state)).await?;
        let revision = why.revision();
        Ok(Entered::of_diagnose(claim_key, why.ranges(), revision))
    }

    pub(crate) fn too_many_attempts(&self) -> EngineError {
        let what =
            format_args!("the conditions of the request changed {ATTEMPTS_MAX} times in a row");
        self.calls.error(ErrorKind::Busy, what)
    }

    /// Reads our position in the queue. If our key was deleted, enters again, at the end of the queue.
    pub(crate) async fn read_or_enter(&self, claim_key: &ClaimKey) -> Result<View, EngineError> {
        match self.read(claim_key).await? {
            Some(view) => Ok(view),
            None => self.enter(claim_key).await,
        }
    }

    /// Reads our position in the queue. `None` if our key is gone.
    pub(crate) async fn read(&self, claim_key: &ClaimKey) -> Result<Option<View>, EngineError> {
        let state = claim_key.snapshot();
        let validity = state.session.validity(self.calls.now());
        let read = TxnRequest::read(claim_key.reads(&state.name, state.created));
        let answer = self.calls.call(read).await?;
        let view = Entered::view(&answer, validity);
        let position =
            Position::of(claim_key, &state.name, state.created, answer.ranges().collect());
        Ok(position.map(|Position { before, contended, .. }| View {
            created: state.created,
            before,
            contended,
            ..view
        }))
    }

    /// The oldest claim on the key, if `claim` would have to wait now.
    pub(crate) async fn in_the_way(&self, claim: &Claim) -> Result<Option<KeyValue>, EngineError> {
        let (queue, mode) = (self.claim_keys.queue(claim), claim.mode());
        let oldest = RangeRequest::under(queue.clone()).oldest_first().limit(1);
        let mut others = modes::in_the_way(&queue, mode).oldest_first().keys_only();
        if !matches!(mode, Mode::Permits { .. }) {
            others = others.limit(1);
        }
        let answer = self.calls.call(TxnRequest::read([oldest, others])).await?;
        let mut found = answer.ranges();
        let (first, others) = (found.next(), found.next().unwrap_or_default());
        let parse = |kv: &KeyValue| modes::parse(&kv.key[queue.len()..]);
        let claims: Vec<Mode> = others.kvs.iter().map(parse).chain([mode.clone()]).collect();
        let waits = modes::holders(&claims) < claims.len();
        Ok(first.and_then(RangeResponse::first).filter(|_| waits))
    }

    /// The number of a permit that holds the lock: the lowest that is free. `None` while a permit before it has no
    /// number yet: numbers are given in the order of the claims, so that the fences of each number rise.
    pub(crate) async fn number(&self, claim_key: &ClaimKey) -> Result<Option<u32>, EngineError> {
        let mut slot = None;
        for _ in 0..ATTEMPTS_MAX {
            let state = claim_key.snapshot();
            let answer = self.calls.call(claim_key.txn_number(&state, slot)).await?;
            if let Some(slot) = slot.filter(|_| answer.succeeded) {
                claim_key.set_slot(slot, answer.revision());
                return Ok(Some(slot));
            }
            let claims = answer.ranges().next().unwrap_or_default().kvs;
            let mut before = Vec::new();
            for claim in claims {
                match value::slot(&claim.value) {
                    Some(slot) if claim_key.owns(&claim) => {
                        slot.inspect(|slot| claim_key.set_slot(*slot, claim.mod_revision));
                        if slot.is_some() {
                            return Ok(slot);
                        }
                        break;
                    }
                    Some(Some(taken)) => before.push(taken),
                    Some(None) => return Ok(None),
                    None => {}
                }
            }
            slot = Some(free_slot(before));
        }
        Err(self.too_many_attempts())
    }

    /// Sends a request that may create the claim's key.
    pub(crate) async fn send(
        &self,
        claim_key: &ClaimKey,
        request: TxnRequest,
    ) -> Result<TxnResponse, EngineError> {
        // Without a connection nothing is sent, and there will be nothing to undo.
        self.calls.connection().await?;
        let (in_flight, base) = (claim_key.begin_request(), claim_key.snapshot().base);
        // Read before sending: the reply has a later revision, unless the cluster has lost data.
        let highest = self.epoch.highest();
        let answer = self.calls.call(request).await;
        match &answer {
            Err(error) if error.is_unknown() => {}
            _ => in_flight.answered(),
        }
        match answer {
            Err(error) if error.kind() == ErrorKind::NoLease => Err(self.session_gone(claim_key)),
            Ok(done) if done.succeeded => {
                let number = base.saturating_add(done.revision());
                self.epoch.record_number(number);
                if number < highest { Err(self.revision_fell(claim_key)) } else { Ok(done) }
            }
            answer => answer,
        }
    }

    /// The key of another claim has our name, so we need another name. If a request of ours may still create
    /// a key of this name, that request is blocked first, and the next attempt sees whether it was executed.
    async fn change_name(&self, claim_key: &ClaimKey, state: &KeyState) -> Result<(), EngineError> {
        match state.in_flight {
            true => self.block_late_requests(claim_key, state).await?,
            false => self.claim_keys.rename(claim_key),
        }
        Ok(())
    }

    /// Makes all requests of the claim fail that were sent before now.
    async fn block_late_requests(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
    ) -> Result<(), EngineError> {
        self.sessions.rewrite_key(&state.session).await?;
        claim_key.none_in_flight();
        Ok(())
    }

    /// Handles an attempt that failed because the session's own key or the base has changed. Both are as they
    /// were found at `revision`. If the session is gone, the claim is forgotten.
    async fn refresh_conditions(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        found: (Option<RangeResponse>, Option<RangeResponse>),
        revision: i64,
    ) -> Result<(), EngineError> {
        match self.catch_up(claim_key, state, found, revision).await {
            Err(error) if error.kind() == ErrorKind::NoLease => Err(self.session_gone(claim_key)),
            done => done,
        }
    }

    async fn catch_up(
        &self,
        claim_key: &ClaimKey,
        state: &KeyState,
        (session_key, epoch): (Option<RangeResponse>, Option<RangeResponse>),
        revision: i64,
    ) -> Result<(), EngineError> {
        self.sessions.refresh_revision(&state.session, session_key).await?;
        let base = self.epoch.ensure_base(epoch, revision).await?;
        match base == state.base {
            true => Ok(()),
            // A request that may have created the key has the old base in its value. It is blocked first, and
            // the next attempt sees whether it was executed.
            false if state.in_flight => self.block_late_requests(claim_key, state).await,
            false => {
                claim_key.set_base(base);
                Ok(())
            }
        }
    }

    /// The server does not know our session. If no key was ever attached to it, the next attempt makes a new
    /// one.
    fn session_gone(&self, claim_key: &ClaimKey) -> EngineError {
        let state = claim_key.snapshot();
        self.sessions.lose(&state.session, Loss::Session);
        self.claim_keys.remove(claim_key.token);
        match state.created == 0 && !state.in_flight {
            true => self.calls.error(ErrorKind::Busy, "the session has ended"),
            false => EngineError::session_expired(&claim_key.key),
        }
    }

    /// The cluster has granted a number below an earlier one: a backup was restored. The session ends, and
    /// the next session writes a higher base.
    fn revision_fell(&self, claim_key: &ClaimKey) -> EngineError {
        self.epoch.reset();
        self.sessions.lose(&claim_key.session(), Loss::Session);
        self.claim_keys.remove(claim_key.token);
        let what = "the cluster has lost what it knew: its revision is lower";
        self.calls.error(ErrorKind::Busy, what)
    }

    /// The holder of the lock, as others see it. A key without a lease is refused: it would hold the lock for
    /// ever.
    pub(crate) fn holder(&self, first: &KeyValue) -> Result<Holder, EngineError> {
        if first.lease == 0 {
            let key = String::from_utf8_lossy(&first.key);
            let shown = key.rsplit_once('/').map_or(&*key, |(start, _)| start);
            let what = format_args!("a key under `{shown}/` has no lease: it is no lock");
            return Err(self.calls.error(ErrorKind::Refused, what));
        }
        Ok(value::holder(&first.value, None))
    }
}

/// The result of entering the queue.
pub(crate) enum Entered {
    /// The key was created now; the view shows which claim is before it.
    Queued(View),
    /// The key was not created: others hold or want the lock, or a condition of the attempt has changed.
    Busy,
    /// The key was created by an earlier request.
    Earlier(KeyValue),
    /// The key of another claim has the name: an earlier claim of ours that is kept closed or not yet undone.
    NameTaken,
    /// The session's own key or the base of fences is not as we knew it. Both as they were found, and the
    /// revision.
    Stale((Option<RangeResponse>, Option<RangeResponse>), i64),
}

impl Entered {
    /// Reads the reply to [`ClaimKey::txn_take`].
    fn of_take(answer: &TxnResponse, validity: Option<SessionValidity>) -> Self {
        match answer.succeeded {
            true => Entered::Queued(Self::view(answer, validity)),
            false => Entered::Busy,
        }
    }

    /// The view in which the lock is ours, as far as the reply itself shows.
    pub(crate) fn view(answer: &TxnResponse, validity: Option<SessionValidity>) -> View {
        let (revision, raft_term) = (answer.revision(), answer.raft_term());
        let (created, before, contended, first) = (revision, None, false, None);
        View { created, revision, raft_term, before, contended, first, validity }
    }

    /// Reads the reply to a [`ClaimKey::txn_enqueue`] that succeeded.
    fn of_enqueue(
        claim_key: &ClaimKey,
        state: &KeyState,
        answer: TxnResponse,
        validity: Option<SessionValidity>,
    ) -> Self {
        let view = Self::view(&answer, validity);
        let mut found = answer.ranges();
        let first = found.next();
        // Only a reply that shows our key also shows which claims are before it.
        let position = Position::of(claim_key, &state.name, view.created, found.collect());
        let Some(Position { before, contended, .. }) = position else {
            return Entered::Stale((None, None), view.revision);
        };
        let count = first.as_ref().map_or(0, |first| first.count);
        let first = first.and_then(RangeResponse::first).map(|first| (first, count));
        Entered::Queued(View { before, contended, first, ..view })
    }

    /// Reads the reply to [`ClaimKey::txn_diagnose`].
    pub(crate) fn of_diagnose(
        claim_key: &ClaimKey,
        mut found: impl Iterator<Item = RangeResponse>,
        revision: i64,
    ) -> Self {
        let (session_key, mine, epoch) = (found.next(), found.next(), found.next());
        match mine.and_then(RangeResponse::first) {
            Some(mine) if claim_key.owns(&mine) => Entered::Earlier(mine),
            Some(_) => Entered::NameTaken,
            None => Entered::Stale((session_key, epoch), revision),
        }
    }
}

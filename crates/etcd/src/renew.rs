//! Renewal: keeping sessions alive, and checking that the locks on them are still ours.
//!
//! In: leases that are due. Out: a reply for each, as soon as it is known. A claim whose label was changed is written
//! again with the new one, at its place in the queue.
//!
//! Each session is kept alive once for all its leases. Then all their locks are read, many with one request.
//! If the key of a lock is gone while its session lives, an operator has deleted it, and the lock is lost. A
//! keep-alive counts only if the cluster confirms it by this later read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answers, Loss, Renewal};
use tenure_core::{Claim, Lease};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::claim_key::{ClaimKey, ClaimKeys, KeyState};
use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::Link;
use crate::position::Position;
use crate::proto::{RangeRequest, RangeResponse, TxnRequest};
use crate::session::{Session, SessionValidity};
use crate::sessions::Sessions;
use crate::transfer::Transfer;
use crate::value;

/// How many locks are read with one request. A server allows 128 operations by default, and a reader needs two.
const LOCKS_AT_ONCE: usize = 64;
/// How often a keep-alive is repeated because the leader has changed since.
const RAFT_TERMS_MAX: u32 = 3;
/// How often a new label is written: the first attempt may find that an earlier one was done.
const LABEL_TRIES: u32 = 2;

/// A lease that is due, and its index in the list of all.
struct Due {
    index: usize,
    claim_key: Arc<ClaimKey>,
    /// The ttl that its present holder has requested.
    ttl: Duration,
    /// Has the label to show, if it was changed.
    claim: Arc<Claim>,
}

type Replies = mpsc::UnboundedSender<(usize, Renewal)>;

#[derive(Debug)]
pub(crate) struct Renewer {
    pub(crate) keys: Arc<Keys>,
    pub(crate) renewals: Arc<Link>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) transfer: Arc<Transfer>,
}

impl Renewer {
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let mut sessions: HashMap<i64, (Arc<Session>, Vec<Due>)> = HashMap::new();
        for (index, lease) in leases.iter().enumerate() {
            let Some(claim_key) = self.claim_keys.get(lease.claim().token()) else {
                answers(index, Renewal::Lost(Loss::Gone));
                continue;
            };
            let (session, ttl) = (claim_key.session(), lease.ttl());
            let due = Due { index, claim_key, ttl, claim: lease.claim().clone() };
            sessions.entry(session.lease()).or_insert_with(|| (session, vec![])).1.push(due);
        }
        let (replies, mut incoming) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for (session, due) in sessions.into_values() {
            tasks.spawn(self.clone().renew_session(session, due, replies.clone()));
        }
        drop(replies);
        while let Some((index, answer)) = incoming.recv().await {
            answers(index, answer);
        }
    }

    async fn renew_session(
        self: Arc<Self>,
        session: Arc<Session>,
        due: Vec<Due>,
        replies: Replies,
    ) {
        let mut rest = Vec::with_capacity(due.len());
        for due in due {
            if !self.move_if_needed(&session, &due, &replies).await {
                rest.push(due);
            }
        }
        if rest.is_empty() {
            return;
        }
        let kept = self.keep_alive_if_due(&session).await;
        for some in rest.chunks(LOCKS_AT_ONCE) {
            let read = match &kept {
                Ok(()) => self.renew_some(&session, some, &replies).await,
                Err(error) => Err(error.clone()),
            };
            if let Err(error) = read {
                some.iter().for_each(|due| reply_failed(&session, due, &error, &replies));
            }
        }
    }

    /// Many leases of a session become due one after the other, so a session that was just kept alive is
    /// skipped.
    async fn keep_alive_if_due(&self, session: &Session) -> Result<(), EngineError> {
        match !session.is_single() && session.is_fresh(self.renewals.now()) {
            true => Ok(()),
            false => self.sessions.keep_alive(session, &self.renewals).await,
        }
    }

    /// Reads some locks of a session that was just kept alive.
    async fn renew_some(
        &self,
        session: &Arc<Session>,
        some: &[Due],
        replies: &Replies,
    ) -> Result<(), EngineError> {
        for _ in 0..RAFT_TERMS_MAX {
            // Before sending: the reply confirms only a keep-alive that was answered by then.
            let Some(validity) = session.validity(self.renewals.now()) else {
                return Err(self.sessions.has_ended(session, Loss::Expired));
            };
            let states: Vec<KeyState> = some.iter().map(|due| due.claim_key.snapshot()).collect();
            let due = || some.iter().zip(&states);
            let reads =
                |(due, state): (&Due, &KeyState)| due.claim_key.reads(&state.name, state.created);
            let request = TxnRequest::read(due().flat_map(reads));
            let answer = self.renewals.call_within(self.sessions.timeout(session), request).await?;
            if validity.raft_term != answer.raft_term() {
                self.sessions.keep_alive(session, &self.renewals).await?;
                continue;
            }
            let mut found = answer.ranges();
            for (due, state) in due() {
                let reads = due.claim_key.reads(&state.name, state.created).len();
                let found = found.by_ref().take(reads).collect();
                self.reply(due, state, found, validity, replies).await;
            }
            return Ok(());
        }
        Err(self.renewals.error(ErrorKind::TimedOut, "the cluster changes its leader all the time"))
    }

    async fn reply(
        &self,
        due: &Due,
        state: &KeyState,
        found: Vec<RangeResponse>,
        validity: SessionValidity,
        replies: &Replies,
    ) {
        let position = Position::of(&due.claim_key, &state.name, state.created, found);
        let answer = match position.filter(|it| it.before.is_none()) {
            Some(it) if it.lease == due.claim_key.session().lease() => {
                match self.show_label(due).await {
                    Ok(()) => Renewal::Renewed {
                        validity: validity.as_validity(),
                        contended: it.contended,
                    },
                    Err(error) => Renewal::Unknown(error.into()),
                }
            }
            _ => Renewal::Lost(self.why_lost(&due.claim_key).await),
        };
        let _ = replies.send((due.index, answer));
    }

    /// Writes the key with the new label of its claim, unless it shows that label already.
    async fn show_label(&self, due: &Due) -> Result<(), EngineError> {
        let claim_key = &due.claim_key;
        for _ in 0..LABEL_TRIES {
            let state = claim_key.snapshot();
            // Read after the state: a label that another renewal has written since is not replaced by an older one.
            let Some(label) = due.claim.new_label() else { return Ok(()) };
            let Some(request) = claim_key.txn_label(&state, &label) else { return Ok(()) };
            let answer = self.renewals.call(request).await?;
            if answer.succeeded {
                let other = claim_key.set_labelled(&label, answer.revision());
                other.inspect(|session| self.sessions.end_if_single(session));
                return Ok(());
            }
            // An earlier write was done, and its reply was lost.
            let found = answer.ranges().next().and_then(RangeResponse::first);
            let ours = found.filter(|kv| kv.create_revision == state.created);
            ours.inspect(|kv| claim_key.set_written(kv.mod_revision));
        }
        Err(self.renewals.error(ErrorKind::Busy, "the key is written by others all the time"))
    }

    /// Handles a lock that is being moved to another session, or needs to be: if the present holder has a
    /// longer ttl than the session, the lock gets a session of that ttl. Returns whether the renewal is
    /// answered.
    async fn move_if_needed(&self, session: &Session, due: &Due, replies: &Replies) -> bool {
        let is_short = due.ttl > session.ttl();
        if !is_short && !due.claim_key.may_have_moved() {
            return false;
        }
        let moved = self.move_now(due).await;
        let present = due.claim_key.session();
        let answer = match (moved, present.validity(self.renewals.now())) {
            (Err(error), _) => Renewal::Unknown(error.into()),
            (Ok(()), Some(validity)) if present.lease() != session.lease() => {
                Renewal::Renewed { validity: validity.as_validity(), contended: false }
            }
            // The key was not moved, or the lock is not ours: the read finds out.
            (Ok(()), _) => return false,
        };
        replies.send((due.index, answer)).is_ok()
    }

    async fn move_now(&self, due: &Due) -> Result<(), EngineError> {
        let resolved = self.transfer.resolve_move(&due.claim_key).await?;
        if resolved && due.ttl > due.claim_key.session().ttl() {
            self.transfer.move_out(&due.claim_key, due.ttl).await?;
        }
        Ok(())
    }

    /// Why the lock is gone: forced, if an operator has left a note.
    async fn why_lost(&self, claim_key: &ClaimKey) -> Loss {
        let note = RangeRequest::one(self.keys.forced(claim_key.token));
        let found = self.renewals.call(note).await.ok();
        let by = found.and_then(RangeResponse::first);
        by.map_or(Loss::Gone, |by| value::forced(&by.value))
    }
}

/// Answers for a lease whose renewal failed.
fn reply_failed(session: &Session, due: &Due, error: &EngineError, replies: &Replies) {
    let answer = match session.loss() {
        Some(loss) => Renewal::Lost(loss),
        None => Renewal::Unknown(error.clone().into()),
    };
    let _ = replies.send((due.index, answer));
}

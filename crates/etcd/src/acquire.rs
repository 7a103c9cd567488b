//! Acquiring a lock: one attempt, or waiting until it is granted.
//!
//! In: a claim. Out: a grant, or the holder or the error that is in the way. `queue.rs` sends the requests, and
//! `wait.rs` waits behind another claim.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Fault, FaultKind, Grant, Loss};
use tenure_core::fence::SERVER_FENCE_MAX;
use tenure_core::{Claim, Holder, Mode, WaitStatus};
use tenure_net::{ForkGuard, jittered};

use crate::claim_key::{ClaimKey, ClaimKeys};
use crate::cleanup::{Cleanup, Cleanups};
use crate::epoch::Epoch;
use crate::error::{EngineError, ErrorKind};
use crate::link::Link;
use crate::proto::{KeyValue, RangeResponse};
use crate::queue::{ATTEMPTS_MAX, Entered, Queue, View};
use crate::release::Releaser;
use crate::sessions::Sessions;
use crate::wait::Waiter;

/// Why an owner cannot be shared between processes.
const SHARED: &str = "`etcd:` cannot share an owner between processes: a lock is attached to the session of \
                      one process, and ends with it";

/// The pause before a permit asks again whether those before it have their numbers.
const NUMBER_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Acquirer {
    pub(crate) fork_guard: ForkGuard,
    pub(crate) calls: Arc<Link>,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) cleanups: Arc<Cleanups>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) releaser: Arc<Releaser>,
    pub(crate) waiter: Waiter,
}

impl Acquirer {
    /// One attempt. "Held by another" is a valid reply, not an error.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.refuse_unsupported(claim)?;
        match self.attempt(claim).await {
            // The second request finds what the first one has acquired.
            Err(error) if error.kind() == ErrorKind::Disconnected => {
                Ok(self.attempt(claim).await?)
            }
            answer => Ok(answer?),
        }
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt, EngineError> {
        let counts = matches!(claim.mode(), Mode::Permits { .. });
        let known = self.claim_keys.get(claim.token()).is_some();
        // A separate session is made, and a permit queued, only if the lock seems to be free.
        if !known
            && (counts || !self.sessions.shares(claim))
            && let Some(first) = self.queue.in_the_way(claim).await?
        {
            return Ok(Attempt::Held(Box::new(self.busy(&first).await?)));
        }
        let claim_key = self.claim_key_for(claim).await?;
        if counts {
            return Box::pin(self.try_in_queue(claim, &claim_key)).await;
        }
        for _ in 0..ATTEMPTS_MAX {
            let state = claim_key.snapshot();
            let validity = state.session.validity(self.calls.now());
            let answer = self.queue.send(&claim_key, claim_key.txn_try(&state)).await?;
            let (view, done) = (Entered::view(&answer, validity), answer.succeeded);
            let mut found = answer.ranges();
            let first = found.next().and_then(RangeResponse::first);
            let (created, written) = match done {
                true => (view.revision, view.revision),
                false => match (Entered::of_diagnose(&claim_key, found, view.revision), first) {
                    (Entered::Earlier(mine), first)
                        if first.as_ref().is_none_or(|it| mine.is_before(it)) =>
                    {
                        (mine.create_revision, mine.mod_revision)
                    }
                    (_, Some(first)) => {
                        self.withdraw(&claim_key);
                        // What is in the way of a reader may be a writer that waits for other readers.
                        let oldest = match claim.mode() {
                            Mode::Read => self.calls.oldest_under(claim_key.queue.clone()).await?,
                            _ => None,
                        };
                        let holder = self.busy(&oldest.unwrap_or(first)).await?;
                        return Ok(Attempt::Held(Box::new(holder)));
                    }
                    (entered, None) => {
                        self.queue.prepare_again(&claim_key, &state, entered).await?;
                        continue;
                    }
                },
            };
            claim_key.set_revisions(created, written);
            let view = View { created, ..view };
            return Ok(Attempt::Granted(self.confirmed(claim, &claim_key, view).await?));
        }
        Err(self.queue.too_many_attempts())
    }

    /// One attempt for permits: queues the claim, and undoes that if it would have to wait.
    async fn try_in_queue(
        &self,
        claim: &Claim,
        claim_key: &Arc<ClaimKey>,
    ) -> Result<Attempt, EngineError> {
        let view = self.queue.enter(claim_key).await?;
        if view.before.is_none() && self.has_number(claim, claim_key).await? {
            return Ok(Attempt::Granted(self.confirmed(claim, claim_key, view).await?));
        }
        let oldest = self.calls.oldest_under(claim_key.queue.clone()).await?;
        // If this fails, it is repeated in the background.
        let _ = self.releaser.abandon(claim).await;
        let holder = match oldest {
            Some(oldest) => self.busy(&oldest).await?,
            None => Holder::unknown(),
        };
        Ok(Attempt::Held(Box::new(holder)))
    }

    /// Whether a permit that holds the lock has its number, if it wants one. The permits before it may be about to
    /// get theirs, so this asks a few times.
    async fn has_number(&self, claim: &Claim, claim_key: &ClaimKey) -> Result<bool, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            if !claim.numbered() || self.queue.number(claim_key).await?.is_some() {
                return Ok(true);
            }
            self.calls.clock().sleep(jittered(NUMBER_PAUSE)).await;
        }
        Ok(false)
    }

    /// Another claim holds the lock: makes sure that nothing of this claim stays at the server.
    fn withdraw(&self, claim_key: &Arc<ClaimKey>) {
        match claim_key.snapshot().in_flight {
            // An earlier request may still find the lock free.
            true => self.cleanups.queue(Cleanup::Undo(claim_key.clone())),
            false => {
                self.claim_keys.remove(claim_key.token);
                self.sessions.end_if_single(&claim_key.session());
            }
        }
    }

    /// The holder of the lock. For a lock that is only kept closed, also the time until it opens.
    async fn busy(&self, first: &KeyValue) -> Result<Holder, EngineError> {
        let mut holder = self.queue.holder(first)?;
        if holder.cooling_down {
            holder.lease_left = self.calls.lease_left(first.lease).await?;
        }
        Ok(holder)
    }

    /// The grant, once the session is confirmed to be alive.
    async fn confirmed(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        mut view: View,
    ) -> Result<Grant, EngineError> {
        loop {
            if let Some(grant) = self.confirm(claim, claim_key, &view, false).await? {
                return Ok(grant);
            }
            view = self.queue.read(claim_key).await?.ok_or_else(|| self.deleted(claim_key))?;
        }
    }

    /// Our key was deleted between two replies.
    fn deleted(&self, claim_key: &ClaimKey) -> EngineError {
        let what = "the claim was deleted by somebody";
        match claim_key.session().validity(self.calls.now()) {
            Some(_) => self.calls.error(ErrorKind::Disconnected, what),
            None => EngineError::session_expired(&claim_key.key),
        }
    }

    /// Waits until the lock is granted, or until an error shows that waiting is useless.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Result<Grant, Fault> {
        self.refuse_unsupported(claim)?;
        loop {
            let error = match self.enqueue(claim).await {
                Ok(grant) => return Ok(grant),
                Err(error) => error,
            };
            let pause = self.report_error(claim, error)?;
            self.calls.clock().sleep(pause).await;
        }
    }

    /// Queues until the lock is granted, or until something fails.
    async fn enqueue(&self, claim: &Claim) -> Result<Grant, EngineError> {
        let claim_key = self.claim_key_for(claim).await?;
        let (mut view, mut waited) = (self.queue.enter(&claim_key).await?, false);
        loop {
            let seen = match view.before.clone() {
                // Boxed, because it is rare: the future that every lock makes stays small.
                Some(before) => {
                    Box::pin(self.waiter.wait(claim, &claim_key, &before, &view)).await?
                }
                None => match self.confirm(claim, &claim_key, &view, waited).await? {
                    Some(grant) => return Ok(grant),
                    None => None,
                },
            };
            waited = view.before.is_some();
            view = match seen {
                Some(seen) => seen,
                None => self.queue.read_or_enter(&claim_key).await?,
            };
        }
    }

    /// The claim's key: the known one, or a new one on a session that is alive.
    async fn claim_key_for(&self, claim: &Claim) -> Result<Arc<ClaimKey>, EngineError> {
        if let Some(claim_key) = self.claim_keys.get(claim.token()) {
            let state = claim_key.snapshot();
            if state.session.validity(self.calls.now()).is_some() {
                return Ok(claim_key);
            }
            self.sessions.lose(&state.session, Loss::Expired);
            self.claim_keys.remove(claim.token());
            if state.sent {
                return Err(EngineError::session_expired(claim.key()));
            }
        }
        let session = self.sessions.session_for(claim).await?;
        Ok(self.claim_keys.create(claim, session, self.epoch.base()))
    }

    /// The grant, if the session is known to be alive: its last keep-alive is recent, and was answered in the
    /// raft term in which the cluster has just shown us our key. Otherwise the session is kept alive, and the
    /// caller reads again.
    async fn confirm(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        view: &View,
        waited: bool,
    ) -> Result<Option<Grant>, EngineError> {
        let (session, now) = (claim_key.session(), self.calls.now());
        let (Some(_), Some(validity)) = (session.validity(now), view.validity) else {
            self.sessions.lose(&session, Loss::Expired);
            return Err(EngineError::session_expired(claim.key()));
        };
        // A lease that is not renewed must begin with its whole ttl.
        let whole = claim.renewed() || !waited;
        let is_recent = now < validity.from.after(validity.ttl / 2);
        if validity.raft_term != view.raft_term || !is_recent || !whole {
            return match self.sessions.keep_alive(&session, &self.calls).await {
                Err(error) if error.kind() == ErrorKind::NoLease => {
                    Err(EngineError::session_expired(claim.key()))
                }
                kept => kept.map(|()| None),
            };
        }
        let mut slot = None;
        if claim.numbered() {
            slot = Box::pin(self.queue.number(claim_key)).await?;
            if slot.is_none() {
                self.calls.clock().sleep(jittered(NUMBER_PAUSE)).await;
                return Ok(None);
            }
        }
        // From now on the lock's renewals keep a session of its own alive.
        session.keep(false);
        claim_key.set_held();
        let number = claim_key.snapshot().base.saturating_add(view.created);
        let number = u64::try_from(number).ok().filter(|number| *number <= SERVER_FENCE_MAX);
        let Some(number) = number.filter(|number| *number > 0) else {
            let what =
                "the base of fences at the server is no number that a clock could have reached";
            return Err(EngineError::without_address(ErrorKind::Refused, what));
        };
        let grant = Grant::new(number, validity.as_validity());
        Ok(Some(grant.contended(view.contended).slot(slot)))
    }

    /// Refuses a claim that this engine does not support, before anything is sent.
    fn refuse_unsupported(&self, claim: &Claim) -> Result<(), Fault> {
        self.fork_guard.refuse_forked()?;
        match claim.mode() {
            Mode::SharedOwner(_) => Err(Fault::new(FaultKind::Unsupported, SHARED)),
            _ => Ok(()),
        }
    }

    /// Reports an error to the claim. Returns the pause until the next attempt, or the fault if a retry is
    /// useless.
    fn report_error(&self, claim: &Claim, error: EngineError) -> Result<Duration, Fault> {
        // A claim in the queue waits as long as its session is alive, so that it keeps its position.
        let queued = self.claim_keys.get(claim.token()).is_some_and(|key| key.snapshot().sent);
        let unreachable = error.is_unreachable() && !queued;
        let now = self.calls.now();
        claim.report_wait(match unreachable {
            _ if error.is_permanent() => return Err(error.into()),
            true => WaitStatus::unreachable(error.into(), now),
            false => WaitStatus::unanswered(error.into(), now),
        });
        Ok(jittered(claim.retry_interval()))
    }
}

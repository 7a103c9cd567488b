//! Acquiring a lock: one attempt, or a wait until it is granted.
//!
//! In: a claim. Out: a grant, or the holder, or the reason why there is none.
//!
//! A claim that waits has an entry in the server's queue. It is notified of its grant by a push to our inbox.
//! It asks again at intervals, with the same token. Such a request is its heartbeat, resolves an attempt
//! whose reply was lost, and finds a grant whose push was lost. If no push can come (no right to subscribe,
//! the inbox is down, the holder is not tenure), the claim only asks, at `retry_interval`.
//!
//! We may trust a push if its fence is higher than the stamp of our last heartbeat: then the grant was made
//! after that heartbeat. We count the lease from the sending of that heartbeat, so we can only end it too
//! early. Any other push may be old; then we ask again.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Fault, FaultKind, Grant, Validity};
use tenure_core::time::Time;
use tenure_core::{Claim, Key, Mode, WaitStatus};
use tenure_net::{ForkGuard, jittered};

use super::clock_drift::ClockDrift;
use crate::client::Client;
use crate::error::{Cause, EngineError};
use crate::inbox::{ContentionHints, Inbox, Mailbox, Push};
use crate::link::{Link, Pool, Server};
use crate::replication::{EXTRA_TTL, ReplicationCheck};
use crate::scripts::{
    AcquireReply, Answer, FastAcquireReply, ReleaseReply, RenewReply, ScriptCall, SetNxReply,
    WaitMode,
};
use crate::wire::keys::Keys;
use crate::wire::timing::{AFTER_END, HEARTBEAT, HEARTBEATS_GOOD, waiter_lifetime};
use crate::wire::value::{LockValue, ValueWriter, is_simple};

/// Waiters that are not first ask a little later: the first request makes the server hand the lock over.
const AFTER_THE_NEXT: Duration = Duration::from_millis(20);

/// A heartbeat whose reply was "queued": when it was sent, and what it proves.
#[derive(Clone, Copy)]
struct Heartbeat {
    from: Time,
    /// Every grant after this heartbeat has a higher fence.
    stamp: u64,
    epoch: u64,
}

/// The result of one request.
enum RequestResult {
    Granted(Grant),
    /// Ask again after a pause, or when notified.
    Wait(Duration, Option<Heartbeat>),
}

#[derive(Debug)]
pub(crate) struct Acquirer {
    keys: Keys,
    writer: ValueWriter,
    commands: Arc<Pool>,
    inbox: Arc<Inbox>,
    server: Arc<Server>,
    drift: ClockDrift,
    /// Waits until replicas have a grant, if that was configured.
    replication: Option<Arc<ReplicationCheck>>,
    fork_guard: ForkGuard,
}

impl Acquirer {
    pub(super) fn new(client: &Client) -> Self {
        Acquirer {
            keys: client.keys().clone(),
            writer: client.writer().clone(),
            commands: client.commands().clone(),
            inbox: client.inbox().clone(),
            server: client.server().clone(),
            drift: ClockDrift::default(),
            replication: client.replication().cloned(),
            fork_guard: client.fork_guard(),
        }
    }

    /// One attempt; "held by another" is a result, not an error.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.refuse_invalid(claim)?;
        match (self.try_once(claim).await?, &self.replication) {
            (Attempt::Granted(grant), Some(replication)) => {
                let seen = Box::pin(self.replicated(replication, claim, grant)).await;
                Ok(Attempt::Granted(seen?))
            }
            (attempt, _) => Ok(attempt),
        }
    }

    async fn try_once(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let cut = match self.acquire_fast(claim).await {
            Ok(Some(grant)) => return Ok(Attempt::Granted(grant)),
            Ok(None) => None,
            Err(error) if error.cause() == Cause::Disconnected => Some(error),
            Err(error) => return Err(error.into()),
        };
        // The full script finds out whether a request whose reply was lost acquired the lock. If it cannot be
        // sent, that stays unknown.
        match (Box::pin(self.try_full(claim)).await, cut) {
            (Err(fault), Some(cut)) if fault.kind() == FaultKind::Unavailable => Err(cut.into()),
            (answer, _) => answer,
        }
    }

    async fn try_full(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.sending(claim).await?;
        let from = self.now();
        let run = ScriptCall::acquire(&self.keys, &self.writer, claim, WaitMode::No);
        match self.retry_once(claim.key(), &run).await? {
            AcquireReply::Granted { fence, contended, slot } => {
                Ok(Attempt::Granted(self.grant(claim, from, fence, contended).slot(slot)))
            }
            AcquireReply::Held { value, left } | AcquireReply::Queued { value, left, .. } => {
                Ok(Attempt::Held(Box::new(LockValue::parse(&value).holder(Some(left)))))
            }
            refused => Err(self.refused(claim, &refused).into()),
        }
    }

    /// Waits until the lock is granted, or an error shows that waiting is useless.
    pub(crate) async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        match (self.try_fast(claim).await?, &self.replication) {
            (Some(grant), None) => Ok(grant),
            // All rare paths here are boxed: the future of every lock stays small.
            (fast_grant, _) => Box::pin(self.wait_for_grant(claim, fast_grant)).await,
        }
    }

    /// Acquires the lock if it is free and has no waiters.
    pub(crate) async fn try_fast(&self, claim: &Arc<Claim>) -> Result<Option<Grant>, Fault> {
        self.refuse_invalid(claim)?;
        self.inbox.listen_early();
        // If this claim is queued already, the bare `SET NX` could get the lock and leave our entry in the
        // queue. Any error here is found again by the full script.
        match self.inbox.waiters().contains(claim.token()) {
            true => Ok(None),
            false => Ok(self.acquire_fast(claim).await.unwrap_or_default()),
        }
    }

    /// Waits, starting with the grant of `try_fast`, if there is one.
    pub(crate) async fn wait_for_grant(
        &self,
        claim: &Arc<Claim>,
        fast_grant: Option<Grant>,
    ) -> Result<Grant, Fault> {
        match (fast_grant, &self.replication) {
            (Some(grant), None) => Ok(grant),
            (None, None) => self.wait_in_queue(claim).await,
            (fast_grant, Some(replication)) => {
                self.wait_until_replicated(replication, claim, fast_grant).await
            }
        }
    }

    /// Whether a grant counts only if replicas have it.
    pub(crate) fn waits_for_replicas(&self) -> bool {
        self.replication.is_some()
    }

    /// Waits until the lock is granted and enough replicas have it. If the confirmation of a grant fails,
    /// asking again finds out what became of the grant.
    async fn wait_until_replicated(
        &self,
        replication: &ReplicationCheck,
        claim: &Arc<Claim>,
        mut fast_grant: Option<Grant>,
    ) -> Result<Grant, Fault> {
        loop {
            let grant = match fast_grant.take() {
                Some(grant) => grant,
                None => self.wait_in_queue(claim).await?,
            };
            let error = match self.replicated(replication, claim, grant).await {
                Ok(grant) => return Ok(grant),
                Err(error) if error.is_permanent() || error.cause() == Cause::NotReplicated => {
                    return Err(error.into());
                }
                Err(error) => error,
            };
            self.server.clock().sleep(self.report_error(claim, error, self.now())?).await;
        }
    }

    /// The grant, once enough replicas have it; if they do not, it is released.
    async fn replicated(
        &self,
        replication: &ReplicationCheck,
        claim: &Claim,
        grant: Grant,
    ) -> Result<Grant, EngineError> {
        let (writer, ttl) = (Some(&self.writer), claim.ttl() + EXTRA_TTL);
        let run = ScriptCall::renew(&self.keys, writer, claim, grant.slot, ttl);
        // Read before the request is sent: the lock is renewed after this.
        let from = self.now();
        let error = match replication.confirm(run, claim.ttl()).await {
            Ok(()) => {
                let term = Validity::Lease { from, ttl: claim.ttl() };
                let confirmed = Grant::new(grant.fence, term).contended(grant.contended);
                return Ok(confirmed.slot(grant.slot));
            }
            Err(error) => error,
        };
        if error.cause() == Cause::NotReplicated {
            // If the release fails too, the engine abandons the claim.
            self.inbox.waiters().remove(claim.token());
            let link = self.commands.of(claim.key());
            let _ = ScriptCall::release(&self.keys, &self.writer, claim, grant.slot, None)
                .on::<ReleaseReply>(link)
                .await;
        }
        Err(error)
    }

    /// Asks, and asks again, with an entry in the queue if the lock has one.
    async fn wait_in_queue(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        let (mailbox, slot) = (self.inbox.waiters().register(claim), self.keys.slot(claim.key()));
        let mut changes = self.inbox.subscription_changes(slot);
        let (mut heartbeat, mut first) = (None, true);
        loop {
            // Every time: the runtime of the inbox may have ended.
            self.inbox.listen(slot);
            changes.begin();
            let from = self.now();
            let pause = match self.ask(claim, &mailbox, from, mem::take(&mut first)).await {
                Ok(RequestResult::Granted(grant)) => return Ok(grant),
                Ok(RequestResult::Wait(pause, beat)) => {
                    heartbeat = beat;
                    pause
                }
                Err(error) => self.report_error(claim, error, from)?,
            };
            let notified = pin!(async {
                tokio::select! {
                    biased;
                    push = mailbox.push() => Some(push),
                    () = changes.changed() => None,
                }
            });
            let push =
                self.commands.of(claim.key()).bounds().within(pause, notified).await.flatten();
            if let Some(grant) = push.and_then(|push| self.accept_push(claim, push, heartbeat)) {
                return Ok(grant);
            }
        }
    }

    /// Asks, and enters the queue if the lock is held.
    async fn ask(
        &self,
        claim: &Claim,
        mailbox: &Mailbox,
        from: Time,
        first: bool,
    ) -> Result<RequestResult, EngineError> {
        let subscribed = self.inbox.is_subscribed(self.keys.slot(claim.key()));
        let reply = match first && subscribed {
            true => self.enqueue_fast(claim).await?,
            false => None,
        };
        let reply = match reply {
            Some(reply) => reply,
            None => {
                mailbox.mark_full_script();
                Box::pin(self.acquire_full(claim, subscribed)).await?
            }
        };
        self.on_reply(claim, from, subscribed, reply)
    }

    /// Asks by the short script, which handles only the usual cases.
    async fn enqueue_fast(&self, claim: &Claim) -> Result<Option<AcquireReply>, EngineError> {
        if *claim.mode() != Mode::Exclusive || !claim.fenced() {
            return Ok(None);
        }
        let call = || ScriptCall::enqueue_fast(&self.keys, &self.writer, claim);
        ScriptCall::once(call, self.sending(claim).await?).await
    }

    async fn acquire_full(
        &self,
        claim: &Claim,
        subscribed: bool,
    ) -> Result<AcquireReply, EngineError> {
        let how = match subscribed {
            true => WaitMode::Pubsub(waiter_lifetime(self.server.target().response_timeout())),
            false => WaitMode::Poll(HEARTBEAT.max(claim.retry_interval()) * HEARTBEATS_GOOD),
        };
        let run = ScriptCall::acquire(&self.keys, &self.writer, claim, how);
        run.on(self.sending(claim).await?).await
    }

    /// What follows from the reply.
    fn on_reply(
        &self,
        claim: &Claim,
        from: Time,
        subscribed: bool,
        reply: AcquireReply,
    ) -> Result<RequestResult, EngineError> {
        let every =
            if subscribed { HEARTBEAT.min(claim.ttl() / 3) } else { claim.retry_interval() };
        match reply {
            AcquireReply::Granted { fence, contended, slot } => {
                Ok(RequestResult::Granted(self.grant(claim, from, fence, contended).slot(slot)))
            }
            AcquireReply::Queued { value, left, position, stamp } => {
                self.contention().mark_contended(claim.key(), from);
                claim.report_wait(WaitStatus::of(
                    LockValue::parse(&value).holder(Some(left)),
                    Some(position),
                ));
                let end = left
                    + AFTER_END
                    + if position > 1 { jittered(AFTER_THE_NEXT) } else { Duration::ZERO };
                // Without a subscription our heartbeat on the server says `poll`. Accept no push until a
                // request made while subscribed has replaced or removed it.
                let beat =
                    subscribed.then(|| Heartbeat { from, stamp, epoch: self.server.epoch() });
                Ok(RequestResult::Wait(jittered(every).min(end), beat))
            }
            AcquireReply::Held { value, left } => {
                self.contention().mark_contended(claim.key(), from);
                claim
                    .report_wait(WaitStatus::of(LockValue::parse(&value).holder(Some(left)), None));
                Ok(RequestResult::Wait(
                    jittered(claim.retry_interval()).min(left + AFTER_END),
                    None,
                ))
            }
            refused => Err(self.refused(claim, &refused)),
        }
    }

    /// The grant of a push, if it can be relied on without asking.
    fn accept_push(
        &self,
        claim: &Claim,
        push: Push,
        heartbeat: Option<Heartbeat>,
    ) -> Option<Grant> {
        let Heartbeat { from, stamp, epoch } = heartbeat?;
        let from_the_same = push.epoch == Some(epoch) && self.server.is_at(epoch);
        let enough_left = self.now() < from.after(claim.ttl() / 2);
        // A lock that will not be renewed needs its whole ttl, which it gets by asking.
        let later = push.fence > stamp && claim.fenced() && claim.renewed();
        (from_the_same && later && enough_left)
            .then(|| self.grant(claim, from, push.fence, push.contended).slot(push.slot))
    }

    /// The link for the requests of this claim. Without a connection nothing is sent, so nothing has to be
    /// undone: a claim counts as sent once there is a connection.
    async fn sending(&self, claim: &Claim) -> Result<&Link, EngineError> {
        let link = self.commands.of(claim.key());
        if !claim.was_sent() {
            link.live().await?;
            claim.set_sent();
        }
        Ok(link)
    }

    /// Acquires a lock that has no waiters, and is free or can be joined, by the shortest request. `None` in any
    /// other case: the full script handles it.
    ///
    /// Without a fence the request is the bare command, which does not look at the queue: if a holder died,
    /// it may come before the waiters.
    async fn acquire_fast(&self, claim: &Claim) -> Result<Option<Grant>, EngineError> {
        let (key, from) = (claim.key(), self.now());
        let has_short = is_simple(claim, None, &self.keys)
            && (claim.fenced() || *claim.mode() == Mode::Exclusive);
        if !has_short || !self.contention().is_uncontended(key, from) {
            return Ok(None);
        }
        let link = self.sending(claim).await?;
        let reply = match claim.fenced() {
            true => {
                ScriptCall::once(|| ScriptCall::acquire_fast(&self.keys, &self.writer, claim), link)
                    .await?
            }
            false => {
                match ScriptCall::once(|| ScriptCall::set_nx(&self.keys, &self.writer, claim), link)
                    .await?
                {
                    SetNxReply::Yes => FastAcquireReply::Yes(0),
                    SetNxReply::No => FastAcquireReply::UseFull,
                }
            }
        };
        match reply {
            FastAcquireReply::Yes(fence) => Ok(Some(self.grant(claim, from, fence, false))),
            FastAcquireReply::UseFull => {
                self.contention().mark_contended(key, from);
                Ok(None)
            }
        }
    }

    /// `from` was read before the request was sent. The server's ttl starts between then and the reply, so
    /// our end of the lease can only be too early.
    fn grant(&self, claim: &Claim, from: Time, fence: u64, contended: bool) -> Grant {
        self.drift.note(self.server.target(), self.server.clock(), from, fence);
        Grant::new(fence, Validity::Lease { from, ttl: claim.ttl() }).contended(contended)
    }

    pub(crate) async fn adopt(&self, claim: &Claim) -> Result<Option<Validity>, Fault> {
        self.fork_guard.refuse_forked()?;
        // The process that it is adopted from sent its request.
        claim.set_sent();
        let run = ScriptCall::renew(&self.keys, Some(&self.writer), claim, None, claim.ttl());
        // Read the clock before sending: the server's ttl starts after this, so our end of the lease can only
        // be too early.
        let from = self.now();
        match self.retry_once(claim.key(), &run).await? {
            RenewReply::Yes { .. } => Ok(Some(Validity::Lease { from, ttl: claim.ttl() })),
            RenewReply::Gone | RenewReply::Forced(_) => Ok(None),
        }
    }

    /// Refuses invalid claims before anything is sent.
    fn refuse_invalid(&self, claim: &Claim) -> Result<(), Fault> {
        self.fork_guard.refuse_other(claim.process())?;
        self.keys.refuse_reserved(claim.key())
    }

    /// Runs a call that can be repeated; a second time if the connection broke, as idle connections do.
    async fn retry_once<A: Answer>(&self, key: &Key, run: &ScriptCall) -> Result<A, EngineError> {
        let link = self.commands.of(key);
        match run.on(link).await {
            Err(cut) if cut.cause() == Cause::Disconnected => match run.on(link).await {
                Err(error) if error.is_unreachable() => Err(cut),
                answer => answer,
            },
            answer => answer,
        }
    }

    /// Which keys other processes want.
    fn contention(&self) -> &ContentionHints {
        self.inbox.waiters().contention()
    }

    fn now(&self) -> Time {
        self.server.clock().now()
    }

    /// Why there will be no grant.
    pub(crate) fn refused(&self, claim: &Claim, asked: &AcquireReply) -> EngineError {
        match asked {
            AcquireReply::WrongType(key) => {
                self.refusal(format!("the key `{key}` is not a string"))
            }
            // The content is not shown: if prefixes collide, it may be the value of a lock, with its token.
            AcquireReply::Corrupt(length) => {
                let key = self.keys.fence(claim.key());
                self.refusal(format!(
                    "the fence counter `{key}` holds no count, but {length} bytes"
                ))
            }
            _ => {
                let key = self.keys.lock(claim.key());
                self.refusal(format!("the key `{key}` has no expiry: it is no lock"))
            }
        }
    }

    fn refusal(&self, what: String) -> EngineError {
        self.server.error(Cause::Refused, what)
    }

    /// Reports the error that prevents us from asking. Returns the pause until the next attempt, unless the
    /// error is permanent.
    fn report_error(
        &self,
        claim: &Claim,
        error: EngineError,
        from: Time,
    ) -> Result<Duration, Fault> {
        claim.report_wait(error.status(from)?);
        // Asks in time for the next heartbeat: otherwise one lost reply would cost the claim its position in
        // the queue.
        Ok(jittered(claim.retry_interval().min(HEARTBEAT)))
    }
}

//! Releasing a lock, and abandoning a claim.
//!
//! In: a lease or a claim. Out: whether the lock was released. A release whose reply was lost is sent again;
//! after a failover, recent releases are repeated (`release_log.rs`).

use std::sync::Arc;

use tenure_core::backend::{AfterRelease, Fault, Release};
use tenure_core::time::Time;
use tenure_core::{Claim, Key, Lease};

use super::release_log::{LoggedRelease, ReleaseLog};
use crate::client::Client;
use crate::error::{Cause, EngineError};
use crate::inbox::{ContentionHints, Inbox, Mailbox};
use crate::link::{Link, Pool, Server};
use crate::scripts::{self, FastReleaseReply, ReleaseReply, RenewReply, ScriptCall};
use crate::wire::keys::Keys;
use crate::wire::value::{ValueWriter, is_simple};

/// How many releases are repeated in one pipeline.
const AT_ONCE: usize = 256;

#[derive(Debug)]
pub(crate) struct Releaser {
    keys: Keys,
    writer: ValueWriter,
    commands: Arc<Pool>,
    renewals: Arc<Link>,
    inbox: Arc<Inbox>,
    server: Arc<Server>,
    /// Releases that may have to be repeated, if another server can take over.
    log: Option<ReleaseLog>,
}

impl Releaser {
    pub(super) fn new(client: &Client, renewals: &Arc<Link>) -> Self {
        Releaser {
            keys: client.keys().clone(),
            writer: client.writer().clone(),
            commands: client.commands().clone(),
            renewals: renewals.clone(),
            inbox: client.inbox().clone(),
            server: client.server().clone(),
            // The nodes of a cluster share the log of their cluster.
            log: client.sentinels().map(|_| ReleaseLog::default()),
        }
    }

    /// Releases the lock, and records the release in the log.
    pub(crate) async fn release(
        &self,
        lease: &Lease,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        let (claim, epoch) = (lease.claim(), self.server.epoch());
        let mailbox = self.inbox.waiters().remove(claim.token());
        let released = self.release_unlogged(mailbox.as_deref(), lease, then).await;
        if matches!(released, Ok(Release::Freed)) && then == AfterRelease::Free {
            self.log(claim, epoch);
        }
        released
    }

    fn log(&self, claim: &Arc<Claim>, epoch: u64) {
        if let Some(log) = &self.log {
            log.add(claim, self.now(), epoch);
        }
    }

    /// Releases the lock; `mailbox` is the claim's, if it waited. Sends a short script in the usual cases,
    /// otherwise the full one.
    pub(crate) async fn release_unlogged(
        &self,
        mailbox: Option<&Mailbox>,
        lease: &Lease,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        let now = self.now();
        let first =
            BeforeFirstSend { was_ours: now < lease.valid_until(), epoch: self.server.epoch() };
        let short = self.short_script(mailbox, lease, now);
        let lost_reply =
            match self.release_fast(lease, short.filter(|_| then == AfterRelease::Free), now).await
            {
                Ok(true) => return Ok(Release::Freed),
                Ok(false) => None,
                Err(error) if error.cause() == Cause::Disconnected => Some(error),
                Err(error) => return Err(error.into()),
            };
        // All rare paths here are boxed: the future of every lock stays small.
        Box::pin(self.release_full(lease, then, first, lost_reply)).await
    }

    /// The short script that is likely to be enough: `release_fast.lua` if no other process wants the lock,
    /// or, after a wait in the queue, `handover_fast.lua` if others want it.
    ///
    /// `handover_fast.lua` does not remove what its own claim may have left in the queue. The mailbox of a
    /// claim shows that nothing was left. A claim that did not wait here (the lock was free, or was adopted)
    /// has no mailbox. If others want its lock, `release.lua` is used, which handles every case.
    fn short_script(&self, mailbox: Option<&Mailbox>, lease: &Lease, now: Time) -> Option<Short> {
        let claim = lease.claim();
        if !is_simple(claim, lease.slot(), &self.keys)
            || mailbox.is_some_and(|mailbox| !mailbox.enqueued_fast_only())
        {
            return None;
        }
        match !lease.is_contended() && self.contention().is_uncontended(claim.key(), now) {
            true => Some(ScriptCall::release_fast),
            // A claim that shares the lock never waits by `enqueue_fast.lua`.
            false => mailbox.map(|_| ScriptCall::handover_fast as Short),
        }
    }

    /// Which keys other processes want.
    fn contention(&self) -> &ContentionHints {
        self.inbox.waiters().contention()
    }

    fn now(&self) -> Time {
        self.server.clock().now()
    }

    /// Whether the short script released the lock.
    async fn release_fast(
        &self,
        lease: &Lease,
        short: Option<Short>,
        now: Time,
    ) -> Result<bool, EngineError> {
        let Some(short) = short else { return Ok(false) };
        let (run, key) = (|| short(&self.keys, &self.writer, lease), lease.claim().key());
        match ScriptCall::once(run, self.commands.of(key)).await? {
            FastReleaseReply::Yes => Ok(true),
            FastReleaseReply::UseFull => {
                self.contention().mark_contended(key, now);
                Ok(false)
            }
        }
    }

    /// If a reply was lost with its connection, the release is sent again; `lost_reply` is the error of the
    /// short script's lost reply.
    async fn release_full(
        &self,
        lease: &Lease,
        then: AfterRelease,
        first: BeforeFirstSend,
        lost_reply: Option<EngineError>,
    ) -> Result<Release, Fault> {
        let (claim, slot) = (lease.claim(), lease.slot());
        let closed = match then {
            AfterRelease::Free => None,
            AfterRelease::Cooldown(rest) => Some(rest),
        };
        let run = ScriptCall::release(&self.keys, &self.writer, claim, slot, closed).notify_first();
        let unshared = claim.shared_owner().is_none();
        let lost_reply = match lost_reply {
            Some(lost_reply) => lost_reply,
            None => match run.on(self.commands.of(claim.key())).await {
                Err(error) if error.cause() == Cause::Disconnected => error,
                answer => return Ok(released(answer?)),
            },
        };
        match self.resolve_lost_reply(lease, &run, lost_reply).await? {
            SecondAnswer::Answered(answer) => Ok(answer),
            // The same server had the lock as ours at the first request, and no operator used force: the
            // first request released it. For a shared owner we cannot tell how many other claims remain, so
            // the result stays unknown.
            SecondAnswer::Gone(_)
                if first.was_ours && unshared && self.server.is_at(first.epoch) =>
            {
                Ok(Release::Freed)
            }
            SecondAnswer::Gone(first) => Err(first.into()),
        }
    }

    async fn resolve_lost_reply(
        &self,
        lease: &Lease,
        run: &ScriptCall,
        first: EngineError,
    ) -> Result<SecondAnswer, EngineError> {
        // If we cannot ask again, the first request may still have released the lock.
        let (claim, slot) = (lease.claim(), lease.slot());
        let Ok(answer) = run.on(self.commands.of(claim.key())).await else { return Err(first) };
        if answer != ReleaseReply::NotHeld {
            return Ok(SecondAnswer::Answered(released(answer)));
        }
        // The second release says not held. A renewal is the request that reads the mark of a forced release.
        // `Yes` is not expected here; it counts as `Gone`.
        let renew = ScriptCall::renew(&self.keys, Some(&self.writer), claim, slot, claim.ttl());
        match renew.on(self.commands.of(claim.key())).await? {
            RenewReply::Forced(_) => Ok(SecondAnswer::Answered(Release::NotHeld)),
            RenewReply::Gone | RenewReply::Yes { .. } => Ok(SecondAnswer::Gone(first)),
        }
    }

    pub(crate) async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.inbox.waiters().remove(claim.token());
        if !claim.was_sent() {
            return Ok(());
        }
        let (link, epoch) = (self.commands.of(claim.key()), self.server.epoch());
        let run = ScriptCall::release(&self.keys, &self.writer, claim, None, None);
        run.on::<ReleaseReply>(link).await?;
        self.log(claim, epoch);
        if !link.may_have_zombies(claim.ttl()) {
            return Ok(());
        }
        let what = "an earlier connection could not be closed and may still act";
        Err(link.error(Cause::Disconnected, what).into())
    }

    /// Sends `PING` on the connection of `key`. When it is answered, all our earlier requests on that
    /// connection have run. Otherwise a late heartbeat could enter the queue after the adopting process has
    /// released the lock.
    pub(crate) async fn relinquish(&self, key: &Key) -> Result<(), Fault> {
        let link = self.commands.of(key);
        let live = link.live().await?;
        link.call(&live, redis::cmd("PING")).await?;
        Ok(())
    }

    /// Repeats the releases of an earlier epoch; those that fail are repeated the next time.
    pub(crate) async fn replay(&self) {
        let Some(log) = &self.log else { return };
        let earlier = log.take(self.now(), self.server.epoch());
        for (index, share) in earlier.chunks(AT_ONCE).enumerate() {
            if let Err(error) = self.release_share(share).await {
                tracing::debug!(%error, "releases are repeated later");
                return log.put_back(&earlier[index * AT_ONCE..]);
            }
        }
    }

    /// Repeats all these releases, or returns the first error.
    pub(crate) async fn release_all(&self, all: &[LoggedRelease]) -> Result<(), EngineError> {
        for share in all.chunks(AT_ONCE) {
            self.release_share(share).await?;
        }
        Ok(())
    }

    /// On the connection for renewals: the order does not matter, because a new request for such a lock has
    /// another token.
    async fn release_share(&self, share: &[LoggedRelease]) -> Result<(), EngineError> {
        let run = |done: &LoggedRelease| {
            ScriptCall::release(&self.keys, &self.writer, done.claim(), None, None)
        };
        let runs: Vec<ScriptCall> = share.iter().map(run).collect();
        let within = self.renewals.response_timeout();
        let answers = scripts::run_all::<ReleaseReply>(&self.renewals, &runs, within).await?;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

/// A short script for a release.
type Short = fn(&Keys, &ValueWriter, &Lease) -> ScriptCall;

/// The state before the first request of a release.
struct BeforeFirstSend {
    was_ours: bool,
    epoch: u64,
}

/// The result of a repeated release.
enum SecondAnswer {
    Answered(Release),
    /// The lock is not ours now; the error of the first request.
    Gone(EngineError),
}

pub(super) fn released(freed: ReleaseReply) -> Release {
    match freed {
        ReleaseReply::Yes => Release::Freed,
        ReleaseReply::Still(others) => Release::StillHeld(others),
        ReleaseReply::NotHeld => Release::NotHeld,
    }
}

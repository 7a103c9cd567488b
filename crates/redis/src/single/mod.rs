//! Locks on one server: the `Backend` contract.
//!
//! In: claims and leases from the engine. Out: the replies of the scripts, in the types of the contract. Each
//! part of the contract has an object with the connections that it needs: `acquirer` (with `clock_drift`),
//! `releaser` (with `release_log`), `renewer`, `inspector` (with `watch`) and `contention`.
//!
//! All commands about a key use one connection, so that an abandon cannot overtake the acquire that it
//! undoes. These connections belong to the client, which several lockers may share. Each locker has another
//! connection for renewals, which runs on the engine's thread. So neither a blocked application nor a long
//! queue of commands delays a renewal.

mod acquirer;
mod clock_drift;
mod contention;
mod inspector;
mod release_log;
mod releaser;
mod renewer;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, Capabilities, ClaimEnd, Fault, Grant, Hints, LockInfo,
    Notices, Operator, Query, Release, Validity,
};
use tenure_core::doctor::{Finding, self_test};
use tenure_core::time::Clock;
use tenure_core::{Claim, Key, Lease, Token};
use tokio::runtime::Handle;

use crate::client::Client;
use crate::doctor::{Exam, Standing, is_usable};
use crate::inbox::Inbox;
use crate::link::{Link, Pool, Server};
use crate::wire::keys::Keys;
use acquirer::Acquirer;
use contention::ContentionWatch;
use inspector::Inspector;
use releaser::Releaser;
use renewer::Renewer;

pub(crate) use inspector::BY_MAX;
pub(crate) use release_log::{LoggedRelease, ReleaseLog};
pub(crate) use watch::warn_unwatched;

/// How often the connection for renewals is pinged. A connection that died unnoticed costs a renewal its
/// response time-out; the ping finds it before that.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(1);
/// Locks on a Redis or Valkey server.
///
/// On one server a lock is safe: every step is atomic and checks the token, and the fence never goes back. No
/// single server can guarantee that it keeps its data: if it loses the data, the lock is lost, and its holder
/// finds out at the next renewal. A waiter is notified when it gets the lock, first come, first served.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use std::time::Duration;
/// use tenure_core::Locker;
/// use tenure_redis::Redis;
///
/// let redis = Redis::builder("redis://:secret@localhost:6379/0")
///     .prefix("billing")
///     .response_timeout(Duration::from_millis(500));
/// let locker = Locker::new(redis.connect().await?);
/// let guard = locker.lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redis {
    pub(crate) locks: Arc<Locks>,
}

/// The parts of a locker on one server, and the connections that they share.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) acquirer: Acquirer,
    pub(crate) releaser: Releaser,
    pub(crate) renewer: Renewer,
    pub(crate) inspector: Inspector,
    pub(crate) contention: ContentionWatch,
    client: Client,
    renewals: Arc<Link>,
    /// Whether the client was made for this locker only, and so is closed with it.
    owns_client: bool,
}

impl Redis {
    /// Stores locks through a client that the caller made, under its prefix. The client's connections are
    /// shared and stay open when the locker is shut down. Only the connection for renewals is this locker's
    /// own, since it runs on its thread.
    pub fn with(client: &Client) -> Self {
        Self::of(client.clone(), false)
    }

    /// Stores locks through a client that was made for this locker only.
    pub(crate) fn owning(client: Client) -> Self {
        Self::of(client, true)
    }

    fn of(client: Client, owns_client: bool) -> Self {
        let renewals = Arc::new(Link::new(client.server().clone()));
        Redis {
            locks: Arc::new(Locks {
                acquirer: Acquirer::new(&client),
                releaser: Releaser::new(&client, &renewals),
                renewer: Renewer::new(&client, &renewals),
                inspector: Inspector::new(&client),
                contention: ContentionWatch::new(&client),
                client,
                renewals,
                owns_client,
            }),
        }
    }

    /// What makes locks unsafe on the server.
    async fn findings(&self, ttl: Duration) -> Vec<Finding> {
        let (target, keys) = (self.locks.server().target(), self.locks.keys());
        let exam = Exam { target, keys, clock: self.locks.clock(), ttl };
        let mut findings = match self.locks.client.sentinels() {
            Some(sentinels) => exam.sentinels(sentinels).await,
            None => exam.found_server(Standing::Alone).await.findings,
        };
        if is_usable(&findings) {
            findings.push(self_test(self, ttl).await);
        }
        findings
    }
}

impl Locks {
    pub(crate) fn server(&self) -> &Server {
        self.client.server()
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.server().clock()
    }

    pub(crate) fn keys(&self) -> &Keys {
        self.client.keys()
    }

    pub(crate) fn commands(&self) -> &Pool {
        self.client.commands()
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        self.client.inbox()
    }

    /// The connection for renewals.
    pub(crate) fn renewals(&self) -> &Arc<Link> {
        &self.renewals
    }

    pub(crate) fn refuse_forked(&self) -> Result<(), Fault> {
        self.client.fork_guard().refuse_forked()
    }
}

#[async_trait]
impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis");
        // Clients of other kinds poll.
        can.polling_waiters = true;
        can.reachable_within = self.locks.server().reachable_within();
        can.call_time = self.locks.server().target().call_time();
        can
    }

    fn clock(&self) -> Clock {
        self.locks.clock().clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.locks.acquirer.try_acquire(claim).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.locks.acquirer.acquire(claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        // With one server no slot moves.
        drop(self.locks.renewer.renew(leases, answers).await)
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.locks.releaser.release(lease, then).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.locks.releaser.abandon(claim).await
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        self.locks.acquirer.adopt(claim).await
    }

    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        // A lease here is only its token; nothing of it belongs to this process. The inbox keeps its claim: a
        // late push must not be taken for an unwanted grant.
        self.locks.releaser.relinquish(lease.claim().key()).await
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        self.locks.contention.watch(lease);
    }

    async fn run(&self) {
        self.locks.renewals.pin_to_runtime(Handle::current());
        // Here, so that a blocked application does not delay the detection of a failover.
        self.locks.server().start_watcher_on_current();
        loop {
            let server = self.locks.server();
            tokio::select! {
                () = self.locks.clock().sleep(PING_EVERY) => {}
                () = server.left(server.epoch()) => {}
            }
            // Another locker on the same client may have moved the watcher to its runtime, and ended it
            // there.
            server.keep_watch();
            self.locks.renewals.ping().await;
            self.locks.releaser.replay().await;
        }
    }

    fn subscribe(&self, _: Duration) -> Notices {
        self.locks.server().notices()
    }

    async fn close(&self) {
        self.locks.renewals.close();
        // The owner of a shared client closes it.
        if self.locks.owns_client {
            self.locks.client.close();
        }
    }

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for Redis {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.locks.refuse_forked()?;
        Ok(self.locks.inspector.inspect(query).await?)
    }

    async fn change_hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        Ok(self.locks.inspector.hints(query).await?)
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        Ok(self.locks.inspector.end_reasons(ended).await?)
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.locks.inspector.force_release(key, seen, by).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.findings(ttl).await
    }
}

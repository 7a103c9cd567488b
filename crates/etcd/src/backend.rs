//! The [`Backend`] contract on an etcd cluster.
//!
//! In: claims and leases from the engine. Out: the replies of the cluster, in the terms of the contract. This
//! module only composes the objects that do the work.
//!
//! Requests use a connection on the caller's runtime. Keep-alives use another connection on the engine's
//! thread, so that an application that blocks its runtime does not lose a lock.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, Capabilities, ClaimEnd, Fault, Grant, Hints, LockInfo,
    Notices, Notifier, Operator, Query, Release, Validity,
};
use tenure_core::doctor::Finding;
use tenure_core::time::Clock;
use tenure_core::{Claim, Key, Lease, Token};
use tenure_net::ForkGuard;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::acquire::Acquirer;
use crate::background::Background;
use crate::claim_key::ClaimKeys;
use crate::cleanup::Cleanups;
use crate::client::Client;
use crate::contention::ContentionHints;
use crate::doctor::Doctor;
use crate::epoch::Epoch;
use crate::force::Forcer;
use crate::inspect::Inspector;
use crate::keys::Keys;
use crate::link::Link;
use crate::queue::Queue;
use crate::release::Releaser;
use crate::renew::Renewer;
use crate::sessions::Sessions;
use crate::transfer::Transfer;
use crate::wait::Waiter;
use crate::watch::{RecentEnds, Watcher};
use crate::watch_cache::WatchCache;

/// How many leases may wait for the background work to watch them. The others are not watched.
const WATCHES_KEPT: usize = 1024;
/// The shortest ttl: a server with default settings grants no shorter lease.
const TTL_MIN: Duration = Duration::from_secs(2);
/// How many queued cleanups are run at close. The others are done when their leases expire.
const CLEANUPS_AT_CLOSE: usize = 16;
/// The unit of a ttl.
const TTL_UNIT: Duration = Duration::from_secs(1);

/// Locks on an etcd cluster.
///
/// A majority of the cluster agrees on every grant, so a lock survives the loss of a member. Waiters are
/// served first come, first served. A ttl is in whole seconds, at least two.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use std::time::Duration;
/// use tenure_core::Locker;
/// use tenure_etcd::Etcd;
///
/// let etcd = Etcd::builder("etcds://app:secret@etcd-1:2379,etcd-2:2379,etcd-3:2379")
///     .ca_file("/etc/etcd/ca.pem")
///     .prefix("billing")
///     .response_timeout(Duration::from_secs(1));
/// let locker = Locker::new(etcd.connect().await?);
/// let guard = locker.lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Debug)]
pub struct Etcd {
    fork_guard: ForkGuard,
    calls: Arc<Link>,
    /// Whether other lockers may use `calls` too.
    shares_calls: bool,
    claim_keys: Arc<ClaimKeys>,
    sessions: Arc<Sessions>,
    cleanups: Arc<Cleanups>,
    notifier: Notifier,
    acquirer: Acquirer,
    renewer: Arc<Renewer>,
    releaser: Arc<Releaser>,
    transfer: Arc<Transfer>,
    inspector: Inspector,
    watcher: Arc<Watcher>,
    forcer: Forcer,
    doctor: Doctor,
    background: Arc<Background>,
}

impl Etcd {
    /// Locks on a client that the caller made and keeps.
    pub fn with(client: &Client) -> Self {
        Etcd { shares_calls: true, ..Self::alone_with(client) }
    }

    /// Locks on a client that nothing else uses.
    pub(crate) fn alone_with(client: &Client) -> Self {
        let (calls, keys) = (client.requests().clone(), Arc::new(client.keys()));
        let renewals = Arc::new(Link::new(calls.cluster().clone()));
        let notifier = Notifier::default();
        let epoch = Arc::new(Epoch::new(calls.clone(), &keys));
        let claim_keys = Arc::new(ClaimKeys::new(keys.clone()));
        let cleanups = Arc::new(Cleanups::new(calls.clock().clone()));
        let sessions = Arc::new(Sessions::new(
            keys.clone(),
            calls.clone(),
            epoch.clone(),
            claim_keys.clone(),
            cleanups.clone(),
            notifier.clone(),
        ));
        Parts { keys, calls, renewals, notifier, epoch, claim_keys, cleanups, sessions }.assemble()
    }

    /// Ends the shared sessions, and closes the connections that are ours alone.
    async fn close_all(&self) {
        self.background.closed.cancel();
        self.sessions.close().await;
        for cleanup in self.cleanups.pending().iter().take(CLEANUPS_AT_CLOSE) {
            if self.releaser.clean_up(cleanup, &self.calls).await.is_err() {
                break;
            }
        }
        self.acquirer.waiter.watches.close();
        if !self.shares_calls {
            self.calls.close();
        }
        self.background.renewals.close();
    }
}

/// What several objects of a client share.
struct Parts {
    keys: Arc<Keys>,
    calls: Arc<Link>,
    renewals: Arc<Link>,
    notifier: Notifier,
    epoch: Arc<Epoch>,
    claim_keys: Arc<ClaimKeys>,
    cleanups: Arc<Cleanups>,
    sessions: Arc<Sessions>,
}

impl Parts {
    fn assemble(self) -> Etcd {
        let fork_guard = ForkGuard::of_this_process();
        let (releaser, transfer) = (self.releaser(), self.transfer(fork_guard));
        Etcd {
            fork_guard,
            acquirer: self.acquirer(fork_guard, releaser.clone()),
            renewer: self.renewer(transfer.clone()),
            background: self.background(releaser.clone()),
            inspector: Inspector { keys: self.keys.clone(), calls: self.calls.clone() },
            doctor: Doctor { keys: self.keys.clone(), calls: self.calls.clone() },
            watcher: self.watcher(),
            forcer: self.forcer(fork_guard),
            releaser,
            transfer,
            calls: self.calls,
            shares_calls: false,
            claim_keys: self.claim_keys,
            sessions: self.sessions,
            cleanups: self.cleanups,
            notifier: self.notifier,
        }
    }

    fn acquirer(&self, fork_guard: ForkGuard, releaser: Arc<Releaser>) -> Acquirer {
        let queue = Arc::new(Queue {
            calls: self.calls.clone(),
            sessions: self.sessions.clone(),
            epoch: self.epoch.clone(),
            claim_keys: self.claim_keys.clone(),
            contention: ContentionHints::default(),
        });
        let waiter = Waiter {
            calls: self.calls.clone(),
            sessions: self.sessions.clone(),
            queue: queue.clone(),
            watches: WatchCache::default(),
        };
        Acquirer {
            fork_guard,
            calls: self.calls.clone(),
            epoch: self.epoch.clone(),
            claim_keys: self.claim_keys.clone(),
            sessions: self.sessions.clone(),
            cleanups: self.cleanups.clone(),
            queue,
            releaser,
            waiter,
        }
    }

    fn releaser(&self) -> Arc<Releaser> {
        Arc::new(Releaser {
            keys: self.keys.clone(),
            calls: self.calls.clone(),
            claim_keys: self.claim_keys.clone(),
            sessions: self.sessions.clone(),
            cleanups: self.cleanups.clone(),
        })
    }

    fn transfer(&self, fork_guard: ForkGuard) -> Arc<Transfer> {
        Arc::new(Transfer {
            fork_guard,
            keys: self.keys.clone(),
            calls: self.calls.clone(),
            claim_keys: self.claim_keys.clone(),
            sessions: self.sessions.clone(),
        })
    }

    fn renewer(&self, transfer: Arc<Transfer>) -> Arc<Renewer> {
        Arc::new(Renewer {
            keys: self.keys.clone(),
            renewals: self.renewals.clone(),
            claim_keys: self.claim_keys.clone(),
            sessions: self.sessions.clone(),
            transfer,
        })
    }

    fn background(&self, releaser: Arc<Releaser>) -> Arc<Background> {
        Arc::new(Background {
            keys: self.keys.clone(),
            renewals: self.renewals.clone(),
            epoch: self.epoch.clone(),
            claim_keys: self.claim_keys.clone(),
            sessions: self.sessions.clone(),
            cleanups: self.cleanups.clone(),
            releaser,
            contention_watches: broadcast::Sender::new(WATCHES_KEPT),
            notifier: self.notifier.clone(),
            closed: CancellationToken::new(),
        })
    }

    fn watcher(&self) -> Arc<Watcher> {
        let (keys, calls) = (self.keys.clone(), self.calls.clone());
        Arc::new(Watcher { keys, calls, ends: watch::Sender::new(RecentEnds::default()) })
    }

    fn forcer(&self, fork_guard: ForkGuard) -> Forcer {
        Forcer {
            fork_guard,
            keys: self.keys.clone(),
            calls: self.calls.clone(),
            cleanups: self.cleanups.clone(),
            notifier: self.notifier.clone(),
        }
    }
}

#[async_trait]
impl Backend for Etcd {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("etcd");
        can.shared_owners = false;
        (can.ttl_unit, can.ttl_min) = (TTL_UNIT, TTL_MIN);
        can.reachable_within = self.calls.connect_timeout();
        can.call_time = self.calls.connect_timeout() + self.calls.response_timeout();
        can
    }

    fn clock(&self) -> Clock {
        self.calls.clock().clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.acquirer.try_acquire(claim).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.acquirer.acquire(claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        self.renewer.renew(leases, answers).await
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.releaser.release(lease, then).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.releaser.abandon(claim).await
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        self.transfer.adopt(claim).await
    }

    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        self.transfer.relinquish(lease).await
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        let claim_key = self.claim_keys.get(lease.claim().token());
        if let Some(claim_key) = claim_key.filter(|claim_key| !claim_key.set_watched(true)) {
            // If the background work is not running, the notice is not needed.
            let _ = self.background.contention_watches.send(claim_key);
        }
    }

    async fn run(&self) {
        self.background.run().await
    }

    fn subscribe(&self, default_ttl: Duration) -> Notices {
        self.sessions.share(default_ttl);
        self.notifier.notices()
    }

    async fn close(&self) {
        self.close_all().await
    }

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for Etcd {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.fork_guard.refuse_forked()?;
        Ok(self.inspector.inspect(query).await?)
    }

    async fn change_hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        Ok(self.watcher.hints(query).await?)
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        Ok(self.watcher.end_reasons(ended).await?)
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.forcer.force(key, seen, by).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.doctor.diagnose(self, ttl).await
    }
}

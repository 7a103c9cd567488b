//! Locks on a Redis Cluster: the contract, kept by whichever node has a lock's slot.
//!
//! In: claims and leases from the engine. Out: what that node answered, as the contract says it. Each node
//! is a server as any other, with the links, the inbox and the scripts of `backend.rs`; all keys of a lock
//! are in one slot (`keys.rs`), so one node can answer.
//!
//! In reading order: `url`, this file, `wait`, `hops` (which node), `renew`, `again` and `look`; below them
//! `nodes` (a client for each), `map` (who has which slot), `ask` and `view` (what nodes say); `slot` counts. `doctor` says what is unsafe.

mod again;
mod ask;
mod doctor;
mod hops;
mod look;
mod map;
mod nodes;
mod renew;
pub(crate) mod slot;
mod together;
pub(crate) mod url;
mod view;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, Hints,
    LockInfo, Notices, Query, Release, Term, Then,
};
use tenure_core::doctor::Finding;
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Key, Lease, Token};
use tokio::runtime::Handle;

use crate::again::Releases;
use crate::backend::PING_EVERY;
use crate::builder::Builder;
use crate::keys::Keys;
use hops::{Hops, Judged};
use nodes::{Kit, Nodes};
use url::Hosts;

pub(crate) use nodes::{Elsewhere, Spot};
pub(crate) use together::together;

/// Locks on a Redis or Valkey Cluster.
///
/// A lock is kept by the master that has the slot of its key, with all that [`Redis`](crate::Redis)
/// promises there. Failovers and slots that move are followed. A cluster forgets what a master had not
/// told its replica when it died: then two may hold a lock until the first hears of it, and the fence of
/// the second is higher.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_core::Locker;
/// use tenure_redis::Cluster;
///
/// let cluster = Cluster::connect("redis-cluster://r1,r2,r3").await?;
/// let guard = Locker::new(cluster).lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    nodes: Arc<Nodes>,
    keys: Keys,
    /// What may have to be released again where another node has taken over.
    releases: Releases,
}

impl Cluster {
    /// Connects to the cluster at `url`, and checks that it can keep locks.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::cluster`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).cluster().await
    }

    /// Starts from `url`, to say more than a URL can; [`Builder::cluster`] ends it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Builder {
    /// Connects to the cluster of a `redis-cluster://` URL, and checks that it can keep locks. One of the
    /// nodes that are named has to answer; the others are found.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if no node can be reached,
    /// [`is_refused`](Error::is_refused) if they want other credentials,
    /// [`is_unsupported`](Error::is_unsupported) if they are too old or no cluster.
    pub async fn cluster(self) -> Result<Cluster, Error> {
        let cluster = self.cluster_later()?;
        cluster.shared.check().await?;
        Ok(cluster)
    }

    /// The same without connecting: that happens when it is first asked for something, on the
    /// runtime that asks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense.
    pub fn cluster_later(self) -> Result<Cluster, Error> {
        let hosts = Hosts::parse(self.url())?;
        let kit = self.kit(&hosts)?;
        let (keys, clock) = (kit.keys.clone(), Clock::system());
        let (nodes, releases) = (Nodes::new(kit, hosts.seeds, clock), Releases::default());
        Ok(Cluster { shared: Arc::new(Shared { nodes, keys, releases }) })
    }

    fn kit(&self, hosts: &Hosts) -> Result<Kit, Error> {
        let (pool_size, place) = (self.validate()?, &hosts.place);
        if self.prefix_said().contains(['{', '}']) {
            let shown = self.prefix_said().escape_debug();
            return Err(Error::invalid(format!(
                "invalid prefix `{shown}`: in a cluster, braces would put all locks into one slot"
            )));
        }
        let (replicas, by_name) = (self.wanted_replicas(place)?, place.has_tls());
        let (dial, keys) = (self.dial_to(place)?, Keys::in_cluster(self.prefix_said()));
        Ok(Kit { dial, pool_size, keys, author: crate::builder::author()?, replicas, by_name })
    }
}

impl Shared {
    /// Whether the cluster can be used: the node that has the first slot, to take one.
    async fn check(&self) -> Result<(), Error> {
        let owner = self.nodes.owner(0).await.map_err(Fault::from)?;
        owner.node.client().check().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let mut hops = Hops::new(self, claim.key());
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().ask_once(claim).await;
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                return answer;
            }
        }
    }

    /// What the first node said counts for more than that the next one knows nothing of it.
    async fn release(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let (mut hops, mut before) = (Hops::new(self, lease.claim().key()), Before::Nothing);
        let slot = self.nodes.forget(lease.claim().token());
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().release_after(slot.as_deref(), lease, then).await;
            match hops.judge(&owner, answer).await {
                Judged::Counts(answer) => {
                    if matches!(answer, Ok(Release::Freed)) && then == Then::Free {
                        self.note(lease.claim(), &owner);
                    }
                    return before.and(answer);
                }
                Judged::Elsewhere(answer) => before.add(answer),
            }
        }
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.nodes.forget(claim.token());
        if !claim.was_sent() {
            return Ok(());
        }
        let mut hops = Hops::new(self, claim.key());
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().abandon(claim).await;
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                if answer.is_ok() {
                    self.note(claim, &owner);
                }
                return answer;
            }
        }
    }

    async fn adopt(&self, claim: &Claim) -> Result<Option<Term>, Fault> {
        let mut hops = Hops::new(self, claim.key());
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().adopt(claim).await;
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                return answer;
            }
        }
    }

    async fn let_go(&self, key: &Key) -> Result<(), Fault> {
        let mut hops = Hops::new(self, key);
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().let_go(key).await;
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                return answer;
            }
        }
    }

    async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        let (mut hops, mut before) = (Hops::new(self, key), Before::Nothing);
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().force(key, seen, by).await;
            match hops.judge(&owner, answer).await {
                Judged::Counts(answer) => return before.and(answer),
                Judged::Elsewhere(answer) => before.add(answer),
            }
        }
    }

    /// Keeps the connections for renewals from being silently dead, each by itself. A node that has locks
    /// of ours has one before their first renewal: else nobody would notice that it came back empty.
    async fn tend_once(&self) {
        self.nodes.keep_watch();
        let here = Handle::current();
        let nodes = self.nodes.all();
        together(nodes.iter().map(|node| -> BoxFuture<'_, ()> {
            let keeper = node.keeper();
            keeper.renewals.settle_on(here.clone());
            Box::pin(async {
                match keeper.renewals.current().is_none() && keeper.commands.is_connected() {
                    // What is wrong is noted on the way.
                    true => drop(keeper.renewals.live().await),
                    false => keeper.renewals.ping().await,
                }
            })
        }))
        .await;
        self.release_earlier().await;
    }
}

/// What earlier owners of a slot have made of a release.
enum Before {
    Nothing,
    /// It may have been carried out.
    Unknown(Fault),
    Freed,
}

impl Before {
    fn add(&mut self, answer: Result<Release, Fault>) {
        match (&self, answer) {
            (_, Ok(Release::Freed)) => *self = Before::Freed,
            (Before::Nothing, Err(fault)) if fault.kind() == FaultKind::Unknown => {
                *self = Before::Unknown(fault);
            }
            _ => {}
        }
    }

    /// What it came to: that the lock is not ours now proves nothing where an earlier owner freed it.
    fn and(self, last: Result<Release, Fault>) -> Result<Release, Fault> {
        match (self, last) {
            (Before::Freed, Ok(Release::NotHeld)) => Ok(Release::Freed),
            (Before::Unknown(fault), Ok(Release::NotHeld)) => Err(fault),
            (_, last) => last,
        }
    }
}

impl Backend for Cluster {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis");
        // Clients of other makers poll.
        (can.unseen_waiters, can.permits) = (true, false);
        can
    }

    fn clock(&self) -> Clock {
        self.shared.nodes.clock.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(self.shared.try_acquire(claim))
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.shared.acquire(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.shared.renew(leases, answers))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.release(lease, then))
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.shared.abandon(claim))
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        Box::pin(self.shared.adopt(claim))
    }

    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.shared.let_go(lease.claim().key()))
    }

    fn heed(&self, lease: &Arc<Lease>) {
        let key = lease.claim().key();
        if let Some(owner) = self.shared.nodes.owner_now(self.shared.keys.slot(key)) {
            owner.keeper().heed(lease);
        }
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Here, so that a blocked application does not keep us from hearing of a failover.
            self.shared.nodes.keep_watch_here();
            let mut changes = self.shared.nodes.changes();
            loop {
                self.shared.tend_once().await;
                tokio::select! {
                    () = self.shared.nodes.clock.sleep(PING_EVERY) => {}
                    _ = changes.changed() => {}
                }
            }
        })
    }

    fn notices(&self) -> Notices {
        Notices::of(self.shared.nodes.notices())
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(self.shared.inspect(query))
    }

    fn hints(&self) -> BoxFuture<'_, Result<Option<Hints>, Fault>> {
        Box::pin(self.shared.hints())
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        Box::pin(self.shared.fates(ended))
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.force(key, seen, by))
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(self.look_for_flaws(ttl))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.shared.nodes.end_watch();
            self.shared.nodes.all().iter().for_each(|node| node.close());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> Result<Release, Fault> {
        Err(Fault::new(kind, "x"))
    }

    /// A release is what the first node made of it that carried it out; one that may have leaves it open.
    #[test]
    fn t36_a_release_at_several_nodes() {
        let came_to = |before: Vec<Result<Release, Fault>>| {
            let mut all = Before::Nothing;
            before.into_iter().for_each(|one| all.add(one));
            all.and(Ok(Release::NotHeld)).map_err(|fault| fault.kind())
        };
        let (unknown, not) = (FaultKind::Unknown, FaultKind::Unavailable);
        assert_eq!(came_to(vec![]), Ok(Release::NotHeld));
        assert_eq!(came_to(vec![fault(not)]), Ok(Release::NotHeld));
        assert_eq!(came_to(vec![fault(not), Ok(Release::Freed)]), Ok(Release::Freed));
        assert_eq!(came_to(vec![fault(unknown), fault(not)]), Err(unknown));
        assert_eq!(came_to(vec![fault(unknown), Ok(Release::Freed)]), Ok(Release::Freed));
    }
}

//! Locks on a quorum of independent servers (Redlock): a lock is held by whoever has the votes of a
//! majority of them.
//!
//! In: claims and leases from the engine. Out: what a majority of the nodes answered, as the contract
//! says it. What that gives and what it cannot give: `docs/quorum.md`.
//!
//! In reading order: `place` (the URL), this file (the contract), `home` (the thread), `round` (votes and
//! the fence) with `tally` (counting) and `wait`, `end`, `renew`, `look`; below them `node`, `crowd` and `scripts`. `doctor` looks at the nodes.

mod place;
mod home;
mod round;
mod tally;
mod wait;
mod end;
mod renew;
mod look;
mod node;
mod crowd;
mod scripts;
mod doctor;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, LockInfo,
    Notice, Notices, Query, Release, Term, Then,
};
use tenure_core::doctor::Finding;
use tenure_core::time::{self, Bounds, Clock, Time};
use tenure_core::{Claim, Error, Key, Lease, Token};
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use crate::backend::PING_EVERY;
use crate::builder::{self, Builder};
use crate::trouble::Cause;
use crate::value::Author;
use crowd::Crowd;
use home::Home;
use node::{Node, Roster};
use place::Places;
use round::Won;
use tally::{fault, majority, too_late};
use wait::Tried;

pub use place::NODES_MAX;

/// How many notices a slow listener may be behind before it is told that it missed some.
const NOTICES_KEPT: usize = 1024;
/// How many losses are remembered of which too few nodes have told.
const LOSSES_KEPT: usize = 1024;

/// Locks on an odd number of independent Redis or Valkey servers, of which a minority may fail.
///
/// A lock is granted when more than half of the nodes have given their vote, and lasts as long as a
/// majority of them keeps it. No node is a replica of another. Every grant carries a fence that rises
/// whichever nodes voted. Nobody is served in turn: who waits is told when the lock is free, and asks.
///
/// What it cannot promise: nodes whose clocks jump, or that forget what they acknowledged, may let a
/// second holder in; its fence is higher. There are no shared owners and no permits.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_core::Locker;
/// use tenure_redis::Quorum;
///
/// let quorum = Quorum::connect("redis+quorum://r1,r2,r3,r4,r5").await?;
/// let guard = Locker::new(quorum).lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Quorum {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    nodes: Vec<Arc<Node>>,
    home: Arc<Home>,
    author: Author,
    /// What looks after waits, without a timer of the runtime's.
    bounds: Bounds,
    /// Counts rounds, so that no two of this process are the same to a node.
    rounds: AtomicU64,
    /// The last number that was named for a fence.
    named: AtomicU64,
    notices: broadcast::Sender<Notice>,
    /// Which nodes have told of a loss, a bit each.
    losses: Mutex<HashMap<Token, u64>>,
}

impl Quorum {
    /// Connects to the nodes at `url`, and checks that they can keep locks.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::quorum`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).quorum().await
    }

    /// Starts from `url`, to say more than a URL can; [`Builder::quorum`] ends it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Builder {
    /// Connects to the nodes of a `redis+quorum://` URL, and checks that they can keep locks. A minority
    /// of them may be down.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if no majority can be reached,
    /// [`is_refused`](Error::is_refused) if a node wants other credentials or is a replica,
    /// [`is_unsupported`](Error::is_unsupported) if one is too old, a cluster's, or the same server as
    /// another.
    pub async fn quorum(self) -> Result<Quorum, Error> {
        let quorum = self.quorum_later()?;
        let shared = quorum.shared.clone();
        quorum.shared.home.ask(async move { shared.check().await }).await?;
        Ok(quorum)
    }

    /// The same without connecting: that happens when it is first asked for something.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if there is no thread to be had.
    pub fn quorum_later(self) -> Result<Quorum, Error> {
        let places = Places::parse(self.url())?;
        self.refuse_replicas(&places)?;
        let quarantine = self.quarantine_of_nodes().filter(|_| !places.trusts_restarted);
        let (author, roster) = (builder::author()?, Arc::new(Roster::new(places.nodes.len())));
        let home = Home::start().map_err(without_thread)?;
        let node = |(number, place)| {
            let client = self.client_at(place, &author)?;
            Ok(Arc::new(Node::new(client, number, &roster, quarantine, &home)))
        };
        let nodes: Result<_, Error> = places.nodes.iter().enumerate().map(node).collect();
        let (rounds, named, losses) = Default::default();
        let notices = broadcast::Sender::new(NOTICES_KEPT);
        let bounds = Bounds::new(Clock::system());
        let nodes = nodes?;
        let shared = Shared { nodes, home, author, bounds, rounds, named, notices, losses };
        Ok(Quorum { shared: Arc::new(shared) })
    }
}

fn without_thread(error: io::Error) -> Fault {
    Fault::new(FaultKind::Unavailable, format!("no thread to ask the nodes from: {error}"))
}

impl Builder {
    /// A replica that takes over a node may have missed its votes: it must not, so nobody waits for one.
    fn refuse_replicas(&self, places: &Places) -> Result<(), Error> {
        for place in &places.nodes {
            if self.wanted_replicas(place)?.is_some() {
                return Err(Error::invalid("a quorum has no use for `replicas`: its nodes vote"));
            }
        }
        Ok(())
    }
}

impl Shared {
    /// The clock is the system's: the same for all nodes.
    fn clock(&self) -> &Clock {
        &self.first().server().clock
    }

    /// A wait until `until`.
    fn at_most(&self, until: Time) -> (&Bounds, Duration) {
        (&self.bounds, until.since(self.clock().now()))
    }

    fn first(&self) -> &Node {
        &self.nodes[0]
    }

    fn response_timeout(&self) -> Duration {
        self.first().response_timeout()
    }

    /// How long nodes that cannot be reached are waited for, at the least.
    fn patience_while_down(&self) -> Duration {
        self.first().server().server.patience()
    }

    fn refuse_forked(&self) -> Result<(), Fault> {
        self.first().server().refuse_forked()
    }

    /// Whether a majority can be used, and none is what no node may be.
    async fn check(&self) -> Result<(), Fault> {
        let mut crowd = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let node = node.clone();
            crowd.ask(number, async move { node.check().await });
        }
        let (mut good, mut troubles) = (0, Vec::new());
        while let Some((_, answer)) = crowd.next(self.at_most(Time::NEVER)).await {
            match answer {
                Ok(()) => good += 1,
                // A replica is no node of its own, whatever becomes of it.
                Err(trouble) if trouble.is_final() || trouble.cause() == Cause::Demoted => {
                    return Err(trouble.into());
                }
                Err(trouble) => troubles.push(trouble),
            }
        }
        match good >= majority(self.nodes.len()) {
            true => Ok(()),
            false => Err(fault(self.nodes.len(), troubles.iter()).0),
        }
    }

    /// Tells every locker.
    fn tell(&self, notice: Notice) {
        // Nobody may be listening yet, or any more.
        let _ = self.notices.send(notice);
    }

    /// Passes on what a node says unasked. The loss of a vote is the loss of the lock only where so
    /// many are lost that the rest are no majority.
    fn heed(&self, number: usize, notice: Notice) {
        if let Notice::Lost { token, .. } = &notice
            && !self.is_lost_by(*token, number)
        {
            return;
        }
        self.tell(notice);
    }

    fn is_lost_by(&self, token: Token, number: usize) -> bool {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if losses.len() >= LOSSES_KEPT {
            // Renewals find out what is forgotten here.
            losses.clear();
        }
        let nodes = losses.entry(token).or_default();
        *nodes |= 1 << number;
        let lost = nodes.count_ones() as usize > self.nodes.len() - majority(self.nodes.len());
        if lost {
            losses.remove(&token);
        }
        lost
    }

    /// Keeps the connection for renewals of one node up.
    async fn tend_renewals(self: Arc<Self>, number: usize) {
        let node = &self.nodes[number];
        node.server().renewals.settle_on(Handle::current());
        loop {
            self.clock().sleep(PING_EVERY).await;
            node.server().renewals.ping().await;
        }
    }

    async fn pass_notices_on(self: Arc<Self>, number: usize) {
        let mut notices = self.nodes[number].server().server.notices();
        while let Some(notice) = notices.next().await {
            self.heed(number, notice);
        }
    }
}

impl Quorum {
    /// Does at home what is of use only to whoever waits for it.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        // A forked child does not have the thread.
        self.shared.refuse_forked()?;
        self.shared.home.ask(work).await
    }

    /// What was won, unless whoever asked stood still for so long that it is worth nothing any more.
    async fn take(&self, Won { grant, ballot }: Won) -> Result<Option<Grant>, Fault> {
        let now = self.shared.clock().now();
        match grant.term {
            Term::Lease { from, ttl } if now >= time::valid_until(from, ttl) => {}
            _ => return Ok(Some(grant)),
        }
        let shared = self.shared.clone();
        self.see_to(async move {
            shared.give_back_round(&ballot).await;
            Ok(None)
        })
        .await
    }

    /// Does there what is to be done whether or not anybody waits for it.
    async fn see_to<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.shared.refuse_forked()?;
        self.shared.home.see_to(work).await
    }
}

impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis+quorum");
        (can.fifo, can.unseen_waiters) = (false, true);
        (can.permits, can.shared_owners) = (false, false);
        can
    }

    fn clock(&self) -> Clock {
        self.shared.clock().clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        Box::pin(async move {
            match self.ask(async move { shared.ask_once(&claim).await }).await? {
                Tried::Held(holder) => Ok(Attempt::Held(holder)),
                Tried::Won(won) => match self.take(won).await? {
                    Some(grant) => Ok(Attempt::Granted(grant)),
                    None => Err(too_late()),
                },
            }
        })
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(async move {
            loop {
                let (shared, claim) = (self.shared.clone(), claim.clone());
                let won = self.ask(async move { shared.wait(&claim).await }).await?;
                if let Some(grant) = self.take(won).await? {
                    return Ok(grant);
                }
            }
        })
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
        let (shared, lease) = (self.shared.clone(), lease.clone());
        Box::pin(self.see_to(async move { shared.release(&lease, then).await }))
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        Box::pin(self.see_to(async move { shared.abandon(&claim).await }))
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        Box::pin(self.ask(async move { shared.adopt(&claim).await }))
    }

    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        let (shared, lease) = (self.shared.clone(), lease.clone());
        Box::pin(self.ask(async move { shared.let_go(&lease).await }))
    }

    fn heed(&self, lease: &Arc<Lease>) {
        self.shared.nodes.iter().for_each(|node| node.redis().heed(lease));
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut tasks = JoinSet::new();
            for number in 0..self.shared.nodes.len() {
                tasks.spawn(self.shared.clone().tend_renewals(number));
                tasks.spawn(self.shared.clone().pass_notices_on(number));
            }
            while tasks.join_next().await.is_some() {}
        })
    }

    fn notices(&self) -> Notices {
        Notices::of(&self.shared.notices)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(self.shared.inspect(query))
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
        let (shared, key, by) = (self.shared.clone(), key.clone(), by.to_owned());
        Box::pin(self.see_to(async move { shared.force(&key, seen, &by).await }))
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(self.look_for_flaws(ttl))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for node in &self.shared.nodes {
                node.redis().close().await;
            }
        })
    }
}

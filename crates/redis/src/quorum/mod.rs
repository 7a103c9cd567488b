//! Locks on a quorum of independent servers (Redlock): the holder is the claim with the votes of a majority.
//!
//! In: claims and leases from the engine. Out: the answer of a majority of the nodes, in the terms of the
//! contract. Guarantees and limits: `docs/engines/quorum.md`.
//!
//! In reading order: `url` (the URL), this file (the contract), `worker` (the thread), `round` (votes and the
//! fence) with `tally` (counting), and `wait`, `release`, `renew`, `inspect`; below them `node`, `fanout` and
//! `scripts`. `doctor` examines the nodes.

mod url;
mod worker;
mod round;
mod tally;
mod acquire;
mod release;
mod renew;
mod inspect;
mod node;
mod fanout;
mod scripts;
mod doctor;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, Capabilities, ClaimEnd, Fault, FaultKind, Grant,
    LockInfo, Notice, Notices, Notifier, Operator, Query, Release, Validity,
};
use tenure_core::doctor::Finding;
use tenure_core::time::{self, Clock, Time, TimeoutWheel};
use tenure_core::{Claim, Error, Key, Lease, Token};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::builder::{self, Builder};
use crate::error::Cause;
use crate::single::PING_EVERY;
use crate::wire::value::ValueWriter;
use acquire::Tried;
use fanout::Fanout;
use node::{NodeIds, QuorumNode};
use round::RoundWon;
use tally::{fault, majority, too_late};
use url::QuorumUrl;
use worker::Worker;

pub use url::NODES_MAX;

/// How many losses are remembered that too few nodes have reported so far.
const LOSSES_KEPT: usize = 1024;

/// Locks on an odd number of independent Redis or Valkey servers; a minority of them may fail.
///
/// A lock is granted when more than half of the nodes have voted for it, and is held while a majority of them
/// keeps it. A node votes for one writer, or for any number of readers. No node is a replica of another. Every
/// grant carries a fence that rises whichever nodes voted. Waiters are not served in order: a waiter is notified
/// when the lock is free, and asks again.
///
/// What it cannot promise: nodes whose clocks jump, or that lose writes they acknowledged, may let a second
/// holder in; its fence is higher. There are no shared owners and no permits.
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
    nodes: Vec<Arc<QuorumNode>>,
    worker: Arc<Worker>,
    writer: ValueWriter,
    /// Time-outs of waits, without timers of the runtime.
    bounds: TimeoutWheel,
    /// Counts rounds, so that each round of this process has a different number.
    rounds: AtomicU64,
    /// The last number that was proposed for a fence.
    named: AtomicU64,
    notifier: Notifier,
    /// The nodes that reported a loss, one bit each.
    losses: Mutex<HashMap<Token, u64>>,
}

impl Quorum {
    /// Connects to the nodes at `url`, and checks that they can store locks.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::quorum`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).quorum().await
    }

    /// Starts a builder from `url`, for settings that a URL cannot express; [`Builder::quorum`] finishes it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Builder {
    /// Connects to the nodes of a `redis+quorum://` URL, and checks that they can store locks. A minority of
    /// them may be down.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting,
    /// [`is_unavailable`](Error::is_unavailable) if no majority can be reached,
    /// [`is_refused`](Error::is_refused) if a node requires other credentials or is a replica,
    /// [`is_unsupported`](Error::is_unsupported) if a node is too old, part of a cluster, or the same server
    /// as another node.
    pub async fn quorum(self) -> Result<Quorum, Error> {
        Clock::system().must_run()?;
        let quorum = self.quorum_later()?;
        let shared = quorum.shared.clone();
        quorum.shared.worker.run_cancellable(async move { shared.check().await }).await?;
        Ok(quorum)
    }

    /// Like [`Builder::quorum`], but connects on the first request.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting,
    /// [`is_unavailable`](Error::is_unavailable) if no thread can be started.
    pub fn quorum_later(self) -> Result<Quorum, Error> {
        let url = QuorumUrl::parse(self.url())?;
        self.refuse_replicas(&url)?;
        let quarantine = self.quarantine_of_nodes().filter(|_| !url.trusts_restarted);
        let (writer, roster) = (builder::writer()?, Arc::new(NodeIds::new(url.nodes.len())));
        let worker = Worker::start().map_err(without_thread)?;
        let node = |(number, endpoint)| {
            let client = self.client_at(endpoint, &writer)?;
            Ok(Arc::new(QuorumNode::new(client, number, &roster, quarantine, &worker)))
        };
        let nodes: Result<_, Error> = url.nodes.iter().enumerate().map(node).collect();
        let (rounds, named, losses) = Default::default();
        let (notifier, bounds) = (Notifier::default(), TimeoutWheel::new(Clock::system()));
        let nodes = nodes?;
        let shared = Shared { nodes, worker, writer, bounds, rounds, named, notifier, losses };
        Ok(Quorum { shared: Arc::new(shared) })
    }
}

fn without_thread(error: io::Error) -> Fault {
    Fault::new(FaultKind::Unavailable, format!("no thread to ask the nodes from: {error}"))
}

impl Builder {
    /// A replica that takes over a node may have missed its votes. A node must not be taken over, so
    /// `replicas` is rejected.
    fn refuse_replicas(&self, url: &QuorumUrl) -> Result<(), Error> {
        for endpoint in &url.nodes {
            if self.wanted_replicas(endpoint)?.is_some() {
                return Err(Error::invalid("a quorum has no use for `replicas`: its nodes vote"));
            }
        }
        Ok(())
    }
}

impl Shared {
    /// The system's clock, the same for all nodes.
    fn clock(&self) -> &Clock {
        self.first().server().clock()
    }

    /// A wait until `until`.
    fn at_most(&self, until: Time) -> (&TimeoutWheel, Duration) {
        (&self.bounds, until.since(self.clock().now()))
    }

    fn first(&self) -> &QuorumNode {
        &self.nodes[0]
    }

    fn response_timeout(&self) -> Duration {
        self.first().response_timeout()
    }

    fn refuse_forked(&self) -> Result<(), Fault> {
        self.first().server().refuse_forked()
    }

    /// Checks that a majority can be used, and that no node has a permanent fault.
    async fn check(&self) -> Result<(), Fault> {
        let mut fanout = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let node = node.clone();
            fanout.ask(number, async move { node.check().await });
        }
        let (mut good, mut errors) = (0, Vec::new());
        while let Some((_, answer)) = fanout.next(self.at_most(Time::NEVER)).await {
            match answer {
                Ok(()) => good += 1,
                // A replica is not an independent node, even if it is promoted later.
                Err(error) if error.is_permanent() || error.cause() == Cause::Demoted => {
                    return Err(error.into());
                }
                Err(error) => errors.push(error),
            }
        }
        match good >= majority(self.nodes.len()) {
            true => Ok(()),
            false => Err(fault(self.nodes.len(), errors.iter()).0),
        }
    }

    /// Forwards a notice of a node. The loss of a vote is a loss of the lock only when the votes that are
    /// left are no majority.
    fn forward(&self, number: usize, notice: Notice) {
        if let Notice::Lost { token, .. } = &notice
            && !self.is_lost_by(*token, number)
        {
            return;
        }
        self.notifier.send(notice);
    }

    fn is_lost_by(&self, token: Token, number: usize) -> bool {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        if losses.len() >= LOSSES_KEPT {
            // Renewals detect the losses that are forgotten here.
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

    /// Keeps the renewal connection of one node alive.
    async fn ping_renewals(self: Arc<Self>, number: usize) {
        let node = &self.nodes[number];
        node.server().renewals().pin_to_runtime(Handle::current());
        loop {
            self.clock().sleep(PING_EVERY).await;
            node.server().renewals().ping().await;
        }
    }

    async fn forward_notices(self: Arc<Self>, number: usize) {
        let mut notices = self.nodes[number].server().server().notices();
        while let Some(notice) = notices.next().await {
            self.forward(number, notice);
        }
    }
}

impl Quorum {
    /// Runs work on the worker thread, and aborts it if this call is dropped.
    async fn run_cancellable<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        // A forked child process does not have the thread.
        self.shared.refuse_forked()?;
        self.shared.worker.run_cancellable(work).await
    }

    /// The grant of a round, unless the caller was blocked for so long that the lease has expired.
    async fn take(&self, RoundWon { grant, ballot }: RoundWon) -> Result<Option<Grant>, Fault> {
        let now = self.shared.clock().now();
        match grant.validity {
            Validity::Lease { from, ttl } if now >= time::valid_until(from, ttl) => {}
            _ => return Ok(Some(grant)),
        }
        let shared = self.shared.clone();
        self.run_to_completion(async move {
            shared.give_back_round(&ballot).await;
            Ok(None)
        })
        .await
    }

    /// Runs work on the worker thread to its end, even if this call is dropped.
    async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        self.shared.refuse_forked()?;
        self.shared.worker.run_to_completion(work).await
    }
}

#[async_trait]
impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis+quorum");
        (can.fifo, can.polling_waiters) = (false, true);
        (can.permits, can.shared_owners) = (false, false);
        can.reachable_within = self.shared.first().server().server().reachable_within();
        can.call_time = self.shared.first().server().server().target().call_time();
        can
    }

    fn clock(&self) -> Clock {
        self.shared.clock().clone()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        match self.run_cancellable(async move { shared.ask_once(&claim).await }).await? {
            Tried::Held(holder) => Ok(Attempt::Held(holder)),
            Tried::Won(won) => match self.take(won).await? {
                Some(grant) => Ok(Attempt::Granted(grant)),
                None => Err(too_late()),
            },
        }
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        loop {
            let (shared, claim) = (self.shared.clone(), claim.clone());
            let won = self.run_cancellable(async move { shared.wait(&claim).await }).await?;
            if let Some(grant) = self.take(won).await? {
                return Ok(grant);
            }
        }
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        self.shared.renew(leases, answers).await
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        let (shared, lease) = (self.shared.clone(), lease.clone());
        self.run_to_completion(async move { shared.release(&lease, then).await }).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        self.run_to_completion(async move { shared.abandon(&claim).await }).await
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        let (shared, claim) = (self.shared.clone(), claim.clone());
        self.run_cancellable(async move { shared.adopt(&claim).await }).await
    }

    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        let (shared, lease) = (self.shared.clone(), lease.clone());
        self.run_cancellable(async move { shared.relinquish(&lease).await }).await
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        self.shared.nodes.iter().for_each(|node| node.redis().watch_contention(lease));
    }

    async fn run(&self) {
        let mut tasks = JoinSet::new();
        for number in 0..self.shared.nodes.len() {
            tasks.spawn(self.shared.clone().ping_renewals(number));
            tasks.spawn(self.shared.clone().forward_notices(number));
        }
        while tasks.join_next().await.is_some() {}
    }

    fn subscribe(&self, _: Duration) -> Notices {
        self.shared.notifier.notices()
    }

    async fn close(&self) {
        for node in &self.shared.nodes {
            node.redis().close().await;
        }
    }

    fn operator(&self) -> Option<&dyn Operator> {
        Some(self)
    }
}

#[async_trait]
impl Operator for Quorum {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.shared.inspect(query).await
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        self.shared.end_reasons(ended).await
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        let (shared, key, by) = (self.shared.clone(), key.clone(), by.to_owned());
        self.run_to_completion(async move { shared.force(&key, seen, &by).await }).await
    }

    async fn diagnose(&self, ttl: Duration) -> Vec<Finding> {
        self.findings(ttl).await
    }
}

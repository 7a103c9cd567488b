//! One node of a quorum: a single server, and the check whether its vote counts.
//!
//! In: requests about a claim. Out: the node's answer, or why it has none that counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Claim, Key, Token};

use super::scripts::{self, RaiseReply, Unvote};
use super::tally::Vote;
use super::worker::Worker;
use crate::client::Client;
use crate::error::{Cause, EngineError};
use crate::link::{Connection, Link};
use crate::scripts::{
    AcquireReply, FastReleaseReply, IfUnknown, ReleaseReply, RenewReply, ScriptCall, WaitMode,
};
use crate::single::{Locks, Redis};
use crate::wire::keys::NO_SLOT;
use crate::wire::timing::{HEARTBEAT, HEARTBEATS_GOOD};
use crate::wire::value::{self, LockValue};

#[derive(Debug)]
pub(super) struct QuorumNode {
    redis: Redis,
    number: usize,
    roster: Arc<NodeIds>,
    /// How long the server must have run before its vote counts.
    quarantine: Option<Duration>,
    /// The epoch in which the server last ran the script of a vote.
    knows_vote: AtomicU64,
    /// Keeps the worker thread alive while the node is used.
    _worker: Arc<Worker>,
}

/// The server that each node was last connected to, to detect two nodes on one server.
#[derive(Debug)]
pub(super) struct NodeIds(Mutex<Vec<Entry>>);

#[derive(Clone, Debug, Default)]
struct Entry {
    /// The server's epoch; epochs start at one.
    epoch: u64,
    run_id: String,
}

impl NodeIds {
    pub(super) fn new(nodes: usize) -> Self {
        NodeIds(Mutex::new(vec![Entry::default(); nodes]))
    }

    /// Records the server of a node's connection. Returns the number of another node on the same server.
    fn meet(&self, number: usize, live: &Connection) -> Option<usize> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.get(number)?.epoch == live.epoch() {
            return None;
        }
        // A server without a run id cannot be compared with others.
        let same = |entry: &Entry| entry.run_id == live.run_id() && !entry.run_id.is_empty();
        let twin = entries.iter().enumerate().position(|(at, entry)| at != number && same(entry));
        if twin.is_none() {
            entries[number] = Entry { epoch: live.epoch(), run_id: live.run_id().into() };
        }
        twin
    }
}

/// The request of a round to every node.
pub(super) struct Ballot {
    pub(super) claim: Arc<Claim>,
    /// The value of the lock, without its flag and up to its number.
    pub(super) body: String,
    /// The number that we propose; `None` without a fence.
    pub(super) want: Option<u64>,
    /// Whether the claim is queued where it is denied.
    pub(super) waits: bool,
    /// The nodes that may have received the request, one bit each.
    pub(super) sent: AtomicU64,
    /// The round is decided.
    pub(super) over: AtomicBool,
}

impl Ballot {
    fn note_sent(&self, node: usize) {
        self.claim.set_sent();
        self.sent.fetch_or(1 << node, Ordering::Release);
    }

    /// Whether this node may have received the request.
    pub(super) fn was_sent(&self, node: usize) -> bool {
        self.sent.load(Ordering::Acquire) & (1 << node) != 0
    }

    /// Ends the round: nodes that have not answered are sent nothing more. Such a request could arrive after
    /// the release, and leave a vote that nothing takes back.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl QuorumNode {
    pub(super) fn new(
        client: Client,
        number: usize,
        roster: &Arc<NodeIds>,
        quarantine: Option<Duration>,
        worker: &Arc<Worker>,
    ) -> Self {
        let redis = Redis::owning(client);
        redis.locks.commands().pin_to_runtime(worker.handle());
        let (roster, _worker) = (roster.clone(), worker.clone());
        QuorumNode { redis, number, roster, quarantine, knows_vote: AtomicU64::new(0), _worker }
    }

    /// The node as a single server.
    pub(super) fn server(&self) -> &Locks {
        &self.redis.locks
    }

    pub(super) fn redis(&self) -> &Redis {
        &self.redis
    }

    /// How long the server must have run before its vote counts.
    pub(super) fn quarantine(&self) -> Option<Duration> {
        self.quarantine
    }

    fn link(&self, key: &Key) -> &Link {
        self.server().commands().of(key)
    }

    fn error(&self, cause: Cause, what: impl std::fmt::Display) -> EngineError {
        self.server().server().error(cause, what)
    }

    /// Checks that this node can be used.
    pub(super) async fn check(&self) -> Result<(), EngineError> {
        let live = self.server().commands().any().live().await?;
        self.admit(&live)
    }

    /// Rejects a server that already votes as another node.
    fn admit(&self, live: &Connection) -> Result<(), EngineError> {
        match self.roster.meet(self.number, live) {
            None => Ok(()),
            Some(_) => {
                let what = "it is the same server as another node of the quorum";
                Err(self.error(Cause::Unsupported, what))
            }
        }
    }

    /// Rejects the vote of a server that may have forgotten a lock when it restarted. A lock that was held
    /// then has expired after the longest ttl in use: that of this claim, or the configured quarantine.
    fn check_quarantine(&self, live: &Connection, ttl: Duration) -> Result<(), EngineError> {
        let Some(quarantine) = self.quarantine else { return Ok(()) };
        let up = self.server().clock().now().since(live.up_since());
        let needed = quarantine.max(ttl);
        if up >= needed {
            return Ok(());
        }
        let what = format!(
            "it started {}s ago and may have forgotten a lock: its vote counts after {needed:?}; \
             `trust_restarted` waives that",
            up.as_secs()
        );
        Err(self.error(Cause::Busy, what))
    }

    /// Asks for this node's vote.
    pub(super) async fn vote(self: Arc<Self>, ballot: Arc<Ballot>) -> Result<Vote, EngineError> {
        let Ballot { claim, body, want, waits, .. } = &*ballot;
        let live = self.link(claim.key()).live().await?;
        self.admit(&live)?;
        self.check_quarantine(&live, claim.ttl())?;
        ballot.note_sent(self.number);
        if *waits {
            // Registered before the request: a notification may arrive before its reply.
            self.register(claim);
        }
        let run = scripts::vote(self.server().keys(), claim, body, *want, self.wait_mode(&ballot));
        match self.ask(&ballot, &run, &live).await? {
            AcquireReply::Granted { fence, contended, .. } => {
                if contended {
                    self.mark_contended(claim.key());
                }
                Ok(Vote::Yes { number: fence, contended })
            }
            AcquireReply::Held { value, left } | AcquireReply::Queued { value, left, .. } => {
                self.mark_contended(claim.key());
                Ok(Vote::Held { value: holder_of(&value), left })
            }
            refused => Err(self.server().acquirer.refused(claim, &refused)),
        }
    }

    /// Runs the script that asks for a vote, while the round is open. If the server has not run it in this
    /// epoch, its text is sent at once instead of its hash: a node that is slow to report a missing script
    /// would miss the round.
    async fn ask(
        &self,
        ballot: &Ballot,
        run: &ScriptCall,
        live: &Arc<Connection>,
    ) -> Result<AcquireReply, EngineError> {
        let (link, knows) = (self.link(ballot.claim.key()), &self.knows_vote);
        let answer = match knows.load(Ordering::Relaxed) == live.epoch() {
            true => run.on_live(link, live, IfUnknown::RepeatWhile(&|| !ballot.is_over())).await,
            false => run.on_live(link, live, IfUnknown::SendText).await,
        };
        match &answer {
            Ok(_) => knows.store(live.epoch(), Ordering::Relaxed),
            Err(error) if error.cause() == Cause::NoScript => knows.store(0, Ordering::Relaxed),
            Err(_) => {}
        }
        answer
    }

    /// Notes that others want the lock.
    fn mark_contended(&self, key: &Key) {
        self.server()
            .inbox()
            .waiters()
            .contention()
            .mark_contended(key, self.server().clock().now());
    }

    fn wait_mode(&self, ballot: &Ballot) -> WaitMode {
        let every = HEARTBEAT.max(ballot.claim.retry_interval());
        match (ballot.waits, self.server().inbox().is_subscribed(NO_SLOT)) {
            (false, _) => WaitMode::No,
            (true, true) => WaitMode::Pubsub(HEARTBEAT * 2 + self.response_timeout()),
            (true, false) => WaitMode::Poll(every * HEARTBEATS_GOOD),
        }
    }

    pub(super) async fn raise(self: Arc<Self>, ballot: Arc<Ballot>, fence: u64) -> Written {
        let run = scripts::raise(self.server().keys(), &ballot.claim, &ballot.body, fence);
        run.on(self.link(ballot.claim.key())).await
    }

    /// Takes the vote back, with the fast script `give` first, if there is one.
    pub(super) async fn free(
        self: Arc<Self>,
        key: Key,
        token: Token,
        given: Unvote,
        was_ours: bool,
        give: Option<Arc<ScriptCall>>,
    ) -> Result<ReleaseReply, EngineError> {
        if matches!(given, Unvote::Claim(_)) {
            self.forget(token);
        }
        let (epoch, mut cut) = (self.server().server().epoch(), false);
        if let Some(give) = &give {
            match give.on(self.link(&key)).await {
                Ok(FastReleaseReply::Yes) => return Ok(ReleaseReply::Yes),
                Ok(FastReleaseReply::UseFull) => {}
                Err(error) if error.cause() == Cause::Disconnected => cut = true,
                Err(error) => return Err(error),
            }
        }
        let run = scripts::unvote(self.server().keys(), &key, token, &given);
        let was_ours = was_ours.then_some(epoch);
        let freed = Box::pin(self.free_in_full(&key, &run, was_ours, cut)).await?;
        // The vote was ours, but the fast script declined: others wait. A node without our vote shows nothing
        // about others.
        if give.is_some() && !cut && freed == ReleaseReply::Yes {
            self.mark_contended(&key);
        }
        Ok(freed)
    }

    /// Runs the full script, and repeats it if its reply was lost with the connection; `cut` says that the
    /// reply to the fast script was lost already. If the repeat replies `NotHeld` and the server is still in
    /// the epoch `was_ours`, in which the vote was ours, then the first request freed it.
    async fn free_in_full(
        &self,
        key: &Key,
        run: &ScriptCall,
        was_ours: Option<u64>,
        cut: bool,
    ) -> Result<ReleaseReply, EngineError> {
        if !cut {
            match run.on(self.link(key)).await {
                Err(error) if error.cause() == Cause::Disconnected => {}
                answer => return answer,
            }
        }
        let again = run.on(self.link(key)).await?;
        let same = was_ours.is_some_and(|epoch| self.server().server().is_at(epoch));
        let did_it = again == ReleaseReply::NotHeld && same;
        Ok(if did_it { ReleaseReply::Yes } else { again })
    }

    /// Takes back all that an abandoned claim has on this node. Fails if an earlier connection may still
    /// carry out a request.
    pub(super) async fn abandon(self: Arc<Self>, claim: Arc<Claim>) -> Result<(), EngineError> {
        let (key, token) = (claim.key().clone(), claim.token());
        self.clone().free(key, token, Unvote::Claim(None), false, None).await?;
        match self.link(claim.key()).may_have_zombies(claim.ttl()) {
            false => Ok(()),
            true => {
                let what = "an earlier connection could not be closed and may still act";
                Err(self.error(Cause::Disconnected, what))
            }
        }
    }

    pub(super) async fn renew(
        self: Arc<Self>,
        claim: Arc<Claim>,
    ) -> Result<RenewReply, EngineError> {
        let run = ScriptCall::renew(self.server().keys(), None, &claim, None, claim.ttl());
        run.on(self.link(claim.key())).await
    }

    /// Waits until all earlier requests about `key` have been answered.
    pub(super) async fn flush(self: Arc<Self>, key: Key) -> Result<(), EngineError> {
        let link = self.link(&key);
        let live = link.live().await?;
        link.call(&live, redis::cmd("PING")).await.map(drop)
    }

    /// Drops the notifications of this node for the claim.
    pub(super) fn forget(&self, token: Token) {
        self.server().inbox().waiters().remove(token);
    }

    /// Keeps the notifications of this node for the claim from now on.
    fn register(&self, claim: &Arc<Claim>) {
        self.server().inbox().waiters().register(claim);
    }

    /// Waits until this node notifies that the lock may be free.
    pub(super) async fn notified(self: Arc<Self>, claim: Arc<Claim>) {
        let slot = self.server().inbox().waiters().register(&claim);
        slot.push().await;
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.server().renewals().response_timeout()
    }
}

/// The holder that keeps a claim out: its value, or the entry of one reader. All readers count as one holder, since
/// each node may name another one.
fn holder_of(raw: &[u8]) -> LockValue {
    match value::member(raw) {
        Some((reader, ..)) => {
            LockValue::Held { holder: Box::new(reader), token: None, fence: None }
        }
        None => LockValue::parse(raw),
    }
}

/// The result of a write-back.
pub(super) type Written = Result<RaiseReply, EngineError>;

//! One node of a quorum: a server as a single one would be, and whether its vote counts.
//!
//! In: requests about a claim. Out: the node's answer, or why there is none that counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Claim, Key, Token};

use super::home::Home;
use super::scripts::{self, Given, Raised};
use super::tally::Vote;
use crate::backend::{Redis, Shared};
use crate::client::Client;
use crate::keys::NO_SLOT;
use crate::link::{Link, Live};
use crate::scripts::{Answer, Asked, Freed, Given as Plainly, How, Renewed, Run, Taken};
use crate::trouble::{Cause, Trouble};
use crate::value::Said;
use crate::wait::{HEARTBEAT, HEARTBEATS_GOOD};

#[derive(Debug)]
pub(super) struct Node {
    redis: Redis,
    number: usize,
    roster: Arc<Roster>,
    /// How long it must have run before its vote counts.
    quarantine: Option<Duration>,
    /// In which turn the server has run the short and the full form of a vote.
    knows_take: AtomicU64,
    knows_vote: AtomicU64,
    /// Lasts as long as anybody has something to ask the node.
    _home: Arc<Home>,
}

/// Which server each node was last found to be, to tell when two are one.
#[derive(Debug)]
pub(super) struct Roster(Mutex<Vec<Entry>>);

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Turns are counted from one.
    turn: u64,
    run_id: String,
}

impl Roster {
    pub(super) fn new(nodes: usize) -> Self {
        Roster(Mutex::new(vec![Entry::default(); nodes]))
    }

    /// Takes note of where a node's connection leads; the number of a node that leads there too.
    fn meet(&self, number: usize, live: &Live) -> Option<usize> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.get(number)?.turn == live.turn() {
            return None;
        }
        // A server that does not say which it is cannot be told from any other.
        let same = |entry: &Entry| entry.run_id == live.run_id() && !entry.run_id.is_empty();
        let twin = entries.iter().enumerate().position(|(at, entry)| at != number && same(entry));
        if twin.is_none() {
            entries[number] = Entry { turn: live.turn(), run_id: live.run_id().into() };
        }
        twin
    }
}

/// What a round asks every node for.
pub(super) struct Ballot {
    pub(super) claim: Arc<Claim>,
    /// What the lock is to hold.
    pub(super) body: String,
    /// The number that would suit; `None` without a fence.
    pub(super) want: Option<u64>,
    /// Whether the claim waits where it is denied.
    pub(super) waits: bool,
    /// The short form, where nobody else is known to want the lock.
    pub(super) take: Option<Run>,
    /// Which nodes may have been asked, a bit each.
    pub(super) sent: AtomicU64,
    /// The round is decided.
    pub(super) over: AtomicBool,
}

impl Ballot {
    fn note_sent(&self, node: usize) {
        self.sent.fetch_or(1 << node, Ordering::Release);
    }

    /// Whether this node may have been asked.
    pub(super) fn was_sent(&self, node: usize) -> bool {
        self.sent.load(Ordering::Acquire) & (1 << node) != 0
    }

    /// Whoever has not answered yet is asked for nothing more: that could come after the release, and
    /// make a vote that is nobody's.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Node {
    pub(super) fn new(
        client: Client,
        number: usize,
        roster: &Arc<Roster>,
        quarantine: Option<Duration>,
        home: &Arc<Home>,
    ) -> Self {
        let redis = Redis::alone_on(client);
        redis.shared.commands.settle_on(home.handle());
        let (knows_take, knows_vote) = Default::default();
        let (roster, _home) = (roster.clone(), home.clone());
        Node { redis, number, roster, quarantine, knows_take, knows_vote, _home }
    }

    /// The server as a single one would be used.
    pub(super) fn server(&self) -> &Shared {
        &self.redis.shared
    }

    pub(super) fn redis(&self) -> &Redis {
        &self.redis
    }

    /// How long it must have run before its vote counts.
    pub(super) fn quarantine(&self) -> Option<Duration> {
        self.quarantine
    }

    fn link(&self, key: &Key) -> &Link {
        self.server().commands.of(key)
    }

    fn trouble(&self, cause: Cause, what: impl std::fmt::Display) -> Trouble {
        self.server().server.trouble(cause, what)
    }

    /// Whether this node can be used at all.
    pub(super) async fn check(&self) -> Result<(), Trouble> {
        let live = self.server().commands.any().live().await?;
        self.admit(&live)
    }

    /// Refuses a server that votes under another name already.
    fn admit(&self, live: &Live) -> Result<(), Trouble> {
        match self.roster.meet(self.number, live) {
            None => Ok(()),
            Some(_) => {
                let what = "it is the same server as another node of the quorum";
                Err(self.trouble(Cause::Unsupported, what))
            }
        }
    }

    /// Refuses the vote of a server that may have forgotten a lock since it started. What was held then
    /// has ended after the longest ttl that anybody uses, our own or what we were told.
    fn refuse_young(&self, live: &Live, ttl: Duration) -> Result<(), Trouble> {
        let Some(quarantine) = self.quarantine else { return Ok(()) };
        let up = self.server().clock.now().since(live.up_since());
        let needed = quarantine.max(ttl);
        if up >= needed {
            return Ok(());
        }
        let what = format!(
            "it started {}s ago and may have forgotten a lock: its vote counts after {needed:?}; \
             `trust_restarted` waives that",
            up.as_secs()
        );
        Err(self.trouble(Cause::NotNow, what))
    }

    /// Asks for this node's vote: by the short form where that may do, else by the full one.
    pub(super) async fn vote(self: Arc<Self>, ballot: Arc<Ballot>) -> Result<Vote, Trouble> {
        let claim = &ballot.claim;
        let live = self.link(claim.key()).live().await?;
        self.admit(&live)?;
        self.refuse_young(&live, claim.ttl())?;
        ballot.note_sent(self.number);
        if let Some(take) = self.short_form(&ballot) {
            match self.ask(&ballot, take, &live, &self.knows_take).await? {
                Taken::Yes(number) => return Ok(Vote::Yes { number, contended: false }),
                Taken::More => self.disturb(claim.key()),
            }
        }
        // Boxed, as is all that is rare here: what is made for every lock is to be small.
        Box::pin(self.vote_in_full(&ballot, &live)).await
    }

    /// Runs what asks for a vote, as long as the round lasts. `knows` is the turn in which the server has
    /// run it before. In another it is sent the text at once: one that is slow to say that it needs it
    /// would have no vote to give any more.
    async fn ask<A: Answer>(
        &self,
        ballot: &Ballot,
        run: &Run,
        live: &Arc<Live>,
        knows: &AtomicU64,
    ) -> Result<A, Trouble> {
        let link = self.link(ballot.claim.key());
        let answer = match knows.load(Ordering::Relaxed) == live.turn() {
            true => run.on_live_while(link, live, || !ballot.is_over()).await,
            false => Box::pin(run.on_new(link, live)).await,
        };
        match &answer {
            Ok(_) => knows.store(live.turn(), Ordering::Relaxed),
            Err(trouble) if trouble.cause() == Cause::NoScript => knows.store(0, Ordering::Relaxed),
            Err(_) => {}
        }
        answer
    }

    /// One that may stand in this node's queue has to leave it, which only the full form does.
    fn short_form<'a>(&self, ballot: &'a Ballot) -> Option<&'a Run> {
        let knows = self.server().inbox.desk().knows(ballot.claim.token());
        ballot.take.as_ref().filter(|_| !knows)
    }

    /// Others want it.
    fn disturb(&self, key: &Key) {
        self.server().calm().disturb(key, self.server().clock.now());
    }

    async fn vote_in_full(&self, ballot: &Ballot, live: &Arc<Live>) -> Result<Vote, Trouble> {
        let Ballot { claim, body, want, waits, .. } = ballot;
        if ballot.is_over() {
            return Err(self.trouble(Cause::NotNow, "the others had decided before it answered"));
        }
        if *waits {
            // Before asking: it may tell before its answer is read.
            self.expect(claim);
        }
        let run = scripts::vote(&self.server().keys, claim, body, *want, self.how(ballot));
        match self.ask(ballot, &run, live, &self.knows_vote).await? {
            Asked::Granted { fence, contended } => Ok(Vote::Yes { number: fence, contended }),
            Asked::Held { value, left } | Asked::Queued { value, left, .. } => {
                Ok(Vote::Held { said: Said::parse(&value), left })
            }
            refused => Err(self.server().refused(claim, &refused)),
        }
    }

    fn how(&self, ballot: &Ballot) -> How {
        let every = HEARTBEAT.max(ballot.claim.retry_interval());
        match (ballot.waits, self.server().inbox.hears(NO_SLOT)) {
            (false, _) => How::Not,
            (true, true) => How::Told(HEARTBEAT * 2 + self.response_timeout()),
            (true, false) => How::Asks(every * HEARTBEATS_GOOD),
        }
    }

    pub(super) async fn raise(self: Arc<Self>, ballot: Arc<Ballot>, fence: u64) -> Written {
        let run = scripts::raise(&self.server().keys, &ballot.claim, &ballot.body, fence);
        run.on(self.link(ballot.claim.key())).await
    }

    /// Takes the vote back, by the short form `give` first, if there is one.
    pub(super) async fn free(
        self: Arc<Self>,
        key: Key,
        token: Token,
        given: Given,
        was_ours: bool,
        give: Option<Arc<Run>>,
    ) -> Result<Freed, Trouble> {
        if matches!(given, Given::Claim(_)) {
            self.server().inbox.desk().forget(token);
        }
        let (turn, mut cut) = (self.server().server.turn(), false);
        if let Some(give) = &give {
            match give.on(self.link(&key)).await {
                Ok(Plainly::Yes) => return Ok(Freed::Yes),
                Ok(Plainly::More) => {}
                Err(trouble) if trouble.cause() == Cause::Cut => cut = true,
                Err(trouble) => return Err(trouble),
            }
        }
        let run = scripts::free(&self.server().keys, &key, token, &given);
        let was_ours = was_ours.then_some(turn);
        let freed = Box::pin(self.free_in_full(&key, &run, was_ours, cut)).await?;
        // Ours, and not plainly so: others wait. One that never had our vote says nothing of others.
        if give.is_some() && !cut && freed == Freed::Yes {
            self.disturb(&key);
        }
        Ok(freed)
    }

    /// One whose reply was lost with its connection is asked for again; what the same server then does
    /// not know was given back by the first request, if it was ours in `was_ours`. `cut` says that
    /// one was lost.
    async fn free_in_full(
        &self,
        key: &Key,
        run: &Run,
        was_ours: Option<u64>,
        cut: bool,
    ) -> Result<Freed, Trouble> {
        if !cut {
            match run.on(self.link(key)).await {
                Err(trouble) if trouble.cause() == Cause::Cut => {}
                answer => return answer,
            }
        }
        let again = run.on(self.link(key)).await?;
        let same = was_ours.is_some_and(|turn| self.server().server.is_at(turn));
        let did_it = again == Freed::NotHeld && same;
        Ok(if did_it { Freed::Yes } else { again })
    }

    /// The same for a claim that nobody wants any more, with what may still be under way.
    pub(super) async fn abandon(self: Arc<Self>, claim: Arc<Claim>) -> Result<(), Trouble> {
        let (key, token) = (claim.key().clone(), claim.token());
        self.clone().free(key, token, Given::Claim(None), false, None).await?;
        match self.link(claim.key()).may_have_strays(claim.ttl()) {
            false => Ok(()),
            true => {
                let what = "an earlier connection could not be closed and may still act";
                Err(self.trouble(Cause::Cut, what))
            }
        }
    }

    pub(super) async fn renew(self: Arc<Self>, claim: Arc<Claim>) -> Result<Renewed, Trouble> {
        let run = Run::renew(&self.server().keys, &claim, claim.ttl());
        run.on(self.link(claim.key())).await
    }

    /// Has an answer to all that was asked before about `key`.
    pub(super) async fn settle(self: Arc<Self>, key: Key) -> Result<(), Trouble> {
        let link = self.link(&key);
        let live = link.live().await?;
        link.call(&live, redis::cmd("PING")).await.map(drop)
    }

    /// Keeps what this node tells of the claim from now on.
    fn expect(&self, claim: &Arc<Claim>) {
        self.server().inbox.desk().expect(claim);
    }

    /// Waits until this node tells that the lock may be had.
    pub(super) async fn told(self: Arc<Self>, claim: Arc<Claim>) {
        let slot = self.server().inbox.desk().expect(&claim);
        slot.push().await;
    }

    pub(super) fn response_timeout(&self) -> Duration {
        self.server().renewals.response_timeout()
    }
}

/// What came of a write-back.
pub(super) type Written = Result<Raised, Trouble>;

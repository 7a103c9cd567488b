//! One round: the votes of a majority, and the fence, written back; or a retreat.
//!
//! In: a claim. Out: a grant, or a [`RoundLost`]: who or what denied it.
//!
//! The fence is the highest number of the counted votes. It is safe once each node of a majority has raised
//! its count to it while the vote of this very round was ours there. A claim that wins a majority later
//! shares a node with us, gets its vote after ours has ended, and so gets a higher number
//! (`docs/design/0009-quorum.md`; checked by `crates/model`). A vote whose number is the fence has written it
//! already: if all nodes accept the number that we propose, one round trip is enough.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::backend::{Grant, Validity};
use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::{self, Time, UnixMillis};
use tenure_core::{Claim, Key};

use super::Shared;
use super::fanout::Fanout;
use super::node::{Ballot, Written};
use super::scripts::{self, RaiseReply, Unvote};
use super::tally::{Count, RoundLost, Vote, Why};
use crate::error::EngineError;

/// The part of the ttl within which a node has to answer: after several failures in a row most of it is left.
const PATIENCE_PART: u32 = 5;
/// How far the proposed number is ahead of our clock, in milliseconds: a node's clock may be ahead of ours,
/// and the request takes time. Nodes reject a number that is further ahead than `vote.lua` allows.
const WANT_AHEAD: u64 = 10;

/// A round that was won.
pub(super) struct RoundWon {
    pub(super) grant: Grant,
    pub(super) ballot: Arc<Ballot>,
}

/// The requests of a round, one for each node.
struct Votes {
    fanout: Fanout<Result<Vote, EngineError>>,
    ballot: Arc<Ballot>,
}

impl Shared {
    /// How long the nodes have to answer: far less than the ttl.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        (ttl / PATIENCE_PART).min(self.response_timeout())
    }

    /// Asks every node for its vote; the votes of a majority are a grant.
    pub(super) async fn round(
        &self,
        claim: &Arc<Claim>,
        waits: bool,
    ) -> Result<RoundWon, RoundLost> {
        // Read the clock before sending: every node's ttl starts after this, so our estimate of it can only
        // be too short.
        let from = self.clock().now();
        let ballot = Arc::new(self.ballot(claim, waits));
        let until = from.after(self.patience(claim.ttl()));
        let (mut votes, mut count) = (self.ask_all(&ballot), Count::new(self.nodes.len()));
        while !count.is_decided()
            && let Some((node, vote)) = votes.fanout.next(self.at_most(until)).await
        {
            count.add(node, vote);
        }
        let won = match count.is_won() {
            true => self.write_back(&ballot, &count, until).await,
            false => Err(Why::Denied),
        };
        match won {
            Ok(()) if self.clock().now() < time::valid_until(from, claim.ttl()) => {
                self.leave_the_rest(votes);
                let term = Validity::Lease { from, ttl: claim.ttl() };
                let grant = Grant::new(count.fence(), term).contended(count.is_contended());
                Ok(RoundWon { grant, ballot })
            }
            Ok(()) => Err(self.retreat(&ballot, votes, count, Why::TooLate).await),
            Err(why) => Err(self.retreat(&ballot, votes, count, why).await),
        }
    }

    fn ballot(&self, claim: &Arc<Claim>, waits: bool) -> Ballot {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let body = scripts::body(&self.writer, claim, round);
        let want = claim.fenced().then(|| self.want());
        let (sent, over) = Default::default();
        Ballot { claim: claim.clone(), body, want, waits, sent, over }
    }

    /// Whether no node has shown contention for this key lately.
    pub(super) fn is_uncontended(&self, key: &Key, now: Time) -> bool {
        self.nodes
            .iter()
            .all(|node| node.server().inbox().waiters().contention().is_uncontended(key, now))
    }

    /// The number to propose to all nodes, higher than all that we proposed before: a node that accepted one
    /// of those can accept this one as it is.
    fn want(&self) -> u64 {
        let clock = (UnixMillis::now().0 + WANT_AHEAD).saturating_sub(EPOCH.0) * PER_MILLI;
        let next = |last: u64| Some(clock.max(last + 1));
        let last = self.named.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        clock.max(last.unwrap_or_default() + 1)
    }

    fn ask_all(&self, ballot: &Arc<Ballot>) -> Votes {
        let mut fanout = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            fanout.ask(number, node.clone().vote(ballot.clone()));
        }
        Votes { fanout, ballot: ballot.clone() }
    }

    /// Raises the count of every counted node to the fence.
    async fn write_back(
        &self,
        ballot: &Arc<Ballot>,
        count: &Count,
        until: Time,
    ) -> Result<(), Why> {
        let mut fanout: Fanout<Written> = Fanout::new();
        for node in count.below_the_fence() {
            fanout.ask(node, self.nodes[node].clone().raise(ballot.clone(), count.fence()));
        }
        let mut left = fanout.pending().count();
        while left > 0 {
            match fanout.next(self.at_most(until)).await {
                Some((_, Ok(RaiseReply::Yes))) => left -= 1,
                // Another claim has that node by now, or the result is unknown.
                Some(_) | None => return Err(Why::Overtaken),
            }
        }
        Ok(())
    }

    /// Lets slow nodes that were sent the request store the vote too: then the lock survives more failures of
    /// the others. Nodes that were not sent it yet are left out.
    fn leave_the_rest(&self, mut votes: Votes) {
        // Before any of the futures is polled again.
        votes.ballot.end();
        for node in votes.unsent() {
            votes.fanout.take(node);
        }
        votes.fanout.detach();
    }

    /// Takes back what this round has won or may still win, on every node that may have received it. The
    /// votes that are known to be ours are taken back before this returns; the rest follows in the
    /// background.
    async fn retreat(
        &self,
        ballot: &Arc<Ballot>,
        mut votes: Votes,
        count: Count,
        why: Why,
    ) -> RoundLost {
        let until = self.clock().now().after(self.patience(ballot.claim.ttl()));
        ballot.end();
        for node in votes.unsent() {
            votes.fanout.take(node);
        }
        let slow: Vec<usize> = votes.fanout.pending().collect();
        for node in slow {
            let (vote, free) = (votes.fanout.take(node), self.free_round(node, ballot));
            // In this order, also if the vote has to be requested anew.
            tokio::spawn(async move {
                if let Some(vote) = vote {
                    drop(vote.await);
                }
                free.await;
            });
        }
        self.give_back_on(count.to_give_back(), ballot, until).await;
        RoundLost { why, count }
    }

    /// Takes back a round that was won, but returned to its caller too late.
    pub(super) async fn give_back_round(&self, ballot: &Arc<Ballot>) {
        let until = self.clock().now().after(self.patience(ballot.claim.ttl()));
        self.give_back_on(0..self.nodes.len(), ballot, until).await;
    }

    async fn give_back_on(
        &self,
        nodes: impl Iterator<Item = usize>,
        ballot: &Arc<Ballot>,
        until: Time,
    ) {
        let mut frees = Fanout::new();
        for node in nodes {
            frees.ask(node, self.free_round(node, ballot));
        }
        while frees.next(self.at_most(until)).await.is_some() {}
        frees.detach();
    }

    fn free_round(
        &self,
        node: usize,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (key, token) = (ballot.claim.key().clone(), ballot.claim.token());
        let given = Unvote::Round(ballot.body.clone());
        let free = self.nodes[node].clone().free(key, token, given, false, None);
        async move { drop(free.await) }
    }
}

impl Votes {
    /// The nodes that were not sent the request yet, because there is no connection to them.
    fn unsent(&self) -> Vec<usize> {
        let unsent = |node: &usize| !self.ballot.was_sent(*node);
        self.fanout.pending().filter(unsent).collect()
    }
}

//! One round: votes of a majority, the fence, written back; or a retreat.
//!
//! In: a claim. Out: a grant, or a [`Miss`]: who or what denied it.
//!
//! The fence is the highest number of the votes that are counted. It is good once each of a majority
//! of nodes has counted up to it while the vote of this very round was ours there: whoever gets a
//! majority later shares a node with us, gets its vote after ours has ended, and so a higher number
//! (`docs/design/0009-quorum.md`; checked by `crates/model`). A vote that came with the fence itself
//! has written it already: where all nodes can take the number that we named, one round trip is all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::backend::{Grant, Term};
use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::{self, Time, UnixMillis};
use tenure_core::{Claim, Key};

use super::Shared;
use super::crowd::Crowd;
use super::node::{Ballot, Written};
use super::scripts::{self, Given, Raised};
use super::tally::{Count, Miss, Vote, Why};
use crate::trouble::Trouble;

/// What part of the ttl a node has to answer in: so many failures in a row leave most of it.
const PATIENCE_PART: u32 = 5;
/// How far ahead of our clock, in milliseconds, the number is that we name: a node's clock may be
/// ahead of ours, and it is later there. Nodes take no number that is further ahead than `vote.lua` says.
const WANT_AHEAD: u64 = 10;

/// A round that was won.
pub(super) struct Won {
    pub(super) grant: Grant,
    pub(super) ballot: Arc<Ballot>,
}

/// A question to each node.
struct Votes {
    crowd: Crowd<Result<Vote, Trouble>>,
    ballot: Arc<Ballot>,
}

impl Shared {
    /// How long the nodes have to answer: far less than the ttl.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        (ttl / PATIENCE_PART).min(self.response_timeout())
    }

    /// Asks every node for its vote; grants what a majority gives.
    pub(super) async fn round(&self, claim: &Arc<Claim>, waits: bool) -> Result<Won, Miss> {
        // Read the clock before sending: every node's ttl starts after this, so our view of it can
        // only be too short.
        let from = self.clock().now();
        let ballot = Arc::new(self.ballot(claim, waits, from));
        let until = from.after(self.patience(claim.ttl()));
        let (mut votes, mut count) = (self.ask_all(&ballot), Count::new(self.nodes.len()));
        while !count.is_decided()
            && let Some((node, vote)) = votes.crowd.next(self.at_most(until)).await
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
                let term = Term::Lease { from, ttl: claim.ttl() };
                let grant = Grant::new(count.fence(), term).contended(count.is_contended());
                Ok(Won { grant, ballot })
            }
            Ok(()) => Err(self.retreat(&ballot, votes, count, Why::TooLate).await),
            Err(why) => Err(self.retreat(&ballot, votes, count, why).await),
        }
    }

    fn ballot(&self, claim: &Arc<Claim>, waits: bool, now: Time) -> Ballot {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let body = scripts::body(&self.author, claim, round);
        let want = claim.fenced().then(|| self.want());
        // Once for all nodes: they have the same keys.
        let keys = &self.first().server().keys;
        let plain = want.filter(|_| self.is_calm(claim.key(), now));
        let take = plain.map(|want| scripts::take(keys, claim, &body, want));
        let (sent, over) = Default::default();
        Ballot { claim: claim.clone(), body, want, waits, take, sent, over }
    }

    /// Whether nobody else has been seen to want it lately, on any node.
    pub(super) fn is_calm(&self, key: &Key, now: Time) -> bool {
        self.nodes.iter().all(|node| node.server().calm().is_calm(key, now))
    }

    /// The number that would suit, the same for all nodes, and above those that we have named before: a
    /// node that gave one of them out can take this one as it is.
    fn want(&self) -> u64 {
        let clock = (UnixMillis::now().0 + WANT_AHEAD).saturating_sub(EPOCH.0) * PER_MILLI;
        let next = |last: u64| Some(clock.max(last + 1));
        let last = self.named.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        clock.max(last.unwrap_or_default() + 1)
    }

    fn ask_all(&self, ballot: &Arc<Ballot>) -> Votes {
        let mut crowd = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            crowd.ask(number, node.clone().vote(ballot.clone()));
        }
        Votes { crowd, ballot: ballot.clone() }
    }

    /// Has every counted node count up to the fence.
    async fn write_back(
        &self,
        ballot: &Arc<Ballot>,
        count: &Count,
        until: Time,
    ) -> Result<(), Why> {
        let mut crowd: Crowd<Written> = Crowd::new();
        for node in count.below_the_fence() {
            crowd.ask(node, self.nodes[node].clone().raise(ballot.clone(), count.fence()));
        }
        let mut left = crowd.silent().count();
        while left > 0 {
            match crowd.next(self.at_most(until)).await {
                Some((_, Ok(Raised::Yes))) => left -= 1,
                // Another has that node by now, or nobody knows.
                Some(_) | None => return Err(Why::Outrun),
            }
        }
        Ok(())
    }

    /// Those who were asked and are slow are to have the lock too: it then outlives more of the others.
    /// Those who could not be asked yet are not.
    fn leave_the_rest(&self, mut votes: Votes) {
        // Before anybody else polls them.
        votes.ballot.end();
        for node in votes.unsent() {
            votes.crowd.take(node);
        }
        votes.crowd.see_through();
    }

    /// Gives back what this round has won or may yet win, on every node that may have heard of it. What
    /// is known to be ours is given back before this ends; the rest follows.
    async fn retreat(
        &self,
        ballot: &Arc<Ballot>,
        mut votes: Votes,
        count: Count,
        why: Why,
    ) -> Miss {
        let until = self.clock().now().after(self.patience(ballot.claim.ttl()));
        ballot.end();
        for node in votes.unsent() {
            votes.crowd.take(node);
        }
        let slow: Vec<usize> = votes.crowd.silent().collect();
        for node in slow {
            let (vote, free) = (votes.crowd.take(node), self.free_round(node, ballot));
            // In this order, also where the vote has to be asked for anew.
            tokio::spawn(async move {
                if let Some(vote) = vote {
                    drop(vote.await);
                }
                free.await;
            });
        }
        self.give_back_on(count.to_give_back(), ballot, until).await;
        Miss { why, count }
    }

    /// Gives back what was won by a round that nobody looked at in time.
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
        let mut frees = Crowd::new();
        for node in nodes {
            frees.ask(node, self.free_round(node, ballot));
        }
        while frees.next(self.at_most(until)).await.is_some() {}
        frees.see_through();
    }

    fn free_round(
        &self,
        node: usize,
        ballot: &Arc<Ballot>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (key, token) = (ballot.claim.key().clone(), ballot.claim.token());
        let given = Given::Round(ballot.body.clone());
        let free = self.nodes[node].clone().free(key, token, given, false, None);
        async move { drop(free.await) }
    }
}

impl Votes {
    /// The nodes that have not been asked yet, since there is no connection to them.
    fn unsent(&self) -> Vec<usize> {
        let unsent = |node: &usize| !self.ballot.was_sent(*node);
        self.crowd.silent().filter(unsent).collect()
    }
}

//! Releases a lock on all nodes, takes it away by force, and adopts it.
//!
//! In: a lease or a claim. Out: the answer of a majority of the nodes; the other nodes get the request as
//! well.

use std::sync::Arc;

use tenure_core::backend::{AfterRelease, Fault, Loss, Notice, Release, Validity};
use tenure_core::{Claim, Key, Lease, Mode, Token};

use super::Shared;
use super::fanout::Fanout;
use super::node::QuorumNode;
use super::scripts::Unvote;
use super::tally::{fault, majority};
use crate::error::EngineError;
use crate::scripts::{ReleaseReply, RenewReply, ScriptCall};
use crate::single::BY_MAX;

/// Answers of all nodes to one request.
struct Answers<T> {
    nodes: usize,
    heard: Vec<T>,
    errors: Vec<EngineError>,
}

impl<T> Answers<T> {
    /// How many answers match `is`.
    fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.heard.iter().filter(|answer| is(answer)).count()
    }

    fn is_majority(&self, is: impl Fn(&T) -> bool) -> bool {
        self.count(is) >= majority(self.nodes)
    }

    /// Whether so many answers match that no majority can differ.
    fn denies_majority(&self, is: impl Fn(&T) -> bool) -> bool {
        self.count(is) > self.nodes - majority(self.nodes)
    }

    fn fault(&self) -> Fault {
        fault(self.nodes, self.errors.iter()).0
    }
}

impl Shared {
    /// Sends a request to all nodes until `enough` is true or the response time-out has passed. The remaining
    /// requests finish in the background.
    async fn ask_nodes<T, F>(
        &self,
        question: impl Fn(Arc<QuorumNode>) -> F,
        enough: impl Fn(&Answers<T>) -> bool,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        let until = self.clock().now().after(self.response_timeout());
        let mut fanout = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            fanout.ask(number, question(node.clone()));
        }
        let nodes = self.nodes.len();
        let mut answers = Answers { nodes, heard: Vec::new(), errors: Vec::new() };
        while !enough(&answers)
            && let Some((_, answer)) = fanout.next(self.at_most(until)).await
        {
            match answer {
                Ok(answer) => answers.heard.push(answer),
                Err(error) => answers.errors.push(error),
            }
        }
        fanout.detach();
        answers
    }

    pub(super) async fn release(
        &self,
        lease: &Lease,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        let closed = match then {
            AfterRelease::Free => None,
            AfterRelease::Cooldown(rest) => Some(rest),
        };
        let (claim, now) = (lease.claim(), self.clock().now());
        let was_ours = now < lease.valid_until();
        // The fast script knows no rounds, and would not find the entry of a reader.
        let plain = then == AfterRelease::Free
            && *claim.mode() == Mode::Exclusive
            && !lease.is_contended()
            && self.is_uncontended(claim.key(), now);
        let keys = self.first().server().keys();
        let give = plain.then(|| Arc::new(ScriptCall::release_fast(keys, &self.writer, lease)));
        self.give_back(claim.key(), claim.token(), Unvote::Claim(closed), was_ours, give).await
    }

    async fn give_back(
        &self,
        key: &Key,
        token: Token,
        given: Unvote,
        was_ours: bool,
        give: Option<Arc<ScriptCall>>,
    ) -> Result<Release, Fault> {
        let (freed, gone) =
            (|answer: &ReleaseReply| *answer == ReleaseReply::Yes, ReleaseReply::NotHeld);
        let free = |node: Arc<QuorumNode>| {
            node.free(key.clone(), token, given.clone(), was_ours, give.clone())
        };
        let answers = self.ask_nodes(free, |answers| {
            answers.is_majority(freed) || answers.denies_majority(|answer| *answer == gone)
        });
        let answers = answers.await;
        if answers.is_majority(freed) {
            return Ok(Release::Freed);
        }
        // Some votes may have been ours although they were no majority.
        match answers.denies_majority(|answer| *answer == gone) {
            true => Ok(Release::NotHeld),
            false => Err(answers.fault()),
        }
    }

    pub(super) async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.nodes.iter().for_each(|node| node.forget(claim.token()));
        if !claim.was_sent() {
            return Ok(());
        }
        let abandon = |node: Arc<QuorumNode>| node.abandon(claim.clone());
        let answers = self.ask_nodes(abandon, |answers| answers.is_majority(|()| true)).await;
        match answers.is_majority(|()| true) {
            true => Ok(()),
            false => Err(answers.fault()),
        }
    }

    pub(super) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let answer = self.give_back(key, seen, Unvote::Forced(by.clone()), false, None).await?;
        if answer != Release::NotHeld {
            // For a holder in this process; other processes are notified in their inboxes.
            let loss = Loss::Forced(by);
            self.notifier.send(Notice::Lost { key: key.clone(), token: seen, loss });
        }
        Ok(answer)
    }

    pub(super) async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        self.refuse_forked()?;
        // The process that it is adopted from sent its request.
        claim.set_sent();
        // Before sending: every node's ttl starts after this.
        let from = self.clock().now();
        let yes = |answer: &RenewReply| matches!(answer, RenewReply::Yes { .. });
        let gone = |answer: &RenewReply| !yes(answer);
        let renew = |node: Arc<QuorumNode>| node.renew(claim.clone());
        let answers = self
            .ask_nodes(renew, |answers| answers.is_majority(yes) || answers.denies_majority(gone));
        let answers = answers.await;
        match (answers.is_majority(yes), answers.denies_majority(gone)) {
            (true, _) => Ok(Some(Validity::Lease { from, ttl: claim.ttl() })),
            (false, true) => Ok(None),
            (false, false) => Err(answers.fault()),
        }
    }

    /// Waits until a majority has answered all earlier requests, so that none of them arrives after a request
    /// of the next holder.
    pub(super) async fn relinquish(&self, lease: &Lease) -> Result<(), Fault> {
        let key = lease.claim().key();
        let flush = |node: Arc<QuorumNode>| node.flush(key.clone());
        let answers = self.ask_nodes(flush, |answers| answers.is_majority(|()| true)).await;
        match answers.is_majority(|()| true) {
            true => Ok(()),
            false => Err(answers.fault()),
        }
    }
}

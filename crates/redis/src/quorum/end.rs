//! Giving a lock back on all nodes, taking it away, carrying it on.
//!
//! In: a lease or a claim. Out: what a majority of the nodes said; the others are asked as well.

use std::sync::Arc;

use tenure_core::backend::{Fault, Loss, Notice, Release, Term, Then};
use tenure_core::{Claim, Key, Lease, Token};

use super::Shared;
use super::crowd::Crowd;
use super::node::Node;
use super::scripts::Given;
use super::tally::{fault, majority};
use crate::backend::BY_MAX;
use crate::scripts::{Freed, Renewed, Run};
use crate::trouble::Trouble;

/// Answers to one question that is asked of all nodes.
struct Answers<T> {
    nodes: usize,
    heard: Vec<T>,
    troubles: Vec<Trouble>,
}

impl<T> Answers<T> {
    /// How many of them are `word`.
    fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        self.heard.iter().filter(|answer| is(answer)).count()
    }

    fn is_majority(&self, is: impl Fn(&T) -> bool) -> bool {
        self.count(is) >= majority(self.nodes)
    }

    /// Whether so many are that no majority can be otherwise.
    fn denies_majority(&self, is: impl Fn(&T) -> bool) -> bool {
        self.count(is) > self.nodes - majority(self.nodes)
    }

    fn fault(&self) -> Fault {
        fault(self.nodes, self.troubles.iter()).0
    }
}

impl Shared {
    /// Asks all nodes until `enough` has been heard, or the response time-out has passed. The rest come
    /// to their end by themselves.
    async fn ask_nodes<T, F>(
        &self,
        question: impl Fn(Arc<Node>) -> F,
        enough: impl Fn(&Answers<T>) -> bool,
    ) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Trouble>> + Send + 'static,
    {
        let until = self.clock().now().after(self.response_timeout());
        let mut crowd = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            crowd.ask(number, question(node.clone()));
        }
        let nodes = self.nodes.len();
        let mut answers = Answers { nodes, heard: Vec::new(), troubles: Vec::new() };
        while !enough(&answers)
            && let Some((_, answer)) = crowd.next(self.at_most(until)).await
        {
            match answer {
                Ok(answer) => answers.heard.push(answer),
                Err(trouble) => answers.troubles.push(trouble),
            }
        }
        crowd.see_through();
        answers
    }

    pub(super) async fn release(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let closed = match then {
            Then::Free => None,
            Then::Closed(rest) => Some(rest),
        };
        let (claim, now) = (lease.claim(), self.clock().now());
        let was_ours = now < lease.valid_until();
        let plain = then == Then::Free && !lease.is_contended() && self.is_calm(claim.key(), now);
        let keys = &self.first().server().keys;
        let give = plain.then(|| Arc::new(Run::give(keys, &self.author, claim)));
        self.give_back(claim.key(), claim.token(), Given::Claim(closed), was_ours, give).await
    }

    async fn give_back(
        &self,
        key: &Key,
        token: Token,
        given: Given,
        was_ours: bool,
        give: Option<Arc<Run>>,
    ) -> Result<Release, Fault> {
        let (freed, gone) = (|answer: &Freed| *answer == Freed::Yes, Freed::NotHeld);
        let free =
            |node: Arc<Node>| node.free(key.clone(), token, given.clone(), was_ours, give.clone());
        let answers = self.ask_nodes(free, |answers| {
            answers.is_majority(freed) || answers.denies_majority(|answer| *answer == gone)
        });
        let answers = answers.await;
        if answers.is_majority(freed) {
            return Ok(Release::Freed);
        }
        // Some may have been ours although no majority was.
        match answers.denies_majority(|answer| *answer == gone) {
            true => Ok(Release::NotHeld),
            false => Err(answers.fault()),
        }
    }

    pub(super) async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        let abandon = |node: Arc<Node>| node.abandon(claim.clone());
        let answers = self.ask_nodes(abandon, |answers| answers.is_majority(|()| true)).await;
        match answers.is_majority(|()| true) {
            true => Ok(()),
            false => Err(answers.fault()),
        }
    }

    pub(super) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let answer = self.give_back(key, seen, Given::Forced(by.clone()), false, None).await?;
        if answer != Release::NotHeld {
            // For a holder in this process; others are told in their inboxes.
            let loss = Loss::Forced(by);
            self.tell(Notice::Lost { key: key.clone(), token: seen, loss });
        }
        Ok(answer)
    }

    pub(super) async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Term>, Fault> {
        self.refuse_forked()?;
        // Before sending: every node's ttl starts after this.
        let from = self.clock().now();
        let yes = |answer: &Renewed| matches!(answer, Renewed::Yes { .. });
        let gone = |answer: &Renewed| !yes(answer);
        let renew = |node: Arc<Node>| node.renew(claim.clone());
        let answers = self
            .ask_nodes(renew, |answers| answers.is_majority(yes) || answers.denies_majority(gone));
        let answers = answers.await;
        match (answers.is_majority(yes), answers.denies_majority(gone)) {
            (true, _) => Ok(Some(Term::Lease { from, ttl: claim.ttl() })),
            (false, true) => Ok(None),
            (false, false) => Err(answers.fault()),
        }
    }

    /// Has an answer from a majority to all that was asked before: none of it comes after what the
    /// next holder asks.
    pub(super) async fn let_go(&self, lease: &Lease) -> Result<(), Fault> {
        let key = lease.claim().key();
        let settle = |node: Arc<Node>| node.settle(key.clone());
        let answers = self.ask_nodes(settle, |answers| answers.is_majority(|()| true)).await;
        match answers.is_majority(|()| true) {
            true => Ok(()),
            false => Err(answers.fault()),
        }
    }
}

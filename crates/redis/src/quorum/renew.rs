//! Renewing many leases on all nodes at once.
//!
//! In: leases that are due. Out: an answer for each, as soon as a majority of the nodes has given it.
//!
//! A node that says "not ours" is outvoted by a majority that says "renewed": it may have forgotten. It
//! is not asked to vote again: a renewal never brings anything back.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answers, Loss, Renewal, Term};
use tenure_core::time::Time;
use tenure_core::{Claim, Lease};

use super::Shared;
use super::crowd::Crowd;
use super::node::Node;
use super::tally::{fault, majority};
use crate::scripts::{self, Renewed, Run};
use crate::trouble::Trouble;

/// How many renewals share one pipe, as on a single server.
const AT_ONCE: usize = 256;

/// What is due, as every node is asked for it.
struct Due {
    claims: Vec<(Arc<Claim>, Duration)>,
    within: Duration,
}

/// What the nodes have said of one lease.
#[derive(Default)]
struct Heard {
    renewed: usize,
    contended: bool,
    gone: usize,
    forced: Option<String>,
    troubles: Vec<Trouble>,
    told: bool,
}

type Replies = Vec<Result<Renewed, Trouble>>;

impl Shared {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let until = self.clock().now().after(self.response_timeout());
        let mut base = 0;
        for share in leases.chunks(AT_ONCE) {
            self.renew_share(share, until, &|index, answer| answers(base + index, answer)).await;
            base += share.len();
        }
    }

    async fn renew_share(
        &self,
        share: &[Arc<Lease>],
        until: Time,
        tell: &(dyn Fn(usize, Renewal) + Send + Sync),
    ) {
        // Before sending: every node's ttl starts after this.
        let from = self.clock().now();
        // Once each: the ttl may change meanwhile.
        let claims = share.iter().map(|lease| (lease.claim().clone(), lease.ttl())).collect();
        let within = until.since(from).max(Duration::from_millis(1));
        let due = Arc::new(Due { claims, within });
        let mut heard: Vec<Heard> = share.iter().map(|_| Heard::default()).collect();
        let mut crowd: Crowd<Result<Replies, Trouble>> = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            crowd.ask(number, node.clone().renew_all(due.clone()));
        }
        while heard.iter().any(|lease| !lease.told)
            && let Some((_, replies)) = crowd.next(self.at_most(until)).await
        {
            self.take_in(&due, from, replies, &mut heard, tell);
        }
        crowd.see_through();
        for (index, lease) in heard.iter().enumerate().filter(|(_, lease)| !lease.told) {
            // Neither held nor lost; the clock decides.
            tell(index, Renewal::Unknown(fault(self.nodes.len(), lease.troubles.iter()).0));
        }
    }

    /// Adds what a node said to what is known of each lease, and tells what that decides.
    fn take_in(
        &self,
        due: &Due,
        from: Time,
        replies: Result<Replies, Trouble>,
        heard: &mut [Heard],
        tell: &(dyn Fn(usize, Renewal) + Send + Sync),
    ) {
        let mut replies = replies.map(Vec::into_iter);
        for (index, lease) in heard.iter_mut().enumerate() {
            match &mut replies {
                Ok(replies) => replies.next().into_iter().for_each(|reply| lease.add(reply)),
                Err(trouble) => lease.troubles.push(trouble.clone()),
            }
            let term = Term::Lease { from, ttl: due.claims[index].1 };
            if let Some(answer) = lease.answer(self.nodes.len(), term) {
                lease.told = true;
                tell(index, answer);
            }
        }
    }
}

impl Heard {
    fn add(&mut self, reply: Result<Renewed, Trouble>) {
        match reply {
            Ok(Renewed::Yes { contended }) => {
                self.renewed += 1;
                self.contended |= contended;
            }
            Ok(Renewed::Gone) => self.gone += 1,
            Ok(Renewed::Forced(by)) => {
                self.gone += 1;
                self.forced = Some(by);
            }
            Err(trouble) => self.troubles.push(trouble),
        }
    }

    /// What there is to tell now, once.
    fn answer(&mut self, nodes: usize, term: Term) -> Option<Renewal> {
        if self.told {
            return None;
        }
        if self.renewed >= majority(nodes) {
            return Some(Renewal::Renewed { term, contended: self.contended });
        }
        let lost = self.gone > nodes - majority(nodes);
        lost.then(|| Renewal::Lost(self.forced.take().map_or(Loss::Gone, Loss::Forced)))
    }
}

impl Node {
    /// Renews all that is due on this node, on the connection kept for that.
    async fn renew_all(self: Arc<Self>, due: Arc<Due>) -> Result<Replies, Trouble> {
        let keys = &self.server().keys;
        let runs: Vec<Run> =
            due.claims.iter().map(|(claim, ttl)| Run::renew(keys, claim, *ttl)).collect();
        scripts::run_all(&self.server().renewals, &runs, due.within).await
    }
}

//! Renews many leases on all nodes at once.
//!
//! In: leases that are due. Out: an answer for each, as soon as a majority of the nodes agrees on it.
//!
//! A node that replies "gone" is outvoted by a majority that replies "renewed": it may have lost its data. It
//! is not asked to vote again: a renewal never restores a vote.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answers, Loss, Renewal, Validity};
use tenure_core::time::Time;
use tenure_core::{Claim, Lease};

use super::Shared;
use super::fanout::Fanout;
use super::node::QuorumNode;
use super::tally::{fault, majority};
use crate::error::EngineError;
use crate::scripts::{self, RenewReply, ScriptCall};
use crate::wire::value::ValueWriter;

/// How many renewals share one pipeline, as on a single server.
const AT_ONCE: usize = 256;

/// The leases that are due; the same request goes to every node.
struct Due {
    writer: ValueWriter,
    claims: Vec<(Arc<Claim>, Duration)>,
    within: Duration,
}

/// The replies of the nodes for one lease.
#[derive(Default)]
struct Heard {
    renewed: usize,
    contended: bool,
    gone: usize,
    forced: Option<String>,
    errors: Vec<EngineError>,
    notified: bool,
}

type Replies = Vec<Result<RenewReply, EngineError>>;

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
        notify_lockers: &(dyn Fn(usize, Renewal) + Send + Sync),
    ) {
        // Before sending: every node's ttl starts after this.
        let from = self.clock().now();
        // Read once for each lease: its ttl may change in the meantime.
        let claims = share.iter().map(|lease| (lease.claim().clone(), lease.ttl())).collect();
        let within = until.since(from).max(Duration::from_millis(1));
        let due = Arc::new(Due { writer: self.writer.clone(), claims, within });
        let mut heard: Vec<Heard> = share.iter().map(|_| Heard::default()).collect();
        let mut fanout: Fanout<Result<Replies, EngineError>> = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            fanout.ask(number, node.clone().renew_all(due.clone()));
        }
        while heard.iter().any(|lease| !lease.notified)
            && let Some((_, replies)) = fanout.next(self.at_most(until)).await
        {
            self.take_in(&due, from, replies, &mut heard, notify_lockers);
        }
        fanout.detach();
        for (index, lease) in heard.iter().enumerate().filter(|(_, lease)| !lease.notified) {
            // Neither renewed nor lost: the clock decides.
            notify_lockers(index, Renewal::Unknown(fault(self.nodes.len(), lease.errors.iter()).0));
        }
    }

    /// Adds the replies of a node, and reports every lease that they decide.
    fn take_in(
        &self,
        due: &Due,
        from: Time,
        replies: Result<Replies, EngineError>,
        heard: &mut [Heard],
        notify_lockers: &(dyn Fn(usize, Renewal) + Send + Sync),
    ) {
        let mut replies = replies.map(Vec::into_iter);
        for (index, lease) in heard.iter_mut().enumerate() {
            match &mut replies {
                Ok(replies) => replies.next().into_iter().for_each(|reply| lease.add(reply)),
                Err(error) => lease.errors.push(error.clone()),
            }
            let term = Validity::Lease { from, ttl: due.claims[index].1 };
            if let Some(answer) = lease.answer(self.nodes.len(), term) {
                lease.notified = true;
                notify_lockers(index, answer);
            }
        }
    }
}

impl Heard {
    fn add(&mut self, reply: Result<RenewReply, EngineError>) {
        match reply {
            Ok(RenewReply::Yes { contended }) => {
                self.renewed += 1;
                self.contended |= contended == Some(true);
            }
            Ok(RenewReply::Gone) => self.gone += 1,
            Ok(RenewReply::Forced(by)) => {
                self.gone += 1;
                self.forced = Some(by);
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// The answer to report now, if it was not reported before.
    fn answer(&mut self, nodes: usize, term: Validity) -> Option<Renewal> {
        if self.notified {
            return None;
        }
        if self.renewed >= majority(nodes) {
            return Some(Renewal::Renewed { validity: term, contended: self.contended });
        }
        let lost = self.gone > nodes - majority(nodes);
        lost.then(|| Renewal::Lost(self.forced.take().map_or(Loss::Gone, Loss::Forced)))
    }
}

impl QuorumNode {
    /// Renews all leases that are due on this node, on its renewal connection.
    async fn renew_all(self: Arc<Self>, due: Arc<Due>) -> Result<Replies, EngineError> {
        let keys = self.server().keys();
        let runs: Vec<ScriptCall> = due
            .claims
            .iter()
            .map(|(claim, ttl)| ScriptCall::renew(keys, Some(&due.writer), claim, None, *ttl))
            .collect();
        scripts::run_all(self.server().renewals(), &runs, due.within).await
    }
}

//! Renews many leases at once, on the connection for renewals.
//!
//! In: leases that are due. Out: a result for each, as soon as its part of the pipeline is read. Leases in a
//! slot that moves to another node of a cluster are left and renewed one by one: that node may not answer,
//! and the others must not wait for it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::Lease;
use tenure_core::backend::{Answers, BoxFuture, Loss, Renewal, Validity};
use tenure_core::time::Clock;

use crate::client::Client;
use crate::error::EngineError;
use crate::link::Link;
use crate::scripts::{self, RenewReply, ScriptCall};
use crate::wire::keys::Keys;
use crate::wire::value::ValueWriter;

/// A renewal that did not execute because the slot of its lock moves to another node.
pub(crate) struct InterruptedRenewal {
    index: usize,
    lease: Arc<Lease>,
    run: ScriptCall,
    term: Validity,
    error: EngineError,
}

#[derive(Debug)]
pub(crate) struct Renewer {
    keys: Keys,
    writer: ValueWriter,
    clock: Clock,
    renewals: Arc<Link>,
}

impl Renewer {
    pub(super) fn new(client: &Client, renewals: &Arc<Link>) -> Self {
        let (keys, writer) = (client.keys().clone(), client.writer().clone());
        let clock = client.server().clock().clone();
        Renewer { keys, writer, clock, renewals: renewals.clone() }
    }

    /// Renews all leases that this server can renew by itself. Returns the others.
    pub(crate) async fn renew(
        &self,
        leases: &[Arc<Lease>],
        answers: &Answers<'_>,
    ) -> Vec<InterruptedRenewal> {
        match self.renew_here(leases, answers).await {
            Ok(moving) => moving,
            Err(error) => {
                // Unanswered renewals are unknown; the clock decides.
                for index in 0..leases.len() {
                    answers(index, Renewal::Unknown(error.clone().into()));
                }
                Vec::new()
            }
        }
    }

    /// Sends all renewals in one pipeline. The core passes few leases at a time.
    async fn renew_here(
        &self,
        leases: &[Arc<Lease>],
        answers: &Answers<'_>,
    ) -> Result<Vec<InterruptedRenewal>, EngineError> {
        // Read once each: the ttl may change meanwhile.
        let ttls: Vec<Duration> = leases.iter().map(|lease| lease.ttl()).collect();
        let runs: Vec<ScriptCall> =
            leases.iter().zip(&ttls).map(|(lease, ttl)| self.renewal(lease, *ttl)).collect();
        // Read before sending: the server's ttl starts after this.
        let from = self.clock.now();
        let within = self.renewals.response_timeout();
        let live = self.renewals.live().await?;
        let replies = scripts::run_all_here(&self.renewals, &live, &runs, within).await?;
        let mut moving = Vec::new();
        for (index, (run, (reply, ttl))) in
            runs.into_iter().zip(replies.into_iter().zip(ttls)).enumerate()
        {
            let term = Validity::Lease { from, ttl };
            match reply {
                Err(error) if error.is_moving() => {
                    let lease = leases[index].clone();
                    moving.push(InterruptedRenewal { index, lease, run, term, error });
                }
                reply => answers(index, answer(reply, term, &leases[index])),
            }
        }
        Ok(moving)
    }

    /// Renews these leases, each by its own requests and all concurrently.
    pub(crate) async fn renew_moving(
        &self,
        moving: Vec<InterruptedRenewal>,
        answers: &Answers<'_>,
    ) {
        let renewed = moving.into_iter().map(|one| -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let reply = one.run.renew_moving(&self.renewals, one.error).await;
                answers(one.index, answer(reply, one.term, &one.lease));
            })
        });
        join_all(renewed).await;
    }

    fn renewal(&self, lease: &Lease, ttl: Duration) -> ScriptCall {
        ScriptCall::renew(&self.keys, Some(&self.writer), lease.claim(), lease.slot(), ttl)
    }
}

fn answer(reply: Result<RenewReply, EngineError>, term: Validity, lease: &Lease) -> Renewal {
    match reply {
        Ok(RenewReply::Yes { contended }) => {
            let contended = contended.unwrap_or_else(|| lease.is_contended());
            Renewal::Renewed { validity: term, contended }
        }
        Ok(RenewReply::Gone) => Renewal::Lost(Loss::Gone),
        Ok(RenewReply::Forced(by)) => Renewal::Lost(Loss::Forced(by)),
        Err(error) => Renewal::Unknown(error.into()),
    }
}

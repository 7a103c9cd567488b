//! Renewing many leases at once, on the connection kept for that.
//!
//! In: leases that are due. Out: an answer for each, as soon as its share of the pipe is read. Those in a
//! slot that moves to another node of a cluster are left to be asked for one by one: that node may not
//! answer, and the others are not to wait for it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Lease;
use tenure_core::backend::{Answers, BoxFuture, Loss, Renewal, Term};
use tenure_core::time::Time;

use crate::backend::Shared;
use crate::cluster::together;
use crate::scripts::{self, Renewed, Run};
use crate::trouble::Trouble;

/// How many renewals share one pipe: enough to make the round trip cheap, few enough that the
/// first are answered while the last have not been sent.
const AT_ONCE: usize = 256;

/// A renewal that was not carried out because the slot of its lock moves to another node.
pub(crate) struct Moving {
    index: usize,
    run: Run,
    term: Term,
    trouble: Trouble,
}

impl Shared {
    /// Renews all that this server can renew by itself. The others are left.
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) -> Vec<Moving> {
        let until = self.clock.now().after(self.renewals.response_timeout());
        let (mut base, mut moving) = (0, Vec::new());
        for share in leases.chunks(AT_ONCE) {
            match self.renew_share(share, base, until, answers).await {
                Ok(some) => moving.extend(some),
                Err(trouble) => {
                    // What was not answered is unknown; the clock decides.
                    for index in base..leases.len() {
                        answers(index, Renewal::Unknown(trouble.clone().into()));
                    }
                    break;
                }
            }
            base += share.len();
        }
        moving
    }

    async fn renew_share(
        &self,
        share: &[Arc<Lease>],
        base: usize,
        until: Time,
        answers: &Answers<'_>,
    ) -> Result<Vec<Moving>, Trouble> {
        // Once each: the ttl may change meanwhile.
        let ttls: Vec<Duration> = share.iter().map(|lease| lease.ttl()).collect();
        let runs: Vec<Run> =
            share.iter().zip(&ttls).map(|(lease, ttl)| self.renewal(lease, *ttl)).collect();
        // Before sending: the server's ttl starts after this.
        let from = self.clock.now();
        let within = until.since(from).max(Duration::from_millis(1));
        let live = self.renewals.live().await?;
        let replies = scripts::run_all_here(&self.renewals, &live, &runs, within).await?;
        let mut moving = Vec::new();
        for (at, (run, (reply, ttl))) in
            runs.into_iter().zip(replies.into_iter().zip(ttls)).enumerate()
        {
            let (index, term) = (base + at, Term::Lease { from, ttl });
            match reply {
                Err(trouble) if trouble.is_moving() => {
                    moving.push(Moving { index, run, term, trouble });
                }
                reply => answers(index, answer(reply, term)),
            }
        }
        Ok(moving)
    }

    /// Renews these, each by itself and all at a time.
    pub(crate) async fn renew_moving(&self, moving: Vec<Moving>, answers: &Answers<'_>) {
        let renewed = moving.into_iter().map(|one| -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let reply = one.run.renew_moving(&self.renewals, one.trouble).await;
                answers(one.index, answer(reply, one.term));
            })
        });
        together(renewed).await;
    }

    fn renewal(&self, lease: &Lease, ttl: Duration) -> Run {
        Run::renew(&self.keys, lease.claim(), ttl)
    }
}

fn answer(reply: Result<Renewed, Trouble>, term: Term) -> Renewal {
    match reply {
        Ok(Renewed::Yes { contended }) => Renewal::Renewed { term, contended },
        Ok(Renewed::Gone) => Renewal::Lost(Loss::Gone),
        Ok(Renewed::Forced(by)) => Renewal::Lost(Loss::Forced(by)),
        Err(trouble) => Renewal::Unknown(trouble.into()),
    }
}

//! Renewing many leases at once, on the connection kept for that.
//!
//! In: leases that are due. Out: an answer for each, as soon as its share of the pipe is read.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Lease;
use tenure_core::backend::{Answers, Loss, Renewal, Term};
use tenure_core::time::Time;

use crate::backend::Shared;
use crate::scripts::{self, Renewed, Run};
use crate::trouble::Trouble;

/// How many renewals share one pipe: enough to make the round trip cheap, few enough that the
/// first are answered while the last have not been sent.
const AT_ONCE: usize = 256;

impl Shared {
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let until = self.clock.now().after(self.renewals.response_timeout());
        let mut base = 0;
        for share in leases.chunks(AT_ONCE) {
            let told = |index: usize, answer| answers(base + index, answer);
            if let Err(trouble) = self.renew_share(share, until, &told).await {
                // What was not answered is unknown; the clock decides.
                for index in base..leases.len() {
                    answers(index, Renewal::Unknown(trouble.clone().into()));
                }
                return;
            }
            base += share.len();
        }
    }

    async fn renew_share(
        &self,
        share: &[Arc<Lease>],
        until: Time,
        told: &(dyn Fn(usize, Renewal) + Send + Sync),
    ) -> Result<(), Trouble> {
        // Once each: the ttl may change meanwhile.
        let ttls: Vec<Duration> = share.iter().map(|lease| lease.ttl()).collect();
        let runs: Vec<Run> =
            share.iter().zip(&ttls).map(|(lease, ttl)| self.renewal(lease, *ttl)).collect();
        // Before sending: the server's ttl starts after this.
        let from = self.clock.now();
        let within = until.since(from).max(Duration::from_millis(1));
        let replies = scripts::run_all(&self.renewals, &runs, within).await?;
        for (index, (reply, ttl)) in replies.into_iter().zip(ttls).enumerate() {
            told(index, answer(reply, Term::Lease { from, ttl }));
        }
        Ok(())
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

//! Candidates and leaders of an election, and its observer.

use std::future::IntoFuture;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::{Error, Leader, Locker};
use tenure_testkit::history::{Claimant, Noted};

use super::{Contender, PATIENCE, POLL_INTERVAL, RETRY};

/// How long the observer waits at the end until nobody leads: longer than any leadership may be seen after its end.
const LAST_LOOK: Duration = Duration::from_secs(15);

impl Contender {
    /// Campaigns, and works as a leader. Returns whether this task was elected.
    pub(super) async fn lead(&mut self, key: &str, noted: &Noted) -> Result<bool, Error> {
        noted.proclaims(noted.label());
        let ttl = *self.rng.pick(&self.options.ttls);
        let campaign = self.locker.election(key).campaign(noted.label());
        let campaign = campaign.ttl(ttl).retry_interval(RETRY);
        let elected = match self.rng.below(if self.options.brisk { 100 } else { 8 }) {
            0 => Some(campaign.wait(Duration::ZERO).await?),
            1 => tokio::time::timeout(self.moment(), campaign.into_future())
                .await
                .ok()
                .transpose()?,
            _ => Some(campaign.wait(PATIENCE).await?),
        };
        let Some(leader) = elected else { return Ok(false) };
        noted.granted(leader.term(), leader.valid_until());
        self.proclaim(&leader, noted).await;
        let lost = self.update(key, &leader, noted).await;
        self.resign(leader, lost, noted).await;
        Ok(true)
    }

    /// Sometimes shows another value.
    async fn proclaim(&mut self, leader: &Leader, noted: &Noted) {
        if self.rng.one_in(4) {
            let value = format!("{}.2", noted.label());
            noted.proclaims(&*value);
            // Unknown under faults; after a loss `stay` records it.
            let _ = leader.proclaim(value).await;
        }
    }

    async fn resign(&mut self, leader: Leader, lost: bool, noted: &Noted) {
        if !lost {
            noted.release_called(leader.valid_until());
        }
        match self.rng.one_in(3) {
            true => drop(leader),
            false => {
                if leader.resign().await.is_ok() {
                    noted.released();
                }
            }
        }
    }
}

/// Records who is seen to lead, until the file `until` exists and nobody leads.
pub(super) async fn observe(locker: Locker, claimant: Claimant, key: String, until: PathBuf) {
    let (noted, leads) = (claimant.observes(&key), AtomicBool::new(true));
    let observing = async {
        let mut observer = loop {
            match locker.election(&key).observe().await {
                Ok(observer) => break observer,
                Err(error) => noted.gave_up(error),
            }
            tokio::time::sleep(RETRY).await;
        };
        loop {
            let seen = observer.next().await;
            leads.store(!matches!(seen, Ok(None)), Ordering::Relaxed);
            match seen {
                Ok(leader) => noted.observed(leader),
                Err(error) => noted.gave_up(error),
            }
        }
    };
    let over = async {
        is_true(|| until.exists()).await;
        // If it never sees that nobody leads, the judge finds a leader that has ended.
        let nobody = is_true(|| !leads.load(Ordering::Relaxed));
        let _ = tokio::time::timeout(LAST_LOOK, nobody).await;
    };
    tokio::select! {
        () = observing => {}
        () = over => {}
    }
    noted.gave_up("the end of the campaign");
}

async fn is_true(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

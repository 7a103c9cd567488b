//! Waits for a lock, at the node that owns its slot.
//!
//! In: a claim. Out: a grant, or why waiting cannot succeed.
//!
//! The claim waits at one node as at a single server, until it is granted or another node owns the slot; then
//! it waits there. Its queue entry moves with the slot.

use std::sync::Arc;

use tenure_core::backend::{Fault, Grant};
use tenure_core::{Claim, WaitStatus};
use tenure_net::jittered;

use super::Shared;
use super::topology::SlotOwner;
use crate::wire::timing::HEARTBEAT;

impl Shared {
    pub(super) async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        let slot = self.keys.slot(claim.key());
        // The common case: the owner is known, and the lock is free.
        if let Some(owner) = self.nodes.owner_now(slot) {
            let fast_grant = owner.locks().acquirer.try_fast(claim).await?;
            match fast_grant {
                Some(grant)
                    if !owner.locks().acquirer.waits_for_replicas() && self.nodes.is_at(&owner) =>
                {
                    return Ok(grant);
                }
                // Boxed to keep the future of the common path small.
                fast_grant => {
                    if let Some(grant) = Box::pin(self.wait_at(&owner, claim, fast_grant)).await? {
                        return Ok(grant);
                    }
                }
            }
        }
        Box::pin(self.acquire_anywhere(claim, slot)).await
    }

    async fn acquire_anywhere(&self, claim: &Arc<Claim>, slot: u16) -> Result<Grant, Fault> {
        loop {
            let from = self.nodes.clock.now();
            let owner = match self.nodes.owner(slot).await {
                Ok(owner) => owner,
                Err(error) if error.is_permanent() => return Err(error.into()),
                Err(error) => {
                    // Whatever the nodes replied: none of them can be asked for this slot.
                    claim.report_wait(WaitStatus::unreachable(error.into(), from));
                    self.nodes.clock.sleep(jittered(claim.retry_interval().min(HEARTBEAT))).await;
                    continue;
                }
            };
            let fast_grant = owner.locks().acquirer.try_fast(claim).await?;
            if let Some(grant) = self.wait_at(&owner, claim, fast_grant).await? {
                return Ok(grant);
            }
        }
    }

    /// Waits for the grant; `None` if another node owns the slot.
    async fn wait_at(
        &self,
        owner: &SlotOwner,
        claim: &Arc<Claim>,
        fast_grant: Option<Grant>,
    ) -> Result<Option<Grant>, Fault> {
        // The task may have been on a runtime that has ended.
        self.nodes.keep_watch();
        let answer = tokio::select! {
            biased;
            () = self.nodes.left(owner) => return Ok(None),
            answer = owner.locks().acquirer.wait_for_grant(claim, fast_grant) => answer,
        };
        match self.nodes.is_at(owner) {
            true => answer.map(Some),
            false => Ok(None),
        }
    }
}

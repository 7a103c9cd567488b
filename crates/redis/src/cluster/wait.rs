//! Waiting for a lock, at whichever node has its slot.
//!
//! In: a claim. Out: a grant, or why waiting is of no use.
//!
//! It waits at one node as at a server that stands alone, until it has the lock or another node has the
//! slot; then there. Its place in the queue goes with the slot.

use std::sync::Arc;

use tenure_core::backend::{Fault, Grant};
use tenure_core::{Claim, Sight};

use super::Shared;
use super::nodes::Owner;
use crate::jitter::jittered;
use crate::link::FAILOVER;
use crate::trouble::Trouble;

impl Shared {
    pub(super) async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        let slot = self.keys.slot(claim.key());
        // The usual case: it is known who has it, and free.
        if let Some(owner) = self.nodes.owner_now(slot) {
            let taken = owner.keeper().take_first(claim).await?;
            match taken {
                Some(grant) if !owner.keeper().has_witness() && self.nodes.is_at(&owner) => {
                    return Ok(grant);
                }
                // Boxed, as is all that is rare here: what is made for every lock is to be small.
                taken => {
                    if let Some(grant) = Box::pin(self.wait_at(&owner, claim, taken)).await? {
                        return Ok(grant);
                    }
                }
            }
        }
        Box::pin(self.acquire_anywhere(claim, slot)).await
    }

    async fn acquire_anywhere(&self, claim: &Arc<Claim>, slot: u16) -> Result<Grant, Fault> {
        let mut unknown_since = None;
        loop {
            let owner = match self.nodes.owner(slot).await {
                Ok(owner) => owner,
                Err(trouble) => {
                    let since = *unknown_since.get_or_insert(self.nodes.clock.now());
                    self.see_trouble(claim, trouble, since)?;
                    self.nodes.clock.sleep(jittered(claim.retry_interval())).await;
                    continue;
                }
            };
            unknown_since = None;
            let taken = owner.keeper().take_first(claim).await?;
            if let Some(grant) = self.wait_at(&owner, claim, taken).await? {
                return Ok(grant);
            }
        }
    }

    /// Waits until it is granted, or `None` if another node has the slot.
    async fn wait_at(
        &self,
        owner: &Owner,
        claim: &Arc<Claim>,
        taken: Option<Grant>,
    ) -> Result<Option<Grant>, Fault> {
        // One may be on a runtime that has ended.
        self.nodes.keep_watch();
        let answer = tokio::select! {
            biased;
            () = self.nodes.left(owner) => return Ok(None),
            answer = owner.keeper().go_on(claim, taken) => answer,
        };
        match self.nodes.is_at(owner) {
            true => answer.map(Some),
            false => Ok(None),
        }
    }

    /// Notes that nobody is known to have the slot; an error if that has lasted for long, or will.
    fn see_trouble(
        &self,
        claim: &Claim,
        trouble: Trouble,
        since: tenure_core::time::Time,
    ) -> Result<(), Fault> {
        if trouble.is_final() || self.nodes.clock.now() >= since.after(FAILOVER) {
            return Err(trouble.into());
        }
        claim.saw(Sight::trouble(trouble.into()));
        Ok(())
    }
}

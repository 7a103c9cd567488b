//! Releases that may have to be repeated, where another node has taken over.
//!
//! In: what was released, and by which owner of its slot. Out: the same at the next owner. See `again.rs`
//! of one server.

use std::sync::Arc;

use tenure_core::Claim;

use super::Shared;
use super::nodes::Owner;
use crate::again::Done;

impl Shared {
    pub(super) fn note(&self, claim: &Arc<Claim>, owner: &Owner) {
        self.releases.add(claim, self.nodes.clock.now(), owner.changes());
    }

    /// Repeats what an earlier owner of a slot has released; what cannot be now, the next time.
    pub(super) async fn release_earlier(&self) {
        let earlier =
            |done: &Done| !self.nodes.is_at_turn(self.keys.slot(done.claim().key()), done.turn());
        let mut shares: Vec<(Owner, Vec<Done>)> = Vec::new();
        for done in self.releases.take_those(self.nodes.clock.now(), earlier) {
            let Some(owner) = self.nodes.owner_now(self.keys.slot(done.claim().key())) else {
                self.releases.put_back(&[done]);
                continue;
            };
            match shares.iter_mut().find(|(known, _)| Arc::ptr_eq(&known.node, &owner.node)) {
                Some((_, share)) => share.push(done),
                None => shares.push((owner, vec![done])),
            }
        }
        for (owner, share) in shares {
            if let Err(trouble) = owner.keeper().release_all(&share).await {
                tracing::debug!(%trouble, "releases are repeated later");
                self.releases.put_back(&share);
            }
        }
    }
}

//! Follows a lock's slot from node to node, until its owner has answered.
//!
//! In: a key, and the answers of nodes. Out: the node to ask next, and whether an answer counts.
//!
//! An answer counts if its node owned the slot during the whole call. If it did not, the next owner gets the
//! same request: every request here can be repeated. A node that cannot be reached may have been replaced, so
//! the other nodes are queried before its error counts.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Key;
use tenure_core::backend::{Fault, FaultKind};
use tenure_net::jittered;

use super::Shared;
use super::topology::SlotOwner;
use crate::single::Locks;

/// How many redirects one call follows. Each comes from a node, so more than this means that nodes contradict
/// each other.
const HOPS_MAX: u32 = 8;
/// How many redirects are followed without a pause: one for an old map, one for a move in the meantime.
const HOPS_AT_ONCE: u32 = 2;
/// The pause before each further redirect.
const PAUSE: Duration = Duration::from_millis(20);

/// The redirects of one call.
pub(super) struct RedirectLoop<'a> {
    shared: &'a Shared,
    slot: u16,
    made: u32,
}

/// What to do with an answer.
pub(super) enum Verdict<T> {
    /// It counts.
    Counts(Result<T, Fault>),
    /// Another node owns the slot and must be asked. Holds the answer of this node.
    Moved(Result<T, Fault>),
}

impl Shared {
    /// Asks the owner of the slot of `key`, and the next owner if the slot has moved meanwhile.
    pub(super) async fn at_owner<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        key: &Key,
        ask: impl Fn(Arc<Locks>) -> F,
    ) -> Result<T, Fault> {
        let mut hops = RedirectLoop::new(self, key);
        loop {
            let owner = hops.next().await?;
            let answer = ask(owner.locks().clone()).await;
            if let Verdict::Counts(answer) = hops.on_answer(&owner, answer).await {
                return answer;
            }
        }
    }
}

impl<'a> RedirectLoop<'a> {
    pub(super) fn new(shared: &'a Shared, key: &Key) -> Self {
        RedirectLoop { shared, slot: shared.keys.slot(key), made: 0 }
    }

    /// The node to ask.
    pub(super) async fn next(&self) -> Result<SlotOwner, Fault> {
        Ok(self.shared.nodes.owner(self.slot).await?)
    }

    /// Whether the answer of `owner` counts.
    pub(super) async fn on_answer<T>(
        &mut self,
        owner: &SlotOwner,
        answer: Result<T, Fault>,
    ) -> Verdict<T> {
        match &answer {
            Ok(_) if self.shared.nodes.is_at(owner) => Verdict::Counts(answer),
            // Boxed to keep the future of the common path small.
            _ => Box::pin(self.check_owner(owner, answer)).await,
        }
    }

    async fn check_owner<T>(&mut self, owner: &SlotOwner, answer: Result<T, Fault>) -> Verdict<T> {
        let nodes = &self.shared.nodes;
        if nodes.is_at(owner) {
            if answer.as_ref().is_err_and(may_have_moved) {
                // Without a reply the map stays as it is, so the error is ignored.
                let _ = nodes.ask_again().await;
            }
            if nodes.is_at(owner) {
                return Verdict::Counts(answer);
            }
        }
        self.made += 1;
        if self.made > HOPS_MAX {
            return Verdict::Counts(answer.and_then(|_| Err(self.lost())));
        }
        if self.made > HOPS_AT_ONCE {
            tokio::time::sleep(jittered(PAUSE)).await;
        }
        Verdict::Moved(answer)
    }

    fn lost(&self) -> Fault {
        let what = format!("the slot {} goes from node to node", self.slot);
        Fault::new(FaultKind::Unknown, what)
    }
}

fn may_have_moved(fault: &Fault) -> bool {
    matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Unknown)
}

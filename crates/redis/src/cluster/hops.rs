//! From node to node, until the one has answered that has the slot.
//!
//! In: a key, and what nodes answered. Out: the node to ask next, and whether an answer counts.
//!
//! An answer counts if its node had the slot all the time. Where it had not, the next owner is asked the
//! same: everything here can be repeated. A node that cannot be asked may have been replaced, so the
//! others are asked about it before its failure counts.

use std::time::Duration;

use tenure_core::Key;
use tenure_core::backend::{Fault, FaultKind};

use super::Shared;
use super::nodes::Owner;
use crate::jitter::jittered;

/// How often a call goes from one node to another. Each time a node has said so; more often than this
/// they contradict each other.
const HOPS_MAX: u32 = 8;
/// How many of them are made without a pause: one for the map that was old, one for a move meanwhile.
const HOPS_AT_ONCE: u32 = 2;
/// The pause before each of the others.
const PAUSE: Duration = Duration::from_millis(20);

/// One call's way.
pub(super) struct Hops<'a> {
    shared: &'a Shared,
    slot: u16,
    made: u32,
}

/// What to make of an answer.
pub(super) enum Judged<T> {
    /// It counts.
    Counts(Result<T, Fault>),
    /// Another node has the slot: ask that one. What this one said.
    Elsewhere(Result<T, Fault>),
}

impl<'a> Hops<'a> {
    pub(super) fn new(shared: &'a Shared, key: &Key) -> Self {
        Hops { shared, slot: shared.keys.slot(key), made: 0 }
    }

    /// Whom to ask.
    pub(super) async fn next(&self) -> Result<Owner, Fault> {
        Ok(self.shared.nodes.owner(self.slot).await?)
    }

    /// Whether what `owner` answered counts.
    pub(super) async fn judge<T>(&mut self, owner: &Owner, answer: Result<T, Fault>) -> Judged<T> {
        match &answer {
            Ok(_) if self.shared.nodes.is_at(owner) => Judged::Counts(answer),
            // Boxed, as is all that is rare here: what is made for every lock is to be small.
            _ => Box::pin(self.judge_closely(owner, answer)).await,
        }
    }

    async fn judge_closely<T>(&mut self, owner: &Owner, answer: Result<T, Fault>) -> Judged<T> {
        let nodes = &self.shared.nodes;
        if nodes.is_at(owner) {
            if answer.as_ref().is_err_and(may_have_moved) {
                // Who is not answered does not know more than before.
                let _ = nodes.ask_again().await;
            }
            if nodes.is_at(owner) {
                return Judged::Counts(answer);
            }
        }
        self.made += 1;
        if self.made > HOPS_MAX {
            return Judged::Counts(answer.and_then(|_| Err(self.lost())));
        }
        if self.made > HOPS_AT_ONCE {
            tokio::time::sleep(jittered(PAUSE)).await;
        }
        Judged::Elsewhere(answer)
    }

    fn lost(&self) -> Fault {
        let what = format!("the slot {} goes from node to node", self.slot);
        Fault::new(FaultKind::Unknown, what)
    }
}

fn may_have_moved(fault: &Fault) -> bool {
    matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Unknown)
}

//! Renews leases at all nodes at a time.
//!
//! In: leases that are due. Out: an answer for each, as soon as its node has replied: a dead node does not
//! delay the leases of other nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tenure_core::Lease;
use tenure_core::backend::{Answers, BoxFuture, Renewal};

use super::Shared;
use super::topology::SlotOwner;
use crate::error::EngineError;

/// How often a renewal is tried while its slot moves. The engine retries the leases that are left after that.
const ROUNDS: usize = 3;

/// The leases whose slots one node owns; at least one.
struct Share {
    /// For each lease; the same order as in the other fields.
    owners: Vec<SlotOwner>,
    indexes: Vec<usize>,
    leases: Vec<Arc<Lease>>,
}

impl Shared {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let all = (0..leases.len()).collect();
        self.renew_some(leases, all, answers, ROUNDS).await;
    }

    /// Renews the leases of `wanted`, then again, at the new owner, those whose slot moved in the meantime.
    fn renew_some<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        wanted: Vec<usize>,
        answers: &'a Answers<'a>,
        rounds: usize,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if wanted.is_empty() || rounds == 0 {
                return;
            }
            let mut shares: Vec<Share> = Vec::new();
            for index in wanted {
                let lease = &leases[index];
                match self.nodes.owner(self.keys.slot(lease.claim().key())).await {
                    Ok(owner) => add(&mut shares, owner, index, lease),
                    Err(error) => answers(index, unknown(error)),
                }
            }
            let renewed = shares.iter().map(|share| -> BoxFuture<'_, ()> {
                Box::pin(async move {
                    let moved = Mutex::new(Vec::new());
                    let on_answer = |at, answer| self.on_answer(share, at, answer, answers, &moved);
                    let renewer = &share.owners[0].locks().renewer;
                    let moving = renewer.renew(&share.leases, &on_answer).await;
                    let left = std::mem::take(&mut *list(&moved));
                    // Concurrently: the node that a slot moves to may not respond.
                    let both: [BoxFuture<'_, ()>; 2] = [
                        Box::pin(renewer.renew_moving(moving, &on_answer)),
                        self.renew_some(leases, left, answers, rounds - 1),
                    ];
                    join_all(both).await;
                })
            });
            join_all(renewed).await;
        })
    }

    /// Handles the answer for one lease of `share`: it counts if the node owned the slot during the whole
    /// call.
    fn on_answer(
        &self,
        share: &Share,
        at: usize,
        answer: Renewal,
        answers: &Answers<'_>,
        moved: &Mutex<Vec<usize>>,
    ) {
        let (owner, lease) = (&share.owners[at], &share.leases[at]);
        match self.nodes.is_at(owner) {
            true => {
                if let Renewal::Renewed { .. } = answer {
                    let until = self.nodes.clock.now().after(lease.ttl());
                    owner.locks().inbox().keep(self.keys.slot(lease.claim().key()), until);
                }
                answers(share.indexes[at], answer);
            }
            false => list(moved).push(share.indexes[at]),
        }
    }
}

fn list(moved: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    moved.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(shares: &mut Vec<Share>, owner: SlotOwner, index: usize, lease: &Arc<Lease>) {
    let same = |share: &&mut Share| {
        share.owners.first().is_some_and(|first| Arc::ptr_eq(&first.node, &owner.node))
    };
    match shares.iter_mut().find(same) {
        Some(share) => {
            share.owners.push(owner);
            share.indexes.push(index);
            share.leases.push(lease.clone());
        }
        None => shares.push(Share {
            owners: vec![owner],
            indexes: vec![index],
            leases: vec![lease.clone()],
        }),
    }
}

fn unknown(error: EngineError) -> Renewal {
    Renewal::Unknown(error.into())
}

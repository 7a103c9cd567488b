//! Renewing leases at all nodes at a time.
//!
//! In: leases that are due. Out: an answer for each, as soon as its node has given it: one that is dead
//! costs the leases of the others nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::Lease;
use tenure_core::backend::{Answers, BoxFuture, Renewal};

use super::Shared;
use super::nodes::Owner;
use super::together::together;
use crate::trouble::Trouble;

/// How often those are asked for whose slot has moved meanwhile. What is left is asked for again by the
/// engine.
const ROUNDS: usize = 3;

/// The leases whose slots one node has; there is at least one.
struct Share {
    /// For each, in the order of the others.
    owners: Vec<Owner>,
    indexes: Vec<usize>,
    leases: Vec<Arc<Lease>>,
}

impl Shared {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let all = (0..leases.len()).collect();
        self.renew_some(leases, all, answers, ROUNDS).await;
    }

    /// Renews those of `wanted`, and then those whose slot has moved meanwhile where it is now.
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
                    Err(trouble) => answers(index, unknown(trouble)),
                }
            }
            let renewed = shares.iter().map(|share| -> BoxFuture<'_, ()> {
                Box::pin(async move {
                    let elsewhere = Mutex::new(Vec::new());
                    let told = |at, answer| self.told(share, at, answer, answers, &elsewhere);
                    let keeper = share.owners[0].keeper();
                    let moving = keeper.renew(&share.leases, &told).await;
                    let left = std::mem::take(&mut *list(&elsewhere));
                    // Neither waits for the other: the node that a slot moves to may be silent.
                    let both: [BoxFuture<'_, ()>; 2] = [
                        Box::pin(keeper.renew_moving(moving, &told)),
                        self.renew_some(leases, left, answers, rounds - 1),
                    ];
                    together(both).await;
                })
            });
            together(renewed).await;
        })
    }

    /// Takes the answer to the renewal of one lease of `share`, if its node had the slot all the time.
    fn told(
        &self,
        share: &Share,
        at: usize,
        answer: Renewal,
        answers: &Answers<'_>,
        elsewhere: &Mutex<Vec<usize>>,
    ) {
        match self.nodes.is_at(&share.owners[at]) {
            true => answers(share.indexes[at], answer),
            false => list(elsewhere).push(share.indexes[at]),
        }
    }
}

fn list(elsewhere: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(shares: &mut Vec<Share>, owner: Owner, index: usize, lease: &Arc<Lease>) {
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

fn unknown(trouble: Trouble) -> Renewal {
    Renewal::Unknown(trouble.into())
}

//! Renewing leases at all nodes at a time.
//!
//! In: leases that are due. Out: an answer for each, as soon as its node has given it: one that is dead
//! costs the leases of the others nothing.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::Lease;
use tenure_core::backend::{Answers, BoxFuture, Renewal};

use super::Shared;
use super::nodes::Owner;
use super::together::together;
use crate::trouble::Trouble;

/// How often those are asked for whose slot has moved meanwhile. What is left is asked for again by the
/// engine.
const ROUNDS: usize = 3;

/// The leases whose slots one node has.
struct Share {
    /// For each, in the order of the others.
    owners: Vec<Owner>,
    indexes: Vec<usize>,
    leases: Vec<Arc<Lease>>,
}

impl Shared {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let mut left: Vec<usize> = (0..leases.len()).collect();
        for _ in 0..ROUNDS {
            left = self.renew_once(leases, &left, answers).await;
            if left.is_empty() {
                return;
            }
        }
    }

    /// Those that are to be asked for elsewhere.
    async fn renew_once(
        &self,
        leases: &[Arc<Lease>],
        wanted: &[usize],
        answers: &Answers<'_>,
    ) -> Vec<usize> {
        let mut shares: Vec<Share> = Vec::new();
        for index in wanted {
            let lease = &leases[*index];
            match self.nodes.owner(self.keys.slot(lease.claim().key())).await {
                Ok(owner) => add(&mut shares, owner, *index, lease),
                Err(trouble) => answers(*index, unknown(trouble)),
            }
        }
        let elsewhere = Mutex::new(Vec::new());
        let renewed = shares.iter().map(|share| -> BoxFuture<'_, ()> {
            Box::pin(self.renew_share(share, answers, &elsewhere))
        });
        together(renewed).await;
        elsewhere.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew_share(
        &self,
        share: &Share,
        answers: &Answers<'_>,
        elsewhere: &Mutex<Vec<usize>>,
    ) {
        let Some(owner) = share.owners.first() else { return };
        let told = |at: usize, answer| match self.nodes.is_at(&share.owners[at]) {
            true => answers(share.indexes[at], answer),
            false => {
                elsewhere.lock().unwrap_or_else(PoisonError::into_inner).push(share.indexes[at]);
            }
        };
        owner.keeper().renew(&share.leases, &told).await;
    }
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

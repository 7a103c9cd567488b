//! Inspects the locks of a quorum: what a majority of its nodes shows.
//!
//! In: a name or a glob. Out: the holders. A claim that fewer nodes than a majority show holds nothing: it is
//! under way, or was left behind. Waiters are not shown: each node knows only some of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{ClaimEnd, Fault, Holding, LockInfo, Query};
use tenure_core::{Key, Mode, Token};

use super::Shared;
use super::fanout::Fanout;
use super::tally::{fault, majority};
use crate::error::EngineError;

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.refuse_forked()?;
        let query = Arc::new(query.clone());
        let seen = self.look(|node| {
            let query = query.clone();
            Box::pin(async move { node.server().inspector.inspect(&query).await })
        });
        let seen = seen.await?;
        let unheard = self.nodes.len() - seen.len();
        let mut by_key: BTreeMap<Key, Vec<Holding>> = BTreeMap::new();
        for info in seen.into_iter().flatten() {
            by_key.entry(info.key).or_default().extend(info.holders);
        }
        let shown = by_key.into_iter().map(|(key, holdings)| {
            let holders = holders(holdings, unheard, majority(self.nodes.len()));
            LockInfo::new(key, holders, None)
        });
        Ok(shown.filter(|lock| !lock.holders.is_empty()).collect())
    }

    /// How these claims ended, where enough nodes report it to have ended the lock.
    pub(super) async fn end_reasons(
        &self,
        ended: &[(Key, Token)],
    ) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        let asked: Arc<[(Key, Token)]> = ended.into();
        let notified = self.look(|node| {
            let asked = asked.clone();
            Box::pin(async move { node.server().inspector.end_reasons(&asked).await })
        });
        let notified = notified.await?;
        let enough = self.nodes.len() - majority(self.nodes.len());
        let reason = |index: usize| {
            let end_reasons: Vec<&ClaimEnd> = notified
                .iter()
                .filter_map(|end_reasons| end_reasons.get(index)?.as_ref())
                .collect();
            end_reasons
                .first()
                .filter(|_| end_reasons.len() > enough)
                .map(|reason| (*reason).clone())
        };
        Ok((0..ended.len()).map(reason).collect())
    }

    /// The replies of all nodes that answer in time; an error if they are no majority.
    async fn look<T: Send + 'static>(
        &self,
        question: impl Fn(
            Arc<super::node::QuorumNode>,
        ) -> tenure_core::backend::BoxFuture<'static, Result<T, EngineError>>,
    ) -> Result<Vec<T>, Fault> {
        let until = self.clock().now().after(self.response_timeout());
        let mut fanout = Fanout::new();
        for (number, node) in self.nodes.iter().enumerate() {
            fanout.ask(number, question(node.clone()));
        }
        let (mut seen, mut errors) = (Vec::new(), Vec::new());
        while let Some((_, answer)) = fanout.next(self.at_most(until)).await {
            match answer {
                Ok(answer) => seen.push(answer),
                Err(error) => errors.push(error),
            }
        }
        match seen.len() >= majority(self.nodes.len()) {
            true => Ok(seen),
            false => Err(fault(self.nodes.len(), errors.iter()).0),
        }
    }
}

/// The claims that hold the lock: those for which the nodes that show them, and those without a reply, could be a
/// majority. Several hold it together if they are readers.
fn holders(holdings: Vec<Holding>, unheard: usize, needed: usize) -> Vec<Holding> {
    let mut claims: Vec<Vec<Holding>> = Vec::new();
    for holding in holdings {
        let name = |one: &Holding| (one.token, one.holder.cooling_down, one.mode.clone());
        match claims.iter_mut().find(|claim| name(&claim[0]) == name(&holding)) {
            Some(claim) => claim.push(holding),
            None => claims.push(vec![holding]),
        }
    }
    claims.retain(|claim| claim.len() + unheard >= needed);
    let (readers, alone): (Vec<_>, Vec<_>) =
        claims.into_iter().partition(|claim| claim[0].mode == Mode::Read);
    // A claim that was left behind may be on as many nodes that answer. The holder has a node among them too, and
    // its number is higher there.
    let number = |claim: &Vec<Holding>| claim.iter().map(|one| one.fence).max();
    let newest = alone.into_iter().max_by_key(|it| (it.len() >= needed, number(it), it.len()));
    match newest {
        Some(newest) if readers.iter().all(|claim| claim.len() <= newest.len()) => {
            vec![agreed(&newest, needed)]
        }
        _ => readers.iter().map(|claim| agreed(claim, needed)).collect(),
    }
}

/// What the nodes that show a claim agree on.
fn agreed(claim: &[Holding], needed: usize) -> Holding {
    // The nodes whose votes were counted have the fence of the grant, and they are a majority. A node that
    // voted late may have a number of its own.
    let same = |one: &&Holding| claim.iter().filter(|other| other.fence == one.fence).count();
    let fence = claim.iter().find(|one| same(one) >= needed).and_then(|one| one.fence);
    // The lock is held for as long as a majority has it.
    let mut lefts: Vec<Duration> = claim.iter().filter_map(|one| one.holder.lease_left).collect();
    lefts.sort_unstable_by(|one, other| other.cmp(one));
    let left = lefts.get(needed.min(claim.len()) - 1).copied();
    // A new label may have reached some nodes only; most of them show the present one.
    let labelled = |one: &&Holding| {
        claim.iter().filter(|other| other.holder.label == one.holder.label).count()
    };
    let shown = claim.iter().max_by_key(labelled).unwrap_or(&claim[0]);
    let mut holder = shown.holder.clone();
    holder.lease_left = left;
    Holding::new(holder, fence, shown.token).mode(shown.mode.clone(), shown.slot)
}

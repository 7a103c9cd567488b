//! Inspects the locks of a quorum: what a majority of its nodes shows.
//!
//! In: a name or a glob. Out: the holders. A claim that fewer nodes than a majority show holds nothing: it is
//! under way, or was left behind. Waiters are not shown: each node knows only some of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{ClaimEnd, Fault, Holding, LockInfo, Query};
use tenure_core::{Key, Token};

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
        let shown = by_key.into_iter().filter_map(|(key, holdings)| {
            let holding = holding(holdings, unheard, majority(self.nodes.len()))?;
            Some(LockInfo::new(key, vec![holding], None))
        });
        Ok(shown.collect())
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

/// The claim that most nodes show, if these nodes and those without a reply could be a majority.
fn holding(holdings: Vec<Holding>, unheard: usize, needed: usize) -> Option<Holding> {
    let name = |holding: &Holding| (holding.token, holding.holder.cooling_down);
    let alike = |one: &Holding| holdings.iter().filter(|other| name(other) == name(one)).count();
    let first = holdings.iter().max_by_key(|holding| alike(holding))?;
    let mut lefts: Vec<Duration> = holdings
        .iter()
        .filter(|other| name(other) == name(first))
        .filter_map(|holding| holding.holder.lease_left)
        .collect();
    let count = alike(first);
    if count + unheard < needed {
        return None;
    }
    // The nodes whose votes were counted have the fence of the grant, and they are a majority. A node that
    // voted late may have a number of its own.
    let same = |one: &Holding| {
        holdings
            .iter()
            .filter(|other| name(other) == name(first) && other.fence == one.fence)
            .count()
    };
    let agreed = holdings.iter().find(|one| name(one) == name(first) && same(one) >= needed);
    let fence = agreed.and_then(|one| one.fence);
    // The lock is held for as long as a majority has it.
    lefts.sort_unstable_by(|one, other| other.cmp(one));
    let left = lefts.get(needed.min(count) - 1).copied();
    // A new label may have reached some nodes only; most of them show the present one.
    let as_labelled = |one: &Holding| {
        let labelled = |other: &&Holding| other.holder.label == one.holder.label;
        holdings.iter().filter(|other| name(other) == name(first)).filter(labelled).count()
    };
    let alike = holdings.iter().filter(|other| name(other) == name(first));
    let mut holder = alike.max_by_key(|one| as_labelled(one)).unwrap_or(first).holder.clone();
    holder.lease_left = left;
    Some(Holding::new(holder, fence, first.token))
}

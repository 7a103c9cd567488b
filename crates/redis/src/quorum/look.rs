//! Looking at the locks of a quorum: what a majority of its nodes shows.
//!
//! In: a name or a glob. Out: who holds what. A claim that fewer nodes have than make a majority holds
//! nothing: it is under way, or was left behind. Who waits is not shown: each node knows only some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fate, Fault, Holding, LockInfo, Query};
use tenure_core::{Key, Token};

use super::Shared;
use super::crowd::Crowd;
use super::tally::{fault, majority};
use crate::trouble::Trouble;

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.refuse_forked()?;
        let query = Arc::new(query.clone());
        let seen = self.look(|node| {
            let query = query.clone();
            Box::pin(async move { node.server().inspect(&query).await })
        });
        let seen = seen.await?;
        let unheard = self.nodes.len() - seen.len();
        let mut by_key: BTreeMap<Key, Vec<Holding>> = BTreeMap::new();
        for info in seen.into_iter().flatten() {
            by_key.entry(info.key).or_default().extend(info.holders);
        }
        let shown = by_key.into_iter().filter_map(|(key, holdings)| {
            let holding = holding(holdings, unheard, majority(self.nodes.len()))?;
            Some(LockInfo::exclusive(key, vec![holding], None))
        });
        Ok(shown.collect())
    }

    /// Who took the locks of these claims away, where enough nodes know it to have ended one.
    pub(super) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Fate>>, Fault> {
        let asked: Arc<[(Key, Token)]> = ended.into();
        let told = self.look(|node| {
            let asked = asked.clone();
            Box::pin(async move { node.server().fates(&asked).await })
        });
        let told = told.await?;
        let enough = self.nodes.len() - majority(self.nodes.len());
        let fate = |index: usize| {
            let fates: Vec<&Fate> =
                told.iter().filter_map(|fates| fates.get(index)?.as_ref()).collect();
            fates.first().filter(|_| fates.len() > enough).map(|fate| (*fate).clone())
        };
        Ok((0..ended.len()).map(fate).collect())
    }

    /// What all nodes show that answer in time; an error if those are no majority.
    async fn look<T: Send + 'static>(
        &self,
        question: impl Fn(
            Arc<super::node::Node>,
        ) -> tenure_core::backend::BoxFuture<'static, Result<T, Trouble>>,
    ) -> Result<Vec<T>, Fault> {
        let until = self.clock().now().after(self.response_timeout());
        let mut crowd = Crowd::new();
        for (number, node) in self.nodes.iter().enumerate() {
            crowd.ask(number, question(node.clone()));
        }
        let (mut seen, mut troubles) = (Vec::new(), Vec::new());
        while let Some((_, answer)) = crowd.next(self.at_most(until)).await {
            match answer {
                Ok(answer) => seen.push(answer),
                Err(trouble) => troubles.push(trouble),
            }
        }
        match seen.len() >= majority(self.nodes.len()) {
            true => Ok(seen),
            false => Err(fault(self.nodes.len(), troubles.iter()).0),
        }
    }
}

/// The claim that most nodes show, if those and the ones that said nothing are a majority.
fn holding(holdings: Vec<Holding>, unheard: usize, needed: usize) -> Option<Holding> {
    let name = |holding: &Holding| (holding.token, holding.holder.closing);
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
    // It is held for as long as a majority has it.
    lefts.sort_unstable_by(|one, other| other.cmp(one));
    let left = lefts.get(needed.min(count) - 1).copied();
    let mut holder = first.holder.clone();
    holder.lease_left = left;
    Some(Holding::new(holder, None, first.token))
}

//! Looking at the locks of all nodes, and watching them.
//!
//! In: names or a glob. Out: who holds what, and word when that changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tenure_core::backend::{BoxFuture, Fate, Fault, Hint, Hinter, Hints, LockInfo, Query, hints};
use tenure_core::{Key, Token};
use tokio::task::{AbortHandle, JoinSet};

use super::Shared;
use super::hops::{Hops, Judged};
use super::nodes::{Node, Nodes};
use super::together::together;
use crate::trouble::Trouble;
use crate::url::Address;
use crate::watch::{Eyes, say_blind};

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let keys: Vec<Key> = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Keys(keys) => keys.clone(),
            Query::Glob(_) => self.scan(query).await?.into_iter().collect(),
        };
        let mut by_slot: BTreeMap<u16, Vec<Key>> = BTreeMap::new();
        for key in &keys {
            by_slot.entry(self.keys.slot(key)).or_default().push(key.clone());
        }
        let shares = by_slot
            .into_values()
            .map(|share| -> BoxFuture<'_, _> { Box::pin(self.read_share(share)) });
        let mut found = HashMap::new();
        for share in together(shares).await {
            found.extend(share?.into_iter().map(|info| (info.key.clone(), info)));
        }
        Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
    }

    /// Those of one slot.
    async fn read_share(&self, keys: Vec<Key>) -> Result<Vec<LockInfo>, Fault> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let mut hops = Hops::new(self, first);
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().read_locks(&keys).await.map_err(Fault::from);
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                return answer;
            }
        }
    }

    /// The locks of all nodes that match, by name.
    async fn scan(&self, query: &Query) -> Result<BTreeSet<Key>, Fault> {
        // Whoever has the first slot is as good as any: nobody knows of any node before.
        self.nodes.owner(0).await?;
        let nodes = self.nodes.masters();
        let scanned =
            nodes.iter().map(|node| -> BoxFuture<'_, _> { Box::pin(node.keeper().scan(query)) });
        let mut keys = BTreeSet::new();
        for some in together(scanned).await {
            keys.extend(some?);
        }
        Ok(keys)
    }

    pub(super) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Fate>>, Fault> {
        let asked = ended.iter().map(|one| -> BoxFuture<'_, _> { Box::pin(self.fate(one)) });
        together(asked).await.into_iter().collect()
    }

    async fn fate(&self, ended: &(Key, Token)) -> Result<Option<Fate>, Fault> {
        let mut hops = Hops::new(self, &ended.0);
        loop {
            let owner = hops.next().await?;
            let answer = owner.keeper().fates(std::slice::from_ref(ended)).await;
            let answer = answer.map(|mut fates| fates.pop().flatten()).map_err(Fault::from);
            if let Judged::Counts(answer) = hops.judge(&owner, answer).await {
                return answer;
            }
        }
    }

    /// Hints from all nodes from now on; `None` where one will not tell.
    pub(super) async fn hints(&self) -> Result<Option<Hints>, Fault> {
        self.nodes.owner(0).await?;
        let (hinter, hints) = hints(&self.nodes.clock);
        let mut watchers = Watchers::new(&self.nodes, hinter);
        if !watchers.follow().await? {
            return Ok(None);
        }
        Ok(Some(hints.kept_by(tokio::spawn(watchers.keep_up()).abort_handle())))
    }
}

/// Those who watch, one at each node that has slots.
struct Watchers {
    nodes: Arc<Nodes>,
    hinter: Hinter,
    tasks: JoinSet<()>,
    at: HashMap<Address, AbortHandle>,
}

impl Watchers {
    fn new(nodes: &Arc<Nodes>, hinter: Hinter) -> Self {
        Watchers { nodes: nodes.clone(), hinter, tasks: JoinSet::new(), at: HashMap::new() }
    }

    /// Has one at each node; whether all of them are told of changes.
    async fn follow(&mut self) -> Result<bool, Trouble> {
        let masters = self.nodes.masters();
        let is_master = |address: &Address| masters.iter().any(|node| node.address() == address);
        self.at.retain(|address, task| {
            let keep = is_master(address);
            if !keep {
                task.abort();
            }
            keep
        });
        for node in &masters {
            if !self.at.contains_key(node.address()) && !self.send(node).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn send(&mut self, node: &Node) -> Result<bool, Trouble> {
        let eyes = Eyes::new(node.keeper(), self.hinter.clone());
        let task = match eyes.open().await {
            Ok(live) => self.tasks.spawn(eyes.keep_open(live)),
            Err(trouble) if trouble.is_final() => {
                say_blind(&trouble);
                return Ok(false);
            }
            // It may be dead, and the others are not.
            Err(_) => self.tasks.spawn(eyes.open_when_possible()),
        };
        self.at.insert(node.address().clone(), task);
        Ok(true)
    }

    /// Until the watch is over, or a node will not tell any more.
    async fn keep_up(mut self) {
        let mut changes = self.nodes.changes();
        loop {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                Some(ended) = self.tasks.join_next() => match ended {
                    Err(aborted) if aborted.is_cancelled() => continue,
                    _ => return,
                },
            }
            if !self.follow().await.unwrap_or(false) {
                return;
            }
            // Another node may know less than the one before.
            self.hinter.tell(Hint::Forgot);
        }
    }
}

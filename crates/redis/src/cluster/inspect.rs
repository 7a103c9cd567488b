//! Inspects and watches the locks of all nodes.
//!
//! In: names or a glob. Out: holders and waiters, and hints when they change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use tenure_core::backend::{
    BoxFuture, ClaimEnd, Fault, Hint, HintSender, Hints, LockInfo, Query, hints,
};
use tenure_core::{Key, Token};
use tokio::task::{AbortHandle, JoinSet};

use super::Shared;
use super::topology::{ClusterNode, Nodes};
use crate::error::EngineError;
use crate::single::{Locks, warn_unwatched};
use crate::url::Address;

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
            .map(|share| -> BoxFuture<'_, _> { Box::pin(self.read_share(query, share)) });
        let mut found = HashMap::new();
        for share in join_all(shares).await {
            found.extend(share?.into_iter().map(|info| (info.key.clone(), info)));
        }
        Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
    }

    /// Reads the locks of one slot.
    async fn read_share(&self, query: &Query, keys: Vec<Key>) -> Result<Vec<LockInfo>, Fault> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let keys = &keys;
        let read =
            |locks: Arc<Locks>| async move { Ok(locks.inspector.read_locks(query, keys).await?) };
        self.at_owner(first, read).await
    }

    /// The names of all locks that match, from all nodes.
    async fn scan(&self, query: &Query) -> Result<BTreeSet<Key>, Fault> {
        // Loads the topology if it is not known yet; slot 0 stands for any slot.
        self.nodes.owner(0).await?;
        let nodes = self.nodes.masters();
        let scanned = nodes
            .iter()
            .map(|node| -> BoxFuture<'_, _> { Box::pin(node.locks().inspector.scan(query)) });
        let mut keys = BTreeSet::new();
        for some in join_all(scanned).await {
            keys.extend(some?);
        }
        Ok(keys)
    }

    pub(super) async fn end_reasons(
        &self,
        ended: &[(Key, Token)],
    ) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        let asked = ended.iter().map(|one| -> BoxFuture<'_, _> { Box::pin(self.end_reason(one)) });
        join_all(asked).await.into_iter().collect()
    }

    async fn end_reason(&self, ended: &(Key, Token)) -> Result<Option<ClaimEnd>, Fault> {
        let read = |locks: Arc<Locks>| async move {
            let mut reasons = locks.inspector.end_reasons(std::slice::from_ref(ended)).await?;
            Ok(reasons.pop().flatten())
        };
        self.at_owner(&ended.0, read).await
    }

    /// Hints about the locks of `query` from all nodes, from now on; `None` if a node refuses to send them.
    pub(super) async fn hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        self.nodes.owner(0).await?;
        let (hinter, hints) = hints(&self.nodes.clock);
        let mut watchers = Watchers::new(&self.nodes, hinter, query);
        if !watchers.follow().await? {
            return Ok(None);
        }
        Ok(Some(hints.kept_by(tokio::spawn(watchers.keep_up()).abort_handle())))
    }
}

/// One watch for each node that has slots.
struct Watchers {
    nodes: Arc<Nodes>,
    hinter: HintSender,
    query: Query,
    tasks: JoinSet<()>,
    at: HashMap<Address, AbortHandle>,
}

impl Watchers {
    fn new(nodes: &Arc<Nodes>, hinter: HintSender, query: &Query) -> Self {
        let (nodes, query) = (nodes.clone(), query.clone());
        Watchers { nodes, hinter, query, tasks: JoinSet::new(), at: HashMap::new() }
    }

    /// Starts and stops watches so that each master has one. Returns false if a master refuses to be watched.
    async fn follow(&mut self) -> Result<bool, EngineError> {
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

    async fn send(&mut self, node: &ClusterNode) -> Result<bool, EngineError> {
        let watch = node.locks().inspector.watch(self.hinter.clone(), &self.query);
        let task = match watch.open().await {
            Ok(live) => self.tasks.spawn(watch.keep_open(live)),
            Err(error) if error.is_permanent() => {
                warn_unwatched(&error);
                return Ok(false);
            }
            // The node may be down while the others are up.
            Err(_) => self.tasks.spawn(watch.open_when_possible()),
        };
        self.at.insert(node.address().clone(), task);
        Ok(true)
    }

    /// Follows changes of slot owners, until the watch ends or a node refuses to be watched.
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
            // The new owner may lack data that the old one had.
            self.hinter.send(Hint::Forgot);
        }
    }
}

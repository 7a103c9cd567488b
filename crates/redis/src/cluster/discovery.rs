//! Queries nodes for the owners of slots: after an error, and at regular intervals.
//!
//! In: addresses of nodes. Out: their descriptions of the cluster, which `topology.rs` applies.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::task::JoinSet;

use super::cluster_nodes::View;
use super::topology::{Nodes, SlotOwner};
use crate::error::{Cause, EngineError};
use crate::link::Connector;
use crate::url::Address;
use tenure_net::jittered;

/// How often one node is queried while nothing looks wrong.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How often while a dead node still has slots: its leases are renewed at the node that replaces it, or are
/// lost.
const ASK_SOON: Duration = Duration::from_millis(200);
/// How many nodes are queried at a time after an error: a single node may have old data or be partitioned.
const AT_ONCE: usize = 5;
/// How long to wait for the other nodes after the first reply.
const LAGGARDS: Duration = Duration::from_millis(50);
/// The shortest pause between two queries: during a failover every caller reports errors.
const ROUNDS_APART: Duration = Duration::from_millis(50);

impl Nodes {
    /// The owner of `slot`; queries nodes if it is not known.
    pub(super) async fn owner(&self, slot: u16) -> Result<SlotOwner, EngineError> {
        match self.owner_now(slot) {
            Some(owner) => Ok(owner),
            None => Box::pin(self.find(slot)).await,
        }
    }

    async fn find(&self, slot: u16) -> Result<SlotOwner, EngineError> {
        self.keep_watch();
        self.ask_again().await?;
        self.owner_now(slot).ok_or_else(|| self.unowned(slot))
    }

    fn unowned(&self, slot: u16) -> EngineError {
        let what = format!("no node of the cluster has the slot {slot}");
        EngineError::new(Cause::Busy, &self.shown(), what)
    }

    /// The first node of the URL, for messages.
    pub(super) fn shown(&self) -> String {
        self.seeds.first().map(ToString::to_string).unwrap_or_default()
    }

    /// Queries several nodes, or waits for a query that is already under way.
    pub(super) async fn ask_again(&self) -> Result<(), EngineError> {
        let before = self.asked.load(Ordering::Acquire);
        let _one = self.asking().await;
        match self.asked.load(Ordering::Acquire) == before {
            true => self.ask_some(AT_ONCE).await,
            false => Ok(()),
        }
    }

    /// Waits for a query that is under way. It may run on a blocked runtime, so the wait is limited to the
    /// time that a query may take.
    async fn asking(&self) -> Option<MutexGuard<'_, ()>> {
        let connector = &self.config.connector;
        let longest = connector.call_time();
        tokio::time::timeout(longest, self.asking.lock()).await.ok()
    }

    /// Queries nodes, `at_once` at a time, until one has replied.
    async fn ask_some(&self, at_once: usize) -> Result<(), EngineError> {
        let round = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut addresses = self.addresses();
        let first = usize::try_from(round).unwrap_or(0) * at_once % addresses.len().max(1);
        addresses.rotate_left(first);
        let mut errors = Vec::new();
        for some in addresses.chunks(at_once) {
            if self.ask_these(some, &mut errors).await {
                return Ok(());
            }
        }
        Err(self.nobody_knows(&errors))
    }

    /// Queries these nodes; returns whether any of them has replied.
    async fn ask_these(&self, addresses: &[Address], errors: &mut Vec<EngineError>) -> bool {
        let mut asked = JoinSet::new();
        for address in addresses {
            let (connector, address) = (self.config.connector.clone(), address.clone());
            let by_name = self.config.by_name;
            asked.spawn(async move { ask(&connector, &address, by_name).await });
        }
        let (mut answered, mut stale) = (false, false);
        let patience = self.config.connector.connect_timeout();
        let mut late = pin!(tokio::time::sleep(patience));
        loop {
            let answer = tokio::select! {
                answer = asked.join_next() => answer,
                () = &mut late => None,
            };
            match answer {
                None => break,
                Some(Ok(Ok(view))) => {
                    stale |= self.apply(&view);
                    if !std::mem::replace(&mut answered, true) {
                        late.set(tokio::time::sleep(LAGGARDS));
                    }
                }
                Some(Ok(Err(error))) => errors.push(error),
                Some(Err(_)) => {}
            }
        }
        if stale {
            self.doubt.notify_one();
        }
        answered
    }

    /// The error if no node has replied. It is permanent if every node refuses us: a retry would not help.
    fn nobody_knows(&self, errors: &[EngineError]) -> EngineError {
        let refused = !errors.is_empty() && errors.iter().all(EngineError::is_permanent);
        let cause = match errors.first() {
            Some(first) if refused => first.cause(),
            _ => Cause::Unreachable,
        };
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let said = if said.is_empty() { "none answered in time".into() } else { said.join("; ") };
        EngineError::new(
            cause,
            &self.shown(),
            format_args!("no node describes the cluster: {said}"),
        )
    }

    /// Makes sure that a task queries nodes regularly: the one that runs already, or a new one on this
    /// runtime.
    pub(super) fn keep_watch(&self) {
        self.watch.keep(|| Some(watch_over(self.me())));
    }

    /// Restarts this task on the current runtime, wherever it ran before.
    pub(super) fn start_watcher_on_current(&self) {
        self.watch.move_here(|| Some(watch_over(self.me())));
    }
}

/// Queries nodes until the last reference to `nodes` is dropped.
async fn watch_over(nodes: Weak<Nodes>) {
    let state = |nodes: Arc<Nodes>| (nodes.doubt.clone(), nodes.miss_any());
    while let Some((doubt, missing)) = nodes.upgrade().map(state) {
        let every = if missing { ASK_SOON } else { ASK_EVERY };
        let at_once = tokio::select! {
            () = doubt.notified() => AT_ONCE,
            () = tokio::time::sleep(jittered(every)) => 1,
        };
        let Some(nodes) = nodes.upgrade() else { return };
        let one = nodes.asking().await;
        if let Err(error) = nodes.ask_some(at_once).await {
            tracing::debug!(%error, "no node describes the cluster");
        }
        drop(one);
        drop(nodes);
        tokio::time::sleep(ROUNDS_APART).await;
    }
}

/// The description of the cluster by the node at `address`.
async fn ask(connector: &Connector, address: &Address, by_name: bool) -> Result<View, EngineError> {
    let within = connector.call_time();
    let timed_out = |_| EngineError::new(Cause::Unreachable, address, "the node does not answer");
    tokio::time::timeout(within, ask_now(connector, address, by_name)).await.map_err(timed_out)?
}

async fn ask_now(
    connector: &Connector,
    address: &Address,
    by_name: bool,
) -> Result<View, EngineError> {
    let (mut connection, driver) = connector.handshake(address, None).await?;
    let mut command = redis::cmd("CLUSTER");
    let asked = command.arg("NODES").query_async::<String>(&mut connection).await;
    driver.abort();
    let text = asked.map_err(|error| match error.detail() {
        Some(said) if said.contains("cluster support disabled") => {
            let what = "cannot be used: it is no node of a cluster; `redis://HOST` is for it";
            EngineError::new(Cause::Unsupported, address, what)
        }
        _ => EngineError::of_connect(address, &error),
    })?;
    View::parse(address, &text, by_name).ok_or_else(|| {
        let what = "cannot be used: it does not answer as a node of a cluster does";
        EngineError::new(Cause::Unsupported, address, what)
    })
}

//! Asking nodes who has which slot: when something is odd, and now and then.
//!
//! In: addresses of nodes. Out: what they say, for `nodes.rs` to learn from.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::MutexGuard;
use tokio::task::JoinSet;

use super::nodes::{Nodes, Owner};
use super::view::View;
use crate::jitter::jittered;
use crate::link::Dial;
use crate::trouble::{Cause, Trouble};
use crate::url::Address;

/// How often one node is asked though nothing is odd.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// And while a node is dead that is to be replaced: its leases are renewed at the new one, or lost.
const ASK_SOON: Duration = Duration::from_millis(200);
/// How many are asked at a time when something is: one of them may be behind, or cut off.
const AT_ONCE: usize = 5;
/// How long the others are waited for when one has answered.
const LAGGARDS: Duration = Duration::from_millis(50);
/// The shortest time between two rounds: while a failover lasts, everybody has something to complain of.
const ROUNDS_APART: Duration = Duration::from_millis(50);

impl Nodes {
    /// Who has `slot`; asks if that is not known.
    pub(super) async fn owner(&self, slot: u16) -> Result<Owner, Trouble> {
        match self.owner_now(slot) {
            Some(owner) => Ok(owner),
            None => Box::pin(self.find(slot)).await,
        }
    }

    async fn find(&self, slot: u16) -> Result<Owner, Trouble> {
        self.keep_watch();
        self.ask_again().await?;
        self.owner_now(slot).ok_or_else(|| self.unowned(slot))
    }

    fn unowned(&self, slot: u16) -> Trouble {
        let what = format!("no node of the cluster has the slot {slot}");
        Trouble::new(Cause::NotNow, &self.shown(), what)
    }

    /// The first node of the URL, for messages.
    pub(super) fn shown(&self) -> String {
        self.seeds.first().map(ToString::to_string).unwrap_or_default()
    }

    /// Asks several nodes, or waits for whoever does so already.
    pub(super) async fn ask_again(&self) -> Result<(), Trouble> {
        let before = self.asked.load(Ordering::Acquire);
        let _one = self.asking().await;
        match self.asked.load(Ordering::Acquire) == before {
            true => self.ask_some(AT_ONCE).await,
            false => Ok(()),
        }
    }

    /// Waits for whoever asks now. That one may be on a runtime that stands still: it is waited for as
    /// long as asking may take, and no longer.
    async fn asking(&self) -> Option<MutexGuard<'_, ()>> {
        let dial = &self.kit.dial;
        let longest = dial.connect_timeout() + dial.response_timeout();
        tokio::time::timeout(longest, self.asking.lock()).await.ok()
    }

    /// Asks nodes, `at_once` at a time, until one has answered.
    async fn ask_some(&self, at_once: usize) -> Result<(), Trouble> {
        let turn = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut addresses = self.addresses();
        let first = usize::try_from(turn).unwrap_or(0) * at_once % addresses.len().max(1);
        addresses.rotate_left(first);
        let mut troubles = Vec::new();
        for some in addresses.chunks(at_once) {
            if self.ask_these(some, &mut troubles).await {
                return Ok(());
            }
        }
        Err(self.nobody_knows(&troubles))
    }

    /// Whether any of these has answered.
    async fn ask_these(&self, addresses: &[Address], troubles: &mut Vec<Trouble>) -> bool {
        let mut asked = JoinSet::new();
        for address in addresses {
            let (dial, address) = (self.kit.dial.clone(), address.clone());
            let by_name = self.kit.by_name;
            asked.spawn(async move { ask(&dial, &address, by_name).await });
        }
        let (mut heard, mut behind) = (false, false);
        let patience = self.kit.dial.connect_timeout();
        let mut late = pin!(tokio::time::sleep(patience));
        loop {
            let answer = tokio::select! {
                answer = asked.join_next() => answer,
                () = &mut late => None,
            };
            match answer {
                None => break,
                Some(Ok(Ok(view))) => {
                    behind |= self.learn(&view);
                    if !std::mem::replace(&mut heard, true) {
                        late.set(tokio::time::sleep(LAGGARDS));
                    }
                }
                Some(Ok(Err(trouble))) => troubles.push(trouble),
                Some(Err(_)) => {}
            }
        }
        if behind {
            self.doubt.notify_one();
        }
        heard
    }

    /// Why nothing is known. Where all refuse us, asking again is of no use.
    fn nobody_knows(&self, troubles: &[Trouble]) -> Trouble {
        let refused = !troubles.is_empty() && troubles.iter().all(Trouble::is_final);
        let cause = match troubles.first() {
            Some(first) if refused => first.cause(),
            _ => Cause::Down,
        };
        let said: Vec<String> = troubles.iter().map(ToString::to_string).collect();
        let said = if said.is_empty() { "none answered in time".into() } else { said.join("; ") };
        Trouble::new(cause, &self.shown(), format_args!("no node tells of the cluster: {said}"))
    }

    /// Makes sure that nodes are asked now and then, by a task on this runtime or where it runs already.
    pub(super) fn keep_watch(&self) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.as_ref().is_none_or(|task| task.is_finished()) {
            let spawn = |here: Handle| here.spawn(watch_over(self.me())).abort_handle();
            *watch = Handle::try_current().ok().map(spawn);
        }
    }

    /// The same on this runtime, wherever that was done before.
    pub(super) fn keep_watch_here(&self) {
        self.end_watch();
        self.keep_watch();
    }
}

/// Asks for as long as there is anybody who wants to know.
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
        if let Err(trouble) = nodes.ask_some(at_once).await {
            tracing::debug!(%trouble, "nobody knows the cluster");
        }
        drop(one);
        drop(nodes);
        tokio::time::sleep(ROUNDS_APART).await;
    }
}

/// What the node at `address` says.
async fn ask(dial: &Dial, address: &Address, by_name: bool) -> Result<View, Trouble> {
    let within = dial.connect_timeout() + dial.response_timeout();
    let silent = |_| Trouble::new(Cause::Down, address, "the node does not answer");
    tokio::time::timeout(within, ask_now(dial, address, by_name)).await.map_err(silent)?
}

async fn ask_now(dial: &Dial, address: &Address, by_name: bool) -> Result<View, Trouble> {
    let (mut connection, driver) = dial.speak(address, None).await?;
    let mut command = redis::cmd("CLUSTER");
    let asked = command.arg("NODES").query_async::<String>(&mut connection).await;
    driver.abort();
    let text = asked.map_err(|error| match error.detail() {
        Some(said) if said.contains("cluster support disabled") => {
            let what = "cannot be used: it is no node of a cluster; `redis://HOST` is for it";
            Trouble::new(Cause::Unsupported, address, what)
        }
        _ => Trouble::of_connect(address, &error),
    })?;
    View::parse(address, &text, by_name).ok_or_else(|| {
        let what = "cannot be used: it does not answer as a node of a cluster does";
        Trouble::new(Cause::Unsupported, address, what)
    })
}

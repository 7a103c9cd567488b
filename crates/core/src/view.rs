//! Locks and events as values to serialise: one form for `tenure ls --json`, `show --json`, `watch --json` and the
//! page.
//!
//! In: [`LockInfo`]s and [`Event`]s. Out: plain values. The JSON is stable: fields may be added, and no field
//! changes its meaning without a new [`SCHEMA`]. Whole tokens never appear.

use serde::Serialize;

use crate::holder::{Holder, Process};
use crate::mode::Mode;
use crate::report::{Holding, LockInfo, Waiting};
use crate::time::UnixMillis;
use crate::token::Token;
use crate::watch::{Event, EventKind};

/// The version of the JSON format.
pub const SCHEMA: u32 = 1;

/// Several locks.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Listing {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The locks, in the order of the caller.
    pub locks: Vec<LockView>,
}

/// One lock, which may be free.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Showing<'a> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The key that was asked for.
    pub key: &'a str,
    /// The lock; `null` if it has neither a holder nor a waiter.
    pub lock: Option<LockView>,
}

/// One lock.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LockView {
    /// The key of the lock.
    pub key: String,
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// How many permits are taken; `null` in another mode.
    pub permits: Option<u32>,
    /// Of how many permits; `null` in another mode.
    pub capacity: Option<u32>,
    /// Who holds it.
    pub holders: Vec<HoldingView>,
    /// In queue order; `null` if the engine does not know the waiters.
    pub waiters: Option<Vec<WaiterView>>,
}

/// A holder, and how it holds the lock.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HoldingView {
    /// Who it is.
    #[serde(flatten)]
    pub holder: HolderView,
    /// How it holds the lock.
    #[serde(flatten)]
    pub how: How,
    /// The slot of a numbered permit.
    pub slot: Option<u32>,
    /// The first digits of the token, for `release --force --token`.
    pub token_start: Option<String>,
}

/// A holder.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HolderView {
    /// Who it is.
    #[serde(flatten)]
    pub who: Who,
    /// How long it has held the lock.
    pub held_ms: Option<u64>,
    /// `null` if the lease has no end.
    pub lease_left_ms: Option<u64>,
    /// Whether the lock was released and stays closed for the rest of its `min_hold`.
    pub cooling_down: bool,
    /// A string: a JSON reader that uses doubles would round a number.
    pub fence: Option<String>,
}

/// How a claim holds a lock, or wants it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct How {
    /// `exclusive`, `shared` or `permits`.
    pub mode: &'static str,
    /// How many permits; `null` in another mode.
    pub permits: Option<u32>,
    /// Of how many permits; `null` in another mode.
    pub capacity: Option<u32>,
}

/// A waiter.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct WaiterView {
    /// Who it is.
    #[serde(flatten)]
    pub who: Who,
    /// How long it has waited.
    pub waiting_ms: Option<u64>,
    /// How it wants the lock.
    #[serde(flatten)]
    pub how: How,
}

/// A process that holds or waits, with what its request said.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Who {
    /// The user name.
    pub user: Option<String>,
    /// The host name.
    pub host: Option<String>,
    /// The process id on that host.
    pub pid: Option<u32>,
    /// The name of the executable.
    pub program: Option<String>,
    /// Since when it holds or waits.
    pub since_unix_ms: Option<u64>,
    /// The label of the request.
    pub label: Option<String>,
    /// The reason of the request.
    pub reason: Option<String>,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct EventView<'a> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was noticed.
    pub at_unix_ms: u64,
    /// `acquired`, `released`, `handed_over`, `lost`, `forced` or `ended`.
    pub event: &'a str,
    /// The key of the lock.
    pub key: &'a str,
    /// The new holder, or the former one if the lock has ended.
    pub holder: Option<HolderView>,
    /// The previous holder, for a hand-over.
    pub from: Option<HolderView>,
    /// Who released the lock by force, and why.
    pub by: Option<&'a str>,
    /// `null` if the engine does not know the waiters.
    pub waiters: Option<usize>,
}

impl Listing {
    /// The locks in this order.
    pub fn of<'a>(locks: impl IntoIterator<Item = &'a LockInfo>) -> Self {
        Listing { schema: SCHEMA, locks: locks.into_iter().map(LockView::of).collect() }
    }
}

impl<'a> Showing<'a> {
    /// The lock with this key.
    pub fn of(key: &'a str, lock: Option<&LockInfo>) -> Self {
        Showing { schema: SCHEMA, key, lock: lock.map(LockView::of) }
    }
}

impl LockView {
    /// The lock as it is now.
    pub fn of(info: &LockInfo) -> Self {
        let waiters = info.waiters.as_ref();
        let (used, capacity) = taken(&info.holders).unzip();
        LockView {
            key: info.key.to_string(),
            mode: info.mode().as_str(),
            permits: used,
            capacity,
            holders: info.holders.iter().map(HoldingView::of).collect(),
            waiters: waiters.map(|queue| queue.iter().map(WaiterView::of).collect()),
        }
    }
}

impl HolderView {
    /// The holder as it is now.
    pub fn of(holding: &Holding) -> Self {
        let holder = &holding.holder;
        HolderView {
            who: Who::of(&holder.process, holder.since, &holder.label, &holder.reason),
            held_ms: holder.since.map(age),
            lease_left_ms: holder.lease_left.map(millis),
            cooling_down: holder.cooling_down,
            fence: holding.fence.map(|fence| fence.to_string()),
        }
    }
}

impl HoldingView {
    fn of(holding: &Holding) -> Self {
        HoldingView {
            holder: HolderView::of(holding),
            how: How::of(&holding.mode),
            slot: holding.slot,
            token_start: holding.token.as_ref().map(token_start),
        }
    }
}

impl WaiterView {
    fn of(waiting: &Waiting) -> Self {
        let Waiting { process, label, reason, since, .. } = waiting;
        let who = Who::of(process, *since, label, reason);
        WaiterView { who, waiting_ms: waiting.since.map(age), how: How::of(&waiting.mode) }
    }
}

impl How {
    fn of(mode: &Mode) -> Self {
        let (permits, capacity) = match mode {
            Mode::Permits { permits, capacity } => (Some(*permits), Some(*capacity)),
            _ => (None, None),
        };
        How { mode: mode.as_str(), permits, capacity }
    }
}

impl Who {
    fn of(
        process: &Option<Process>,
        since: Option<UnixMillis>,
        label: &Option<String>,
        reason: &Option<String>,
    ) -> Self {
        let process = process.as_ref();
        let field = |get: fn(&Process) -> &String| process.map(get).cloned();
        Who {
            user: field(|process| &process.user),
            host: field(|process| &process.host),
            pid: process.map(|process| process.pid),
            program: field(|process| &process.program),
            since_unix_ms: since.map(|since| since.0),
            label: label.clone(),
            reason: reason.clone(),
        }
    }
}

/// Whole milliseconds.
fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn age(since: UnixMillis) -> u64 {
    millis(since.elapsed())
}

impl<'a> EventView<'a> {
    /// The event.
    pub fn of(event: &'a Event) -> Self {
        let view = |holder: &Option<Holder>, fence| {
            holder.clone().map(|holder| HolderView::of(&Holding::new(holder, fence, None)))
        };
        EventView {
            schema: SCHEMA,
            at_unix_ms: event.at.0,
            event: event.what.as_str(),
            key: event.key.as_str(),
            holder: view(&event.holder, event.fence),
            from: view(&event.from, None),
            by: match &event.what {
                EventKind::Forced(by) => Some(by),
                _ => None,
            },
            waiters: event.waiters,
        }
    }
}

/// How many digits of a token are shown: enough to name one of several holders, and too few to release the lock.
pub const TOKEN_SHOWN: usize = 8;

/// The first digits of a token.
pub fn token_start(token: &Token) -> String {
    token.expose().chars().take(TOKEN_SHOWN).collect()
}

/// The mode column for people: `exclusive`, `shared 3` (holders), `3 of 4` (permits), or `closed` if every holder has
/// released the lock and it is only kept closed.
pub fn state(lock: &LockInfo) -> String {
    let closed = !lock.holders.is_empty() && lock.holders.iter().all(|h| h.holder.cooling_down);
    match (lock.mode(), taken(&lock.holders)) {
        _ if closed => "closed".into(),
        (_, Some((used, capacity))) => format!("{used} of {capacity}"),
        (Mode::Permits { capacity, .. }, None) => format!("0 of {capacity}"),
        (Mode::Read, None) => format!("shared {}", lock.holders.len()),
        (other, None) => other.as_str().into(),
    }
}

/// How many permits are taken, and the largest capacity in use. `None` if the key is not held as permits.
pub fn taken(holders: &[Holding]) -> Option<(u32, u32)> {
    let permits = |holding: &Holding| match holding.mode {
        Mode::Permits { permits, capacity } => Some((permits, capacity)),
        _ => None,
    };
    let all: Option<Vec<_>> = holders.iter().map(permits).collect();
    let sum = |(used, of): (u32, u32), (more, capacity): (u32, u32)| {
        (used.saturating_add(more), of.max(capacity))
    };
    all?.into_iter().reduce(sum)
}

//! Which keys cost the most waiting, and who waits for whom.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_core::Key;

use super::lock::total;
use super::show::{link, moment, name, text};
use super::{Frame, html};
use crate::app::App;
use crate::history::History;
use crate::snapshot::Snapshot;
use crate::waits_for::{Edge, edges};

const KEYS_SHOWN: usize = 50;
const EDGES_SHOWN: usize = 200;

#[derive(Template)]
#[template(path = "contention.html")]
struct Page {
    frame: Frame,
    keys: Vec<Row>,
    edges: Vec<Waits>,
    edges_more: usize,
    cycles: usize,
    watched: String,
    waiters_known: bool,
}

struct Row {
    key: String,
    link: String,
    waiting: usize,
    now: String,
    past: u64,
    all: String,
}

struct Waits {
    waiter: String,
    key: String,
    link: String,
    holder: String,
    in_cycle: bool,
}

/// How long was waited for one key.
#[derive(Clone, Copy, Default)]
struct Cost {
    waiting: usize,
    now: Duration,
    past: u64,
    before: Duration,
}

/// `GET /contention`.
pub(crate) async fn contention(State(app): State<Arc<App>>) -> Response {
    let snapshot = app.collector.fresh().await;
    let (keys, watched) = {
        let history = app.collector.history();
        (costs(&snapshot, &history), history.since)
    };
    let all = edges(&snapshot);
    html(
        StatusCode::OK,
        &Page {
            frame: Frame::new(&app, "contention", "Contention".into(), &snapshot),
            keys: keys.into_iter().map(row).collect(),
            cycles: all.iter().filter(|edge| edge.in_cycle).count(),
            edges_more: all.len().saturating_sub(EDGES_SHOWN),
            edges: all.iter().take(EDGES_SHOWN).map(waits).collect(),
            watched: moment(watched),
            waiters_known: snapshot.totals().waiters_known || snapshot.locks.is_empty(),
        },
    )
}

/// The keys that were waited for, the most expensive first.
fn costs(snapshot: &Snapshot, history: &History) -> Vec<(Key, Cost)> {
    let mut costs = BTreeMap::<Key, Cost>::new();
    for (key, past) in history.keys().filter(|(_, past)| past.waits.count() > 0) {
        let cost = costs.entry(key.clone()).or_default();
        (cost.past, cost.before) = (past.waits.count(), past.waits.sum);
    }
    for seen in snapshot.locks.iter().filter(|seen| !seen.waiters().is_empty()) {
        let cost = costs.entry(seen.info.key.clone()).or_default();
        let since = seen.waiters().iter().filter_map(|waiting| waiting.since);
        (cost.waiting, cost.now) = (seen.waiters().len(), since.map(|since| since.elapsed()).sum());
    }
    let mut costs: Vec<_> = costs.into_iter().collect();
    costs.sort_by_key(|(_, cost)| Reverse(cost.now + cost.before));
    costs.truncate(KEYS_SHOWN);
    costs
}

fn row((key, cost): (Key, Cost)) -> Row {
    Row {
        key: text(key.as_str()),
        link: link(key.as_str()),
        waiting: cost.waiting,
        now: total(cost.now),
        past: cost.past,
        all: total(cost.now + cost.before),
    }
}

fn waits(edge: &Edge<'_>) -> Waits {
    let process = |process: &tenure_core::Process| format!("{} pid {}", name(process), process.pid);
    Waits {
        waiter: process(edge.waiter),
        key: text(edge.key),
        link: link(edge.key),
        holder: process(edge.holder),
        in_cycle: edge.in_cycle,
    }
}

//! The first page: what is held now, the worst first.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tenure_core::text::short;
use tenure_core::view::state;

use super::list::{Asked, chosen};
use super::show::{HolderCell, UNKNOWN, command, link, text};
use super::{Frame, html};
use crate::app::App;
use crate::snapshot::{Seen, Snapshot};

/// How many locks are on one page.
const ROWS: usize = 100;

#[derive(Template)]
#[template(path = "now.html")]
struct Page {
    frame: Frame,
    cards: Vec<Card>,
    /// The title of the lock that is shown first, and that lock.
    worst_title: &'static str,
    worst: Option<Worst>,
    rows: Vec<Row>,
    filter: String,
    total: usize,
    page: usize,
    pages: usize,
    previous: Option<String>,
    next: Option<String>,
    left_out: usize,
    tells_waiters: bool,
}

/// One number of the cards.
struct Card {
    name: &'static str,
    value: String,
    note: String,
}

/// The lock that most claims wait for; the one that is held the longest if the engine does not tell.
struct Worst {
    row: Row,
    waiting: usize,
    longest: String,
    command: String,
}

/// One line of the table.
struct Row {
    key: String,
    link: String,
    mode: String,
    holder: Option<HolderCell>,
    /// How many others hold it too.
    others: usize,
    waiters: String,
    is_waited_for: bool,
}

/// `GET /now?filter=GLOB&page=N`.
pub(crate) async fn now(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Response {
    let snapshot = app.collector.fresh().await;
    let chosen = chosen(&snapshot, &asked, ROWS);
    let tells_waiters = snapshot.totals().waiters_known || snapshot.locks.is_empty();
    // Without waiters, the locks are sorted by how long they are held.
    let first = snapshot.locks.first();
    let page = Page {
        frame: Frame::new(&app, "now", "Now".into(), &snapshot),
        cards: cards(&app, &snapshot),
        worst_title: if tells_waiters { "Most waited for" } else { "Held the longest" },
        worst: first.and_then(|seen| worst(&app, seen, tells_waiters)),
        rows: chosen.rows.iter().map(|seen| row(&app, seen)).collect(),
        previous: (chosen.page > 1).then(|| address(&asked, chosen.page - 1)),
        next: (chosen.page < chosen.pages).then(|| address(&asked, chosen.page + 1)),
        filter: asked.filter(),
        left_out: snapshot.left_out,
        tells_waiters,
        total: chosen.total,
        page: chosen.page,
        pages: chosen.pages,
    };
    html(StatusCode::OK, &page)
}

fn cards(app: &App, snapshot: &Snapshot) -> Vec<Card> {
    let totals = snapshot.totals();
    let (lost, watched) = {
        let history = app.collector.history();
        (history.lost_today(), history.since.elapsed())
    };
    let day = Duration::from_secs(24 * 60 * 60);
    let known = |value: String| {
        if totals.waiters_known || snapshot.locks.is_empty() { value } else { UNKNOWN.into() }
    };
    let card = |name, value, note: String| Card { name, value, note };
    vec![
        card("Held", totals.held.to_string(), String::new()),
        card("Waiting", known(totals.waiting.to_string()), String::new()),
        card(
            "Longest wait",
            totals.longest_wait.map_or_else(|| UNKNOWN.into(), short),
            String::new(),
        ),
        card("Lost", lost.to_string(), format!("in the last {}", short(watched.min(day)))),
    ]
}

fn worst(app: &App, seen: &Seen, tells_waiters: bool) -> Option<Worst> {
    let waiting = seen.waiters().len();
    (waiting > 0 || !tells_waiters).then(|| Worst {
        row: row(app, seen),
        waiting,
        longest: seen.longest_wait().map_or_else(|| UNKNOWN.into(), short),
        command: command(app, "show", None, seen.info.key.as_str()),
    })
}

/// Of several holders, the one whose lease ends first.
fn row(app: &App, seen: &Seen) -> Row {
    let key = &seen.info.key;
    let holders = seen.info.holders.iter().zip(&seen.signs);
    let first =
        holders.min_by_key(|(holding, _)| holding.holder.lease_left.unwrap_or(Duration::MAX));
    Row {
        key: text(key.as_str()),
        link: link(key.as_str()),
        mode: state(&seen.info),
        holder: first.map(|(holding, signs)| HolderCell::new(app, key, holding, signs)),
        others: seen.info.holders.len().saturating_sub(1),
        waiters: seen
            .info
            .waiters
            .as_ref()
            .map_or_else(|| UNKNOWN.into(), |queue| queue.len().to_string()),
        is_waited_for: !seen.waiters().is_empty(),
    }
}

/// The address of another page of the same list.
fn address(asked: &Asked, page: usize) -> String {
    format!("now?filter={}&page={page}", utf8_percent_encode(&asked.filter(), NON_ALPHANUMERIC))
}

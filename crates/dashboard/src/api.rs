//! The same for programs: JSON, numbers for Prometheus, health.
//!
//! The JSON is that of `tenure ls --json` and `tenure show --json`, with the age of the answer and the page of a long
//! list.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tenure_core::Key;
use tenure_core::view::{Listing, Showing};

use crate::app::App;
use crate::guard::refuse;
use crate::pages::list::{Asked, chosen};

/// The most locks of one answer.
const PER_PAGE: usize = 1_000;
/// The engine counts as reachable if a look succeeded within this time.
const READY: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Page {
    #[serde(flatten)]
    listing: Listing,
    /// How old the answer of the engine is.
    age_ms: Option<u64>,
    failure: Option<String>,
    /// How many locks match the filter, on all pages.
    total: usize,
    page: usize,
    pages: usize,
}

/// `GET /api/locks?filter=GLOB&page=N`.
pub(crate) async fn locks(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Response {
    let snapshot = app.collector.fresh().await;
    let chosen = chosen(&snapshot, &asked, PER_PAGE);
    let page = Page {
        listing: Listing::of(chosen.rows.iter().map(|seen| &seen.info)),
        age_ms: snapshot.age().and_then(|age| u64::try_from(age.as_millis()).ok()),
        failure: snapshot.failure.clone(),
        total: chosen.total,
        page: chosen.page,
        pages: chosen.pages,
    };
    json(&page)
}

#[derive(Deserialize)]
pub(crate) struct KeyQuery {
    key: String,
}

/// `GET /api/lock?key=KEY`.
pub(crate) async fn lock(State(app): State<Arc<App>>, Query(named): Query<KeyQuery>) -> Response {
    let key = match Key::new(&named.key) {
        Ok(key) => key,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let snapshot = app.collector.fresh().await;
    json(&Showing::of(key.as_str(), snapshot.get(&key).map(|seen| &seen.info)))
}

fn json(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default() + "\n";
    typed("application/json", text)
}

fn typed(kind: &'static str, text: String) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `GET /metrics`: what the cards show. No key is a label.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let snapshot = app.collector.newest().await;
    let (totals, lost) = (snapshot.totals(), app.collector.history().lost_ever());
    let seconds = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
    let up = u8::from(snapshot.failure.is_none() && snapshot.at.is_some());
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    add("tenure_page_up", "gauge", "Whether the last look at the engine succeeded.", f64::from(up));
    add(
        "tenure_page_age_seconds",
        "gauge",
        "How old the shown locks are.",
        seconds(snapshot.age()),
    );
    add("tenure_page_held", "gauge", "Locks that are held.", totals.held as f64);
    add("tenure_page_waiting", "gauge", "Claims that wait for a lock.", totals.waiting as f64);
    add(
        "tenure_page_longest_wait_seconds",
        "gauge",
        "How long the oldest claim has waited.",
        seconds(totals.longest_wait),
    );
    add("tenure_page_lost_total", "counter", "Locks that were seen to be lost.", lost as f64);
    typed("text/plain; version=0.0.4", text)
}

/// `GET /healthz`: the process answers.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 200 if the engine answered within half a minute.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    match app.collector.newest().await.age() {
        Some(age) if age < READY => "ok\n".into_response(),
        _ => refuse(StatusCode::SERVICE_UNAVAILABLE, "the engine does not answer"),
    }
}

//! The pages, as HTML that works without JavaScript.
//!
//! All links are relative and all pages are on one level, so the router works under any path, also behind a proxy that
//! cuts the path off.

mod contention;
mod doctor;
pub(crate) mod list;
mod lock;
mod now;
mod release;
mod show;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::OriginalUri;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::app::App;
use crate::guard::refuse;
use crate::snapshot::Snapshot;

const STYLE: &str = include_str!("../../assets/tenure.css");
const SCRIPT: &str = include_str!("../../assets/tenure.js");
const ICON: &str = include_str!("../../assets/tenure.svg");

/// The routes of the pages and of what they load.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(start))
        .route("/now", get(now::now))
        .route("/lock", get(lock::lock))
        .route("/contention", get(contention::contention))
        .route("/doctor", get(doctor::doctor))
        .route("/release", get(release::form).post(release::release))
        .route("/tenure.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/tenure.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/tenure.svg", get(async || asset("image/svg+xml", ICON)))
}

/// Leads to the first page. Relative, as every link: below `/locks/` it is `now`, below `/locks` it is `locks/now`.
async fn start(OriginalUri(uri): OriginalUri) -> Redirect {
    match uri.path().rsplit('/').next() {
        None | Some("") => Redirect::to("now"),
        Some(last) => Redirect::to(&format!("{last}/now")),
    }
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    // Their address has the version of the crate.
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=86400")], text).into_response()
}

/// What every page shows around its content.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) title: String,
    /// The entry of the menu.
    pub(crate) here: &'static str,
    pub(crate) engine: &'static str,
    pub(crate) version: &'static str,
    /// Whether the page can be live.
    pub(crate) is_live: bool,
    /// How old the shown locks are.
    pub(crate) age: String,
    pub(crate) failure: Option<String>,
}

impl Frame {
    pub(crate) fn new(app: &App, here: &'static str, title: String, snapshot: &Snapshot) -> Self {
        Frame {
            title,
            here,
            engine: app.can.engine,
            version: env!("CARGO_PKG_VERSION"),
            is_live: true,
            age: snapshot.age().map_or_else(|| "never".into(), show::ago),
            failure: snapshot.failure.as_deref().map(show::text),
        }
    }
}

/// A page, or 500 if its template fails.
fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(component = "tenure", %error, "a page cannot be rendered");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be rendered")
        }
    }
}

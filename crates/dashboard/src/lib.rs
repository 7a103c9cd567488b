//! A page that shows who holds what: which lock everybody waits for, who holds it, since when, whether that holder is
//! alive, and what to type.
//!
//! [`router`] mounts in any axum application, under any path; `tenure serve` is that router on 127.0.0.1. It works on
//! every engine, and says what an engine cannot tell. The HTML needs no JavaScript; with it, the page is live.
//!
//! ```
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let locker = tenure::connect("memory:").await?;
//! let app = axum::Router::<()>::new().nest("/locks", tenure_dashboard::router(locker));
//! # drop(app); Ok(()) }
//! ```
//!
//! # What it asks of the engine
//!
//! One task asks for all browsers: it has one watch, and looks at all locks every second while somebody looks at a
//! page, else every ten seconds. It starts with the first request, or [at once](Dashboard::watch_at_once), and ends
//! with the router. What it remembers has a bound.
//!
//! # Who can use it
//!
//! - It is read-only, unless [`Dashboard::allow_release`] is set.
//! - A request must name an allowed host: the loopback names, and those of [`Dashboard::allow_host`].
//! - Requests from pages of other sites are refused; a form needs the value that its page contained.
//! - [`Dashboard::auth_token`] asks for a token. Without it, put your own authentication around the router: everybody
//!   who reaches it sees all keys, holders and reasons.
//! - Tokens of claims, passwords, and labels that look like secrets are never shown.

mod secrets; // what must not be shown
mod lease_signs; // whether a holder is alive
mod snapshot; // all locks at the last look
mod history; // what has happened
mod waits_for; // who waits for whom
mod collector; // the one task that asks the engine
mod checkup; // the checks of `tenure doctor`
mod app; // what all requests share
mod guard; // which requests are answered
mod live; // the stream of events
mod api; // JSON, metrics, health
mod pages; // HTML

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Router, http};
use tenure_core::Locker;

use app::{App, Options};

/// The longest body of a request: a key, a reason and their names, percent-encoded.
const BODY_MAX: usize = 8 * 1024;

/// The page on the locks of `locker`, read-only. It needs a tokio runtime when the first request arrives.
pub fn router(locker: Locker) -> Router {
    Dashboard::new(locker).router()
}

/// The page with options.
///
/// ```
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_dashboard::Dashboard;
///
/// let locker = tenure::connect("memory:").await?;
/// let page = Dashboard::new(locker).allow_host("ops.example.com").allow_release().router();
/// # drop(page); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a dashboard does nothing until it is a router"]
pub struct Dashboard {
    locker: Locker,
    options: Options,
}

impl Dashboard {
    /// The page on the locks of `locker`.
    pub fn new(locker: Locker) -> Self {
        Dashboard { locker, options: Options::default() }
    }

    /// Lets the users of the page release locks by force, where the engine can do it. Default: they cannot.
    pub fn allow_release(mut self) -> Self {
        self.options.allow_release = true;
        self
    }

    /// Asks every request for this token: as `Authorization: Bearer TOKEN`, or as the password that a browser asks for.
    /// `/healthz` and `/readyz` need none.
    pub fn auth_token(mut self, token: impl Into<String>) -> Self {
        self.options.auth_token = Some(token.into());
        self
    }

    /// Answers requests to this host too, without its port. Default: `localhost`, `127.0.0.1` and `[::1]` only.
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.options.hosts.push(name.into());
        self
    }

    /// Starts to watch when the router is made, not with the first request: what happens before is remembered too. The
    /// router must then be made on a tokio runtime.
    pub fn watch_at_once(mut self) -> Self {
        self.options.watch_at_once = true;
        self
    }

    /// What the commands on the page need to find the same locks, such as `-u redis://cache-1`. It is shown: no
    /// passwords.
    pub fn command_options(mut self, options: impl Into<String>) -> Self {
        self.options.command_options = Some(options.into());
        self
    }

    /// The router, to serve or to mount.
    pub fn router(self) -> Router {
        let app = Arc::new(App::new(self.locker, self.options));
        if app.options.watch_at_once {
            app.collector.start();
        }
        let guarded = Router::new()
            .merge(pages::routes())
            .route("/live", get(live::live))
            .route("/api/locks", get(api::locks))
            .route("/api/lock", get(api::lock))
            .route("/metrics", get(api::metrics))
            .fallback(async || guard::refuse(http::StatusCode::NOT_FOUND, "there is no such page"))
            .layer(DefaultBodyLimit::max(BODY_MAX))
            .layer(from_fn_with_state(app.clone(), guard::guard));
        let health =
            Router::new().route("/healthz", get(api::healthz)).route("/readyz", get(api::readyz));
        guarded.merge(health).with_state(app)
    }
}

/// The examples of its page in the documentation, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/ops/dashboard.md")]
struct Page;

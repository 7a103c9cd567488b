//! The stream of events that makes a page live.
//!
//! In: the looks of the collector. Out: one server-sent event for each, with its number. The page then fetches itself
//! again: what it shows is made in one place, with and without JavaScript.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;

use crate::app::App;
use crate::guard::refuse;

/// A comment is sent after this long without an event, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// `GET /live`.
pub(crate) async fn live(State(app): State<Arc<App>>) -> Response {
    let Ok(permit) = app.streams.clone().try_acquire_owned() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open");
    };
    let looks = app.collector.stream();
    // The state keeps the permit and the app for as long as the stream lives.
    let events = stream::unfold((looks, permit, app), async |(mut looks, permit, app)| {
        let number = looks.next().await?;
        let event = Event::default().event("look").data(number.to_string());
        Some((Ok::<_, Infallible>(event), (looks, permit, app)))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

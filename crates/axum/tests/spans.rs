//! The spans of the layers, as an exporter sees them. One test, since a subscriber is installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::routing::post;
use tenure::axum::LockLayer;
use tenure::{Error, Locker, Memory};
use tower::{Layer, ServiceExt, service_fn};
use tracing::Instrument;

/// E4: a handler under the layer of axum or of tower runs inside the span `lock`, which has the key and, from a
/// template, the name, and is a child of the caller's span.
#[tokio::test]
async fn e4_handlers_run_inside_the_span_of_the_lock() {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    lines.without_time().with_writer(move || writer.clone()).init();
    let locker = Locker::new(Memory::space("layer-spans"));

    let by_path = LockLayer::path(&locker, "order:{id}").unwrap();
    let handler = post(async || tracing::info!("axum's handler"));
    let app: Router = Router::new().route("/{id}", handler.layer(by_path));
    let request = || Request::post("/1").body(Body::empty()).unwrap();
    let caller = tracing::info_span!("request");
    app.oneshot(request()).instrument(caller.clone()).await.unwrap();
    log.has("request:lock{name=\"order:{id}\" key=\"order:1\"}: spans: axum's handler");

    let layer = tenure_tower::LockLayer::new(
        move |_: &Request<Body>| Ok::<_, Box<Response<Body>>>(locker.lock("order:2")),
        |error: Error| panic!("{error}"),
    );
    let service = layer.layer(service_fn(async |_: Request<Body>| {
        tracing::info!("tower's service");
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    service.oneshot(request()).instrument(caller).await.unwrap();
    log.has("request:lock{key=\"order:2\"}: spans: tower's service");
}

/// What was logged, each line with its spans.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    #[track_caller]
    fn has(&self, line: &str) {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        assert!(text.lines().any(|found| found.ends_with(line)), "no `{line}` in:\n{text}");
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

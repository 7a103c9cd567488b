//! Requests, answers, and handlers that can be held up.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::Value;
use tenure_testkit::wait::within;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/problem+json");
        serde_json::from_str(&self.text).unwrap()
    }

    /// The member `detail` of a problem with this status.
    #[track_caller]
    pub(crate) fn detail(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()["detail"].as_str().unwrap().to_owned()
    }
}

/// Sends a request to `app` and reads the answer.
pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = within("an answer", app.clone().oneshot(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

pub(crate) async fn post(app: &Router, path: &str) -> Answer {
    send(app, Request::post(path).body(Body::empty()).unwrap()).await
}

/// Where handlers stop until the test lets them go on.
pub(crate) struct Stop {
    arrived: Semaphore,
    let_go: Semaphore,
}

impl Stop {
    pub(crate) fn new() -> &'static Self {
        let (arrived, let_go) = (Semaphore::new(0), Semaphore::new(0));
        Box::leak(Box::new(Stop { arrived, let_go }))
    }

    /// In a handler: says that it is here, and waits.
    pub(crate) async fn here(&self) {
        self.arrive();
        self.let_go.acquire().await.unwrap().forget();
    }

    /// Says that something has come to pass, and goes on.
    pub(crate) fn arrive(&self) {
        self.arrived.add_permits(1);
    }

    /// In a test: waits until a handler is here.
    pub(crate) async fn reached(&self) {
        within("a handler", self.arrived.acquire()).await.unwrap().forget();
    }

    /// In a test: lets one handler go on.
    pub(crate) fn let_go(&self) {
        self.let_go.add_permits(1);
    }
}

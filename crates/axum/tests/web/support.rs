//! Requests, responses, handlers that can be paused, and locks that outlive the test.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::Value;
use tenure::{Locker, Memory};
use tenure_testkit::wait::within;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// A locker whose locks outlive every deadline: a lock that becomes free was released, and did not expire.
pub(crate) fn patient(space: &str) -> Locker {
    Locker::builder(Memory::space(space)).ttl(Duration::from_secs(300)).build().unwrap()
}

/// A response, read to its end.
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

/// Sends a request to `app` and reads the response.
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

/// A point where handlers wait until the test continues them.
pub(crate) struct Stop {
    arrived: Semaphore,
    let_go: Semaphore,
}

impl Stop {
    pub(crate) fn new() -> &'static Self {
        let (arrived, let_go) = (Semaphore::new(0), Semaphore::new(0));
        Box::leak(Box::new(Stop { arrived, let_go }))
    }

    /// In a handler: reports that it has arrived, and waits.
    pub(crate) async fn here(&self) {
        self.arrive();
        self.let_go.acquire().await.unwrap().forget();
    }

    /// Reports an arrival without a wait.
    pub(crate) fn arrive(&self) {
        self.arrived.add_permits(1);
    }

    /// In a test: waits until a handler has arrived.
    pub(crate) async fn reached(&self) {
        within("a handler", self.arrived.acquire()).await.unwrap().forget();
    }

    /// In a test: continues one handler.
    pub(crate) fn let_go(&self) {
        self.let_go.add_permits(1);
    }
}

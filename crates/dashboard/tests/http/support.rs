//! Shared by all tests: a router, requests to it, and what an answer contains.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request, StatusCode};
use tenure::Locker;
use tenure_dashboard::Dashboard;
use tenure_testkit::wait::eventually;
use tower::ServiceExt as _;

/// The longest answer that a test reads.
const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// An answer: its status, its body, its headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
    pub(crate) headers: axum::http::HeaderMap,
}

/// A page that is asked by tests.
#[derive(Clone)]
pub(crate) struct Site(pub(crate) Router);

impl Site {
    pub(crate) fn of(locker: &Locker) -> Self {
        Site(tenure_dashboard::router(locker.clone()))
    }

    /// A page whose users may release locks.
    pub(crate) fn releasing(locker: &Locker) -> Self {
        Site(Dashboard::new(locker.clone()).allow_release().router())
    }

    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        let answer = self.0.clone().oneshot(request).await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        let bytes = to_bytes(answer.into_body(), ANSWER_MAX).await.unwrap();
        Answer { status, headers, body: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    /// `GET path` from this machine.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(get(path).body(Body::empty()).unwrap()).await
    }

    /// The body of a page, which must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        answer.body
    }

    /// Waits until the page contains `text`.
    pub(crate) async fn shows(&self, path: &str, text: &str) -> String {
        eventually(&format!("{path} to show {text}"), || async {
            self.page(path).await.contains(text)
        })
        .await;
        self.page(path).await
    }

    /// `POST /release` of our own page.
    pub(crate) async fn post(&self, fields: &[(&str, &str)]) -> Answer {
        self.ask(post(fields).body(form(fields)).unwrap()).await
    }
}

pub(crate) fn get(path: &str) -> axum::http::request::Builder {
    Request::builder().uri(path).header(HOST, "127.0.0.1:8377")
}

pub(crate) fn post(_fields: &[(&str, &str)]) -> axum::http::request::Builder {
    get("/release").method(Method::POST).header(CONTENT_TYPE, "application/x-www-form-urlencoded")
}

/// A form as a browser encodes it.
pub(crate) fn form(fields: &[(&str, &str)]) -> Body {
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let pairs: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    Body::from(pairs.join("&"))
}

/// The value of the hidden field `name` in a page.
pub(crate) fn field<'a>(page: &'a str, name: &str) -> &'a str {
    let start = format!("name=\"{name}\" value=\"");
    let rest = page.split(&start).nth(1).unwrap_or_else(|| panic!("no field {name} in {page}"));
    rest.split('"').next().unwrap()
}

/// The address of the form that releases the first holder, as the page of the lock links it.
pub(crate) fn release_link(page: &str) -> String {
    let rest = page.split("href=\"release?").nth(1).unwrap_or_else(|| panic!("no link in {page}"));
    let query = rest.split('"').next().unwrap().replace("&#38;", "&").replace("&amp;", "&");
    format!("/release?{query}")
}

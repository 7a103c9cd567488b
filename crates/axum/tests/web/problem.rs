//! Errors as responses (E2).

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post as posted;
use serde_json::json;
use tenure::axum::{Kind, OwnerLayer, Problem, ProblemLayer, problem};
use tenure::backend::{Fault, FaultKind};
use tenure::{Error, Locker, Memory};

use crate::support::{Answer, post};

/// The response of an application that fails with `error`.
async fn answer(error: Error, layer: Option<ProblemLayer>) -> Answer {
    let fail = async move || Err::<(), _>(Problem::from(error.clone()));
    let app = Router::new().route("/orders/{id}", posted(fail)).layer(OwnerLayer);
    let app = match layer {
        Some(layer) => app.layer(layer),
        None => app,
    };
    post(&app, "/orders/1?secret=1").await
}

fn fault(kind: FaultKind) -> Error {
    Error::from(Fault::new(kind, "NOPERM at 10.0.0.7"))
}

async fn busy(space: &str) -> Error {
    let locker = Locker::new(Memory::space(space));
    let _guard = locker.lock("order:1").await.unwrap();
    locker.lock("order:1").wait(Duration::ZERO).await.unwrap_err()
}

async fn lost() -> Error {
    let server = Memory::space("problem-lost");
    let guard = Locker::new(server.clone()).lock("k").await.unwrap();
    server.revoke("k").unwrap();
    guard.release().await.unwrap_err()
}

async fn cancelled() -> Error {
    let locker = Locker::new(Memory::space("problem-cancelled"));
    let _guard = locker.lock("k").await.unwrap();
    locker.lock("k").cancel_on(async {}).await.unwrap_err()
}

async fn already_held() -> Error {
    let locker = Locker::new(Memory::space("problem-already"));
    let _guard = locker.lock("k").await.unwrap();
    let within = tenure::WithinProcess::Fail;
    locker.lock("k").within_process(within).await.unwrap_err()
}

async fn closed() -> Error {
    let locker = Locker::new(Memory::space("problem-closed"));
    locker.shutdown(Duration::ZERO).await;
    locker.lock("k").await.unwrap_err()
}

/// E2: every kind of error has its status, its word and, if a retry may help, `Retry-After`. The engine's own
/// message reaches no client.
#[tokio::test]
async fn e2_kinds_and_statuses() {
    let not_held = Locker::new(Memory::space("x")).release("k").await.unwrap_err();
    let cases = [
        (busy("problem-busy").await, 409, "busy", Some("1")),
        (already_held().await, 409, "busy", Some("1")),
        (fault(FaultKind::Unavailable), 503, "unavailable", Some("2")),
        (fault(FaultKind::Unknown), 503, "unavailable", Some("2")),
        (closed().await, 503, "unavailable", Some("2")),
        (cancelled().await, 503, "unavailable", Some("2")),
        (lost().await, 500, "lost", None),
        (Error::invalid("ttl (0ns)"), 500, "invalid", None),
        (fault(FaultKind::Invalid), 500, "invalid", None),
        (fault(FaultKind::Refused), 500, "failed", None),
        (fault(FaultKind::Unsupported), 500, "failed", None),
        (not_held, 500, "failed", None),
    ];
    for (error, status, kind, retry) in cases {
        let shown = error.to_string();
        for layer in [None, Some(ProblemLayer::new().show_holder())] {
            let answer = answer(error.clone(), layer).await;
            assert_eq!(answer.status.as_u16(), status, "{shown}");
            assert_eq!(answer.json()["kind"], kind, "{shown}");
            let after = answer.headers.get("retry-after").map(|value| value.to_str().unwrap());
            assert_eq!(after, retry, "{shown}");
            assert!(!answer.text.contains("10.0.0.7"), "{}", answer.text);
        }
    }
}

/// For a lock that was released and is kept closed, `Retry-After` is the rest of that time.
#[tokio::test]
async fn retry_after_what_is_known() {
    let locker = Locker::new(Memory::space("closing"));
    let guard = locker.lock("k").min_hold(Duration::from_secs(600)).await.unwrap();
    guard.release().await.unwrap();
    let error = locker.lock("k").wait(Duration::ZERO).await.unwrap_err();
    let answer = answer(error, None).await;
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((500..=600).contains(&seconds), "{seconds}");
}

/// E2: the application's statuses and texts; `instance` is the path without its query.
#[tokio::test]
async fn e2_the_applications_words() {
    let error = busy("problem-words").await;
    let layer = ProblemLayer::new()
        .status(Kind::Busy, StatusCode::LOCKED)
        .types("https://example.com/problems/");
    let answer = answer(error, Some(layer)).await;
    assert_eq!(answer.status, StatusCode::LOCKED);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.headers["content-length"], answer.text.len().to_string().as_str());
    let expected = json!({
        "type": "https://example.com/problems/busy",
        "title": "Locked by another",
        "status": 423,
        "detail": "lock `order:1` is held by another",
        "instance": "/orders/1",
        "kind": "busy",
        "key": "order:1",
    });
    assert_eq!(answer.json(), expected);
}

/// The holder is shown only if enabled; the key can be hidden.
#[tokio::test]
async fn holders_on_demand() {
    let error = busy("problem-holder").await;
    let holder = error.holder().unwrap().to_string();
    let plain = answer(error.clone(), None).await;
    assert!(!plain.text.contains(&holder));
    let open = answer(error.clone(), Some(ProblemLayer::new().show_holder())).await;
    assert_eq!(open.detail(409), format!("lock `order:1` not acquired: held by `{holder}`"));
    let hidden = answer(error, Some(ProblemLayer::new().hide_key())).await;
    assert_eq!(hidden.detail(409), "the lock is held by another");
    assert!(!hidden.text.contains("order:1\""), "{}", hidden.text);
}

/// An application's own error type responds with one call, and the layer applies there too. Other headers of
/// the response stay, except those that describe the body.
#[tokio::test]
async fn a_custom_error_type() {
    let error = busy("problem-own").await;
    let fail = async move || {
        let mut response = problem(&error);
        let headers = [("x-own", "1"), ("content-length", "1"), ("content-encoding", "gzip")];
        for (name, value) in headers {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    let layer = ProblemLayer::new().status(Kind::Busy, StatusCode::LOCKED);
    let app = Router::new().route("/", posted(fail)).layer(layer);
    let answer = post(&app, "/").await;
    assert_eq!(
        (answer.status, &answer.headers["x-own"]),
        (StatusCode::LOCKED, &"1".parse().unwrap())
    );
    assert_eq!(answer.headers["content-length"], answer.text.len().to_string().as_str());
    assert!(!answer.headers.contains_key("content-encoding"));
}

/// The layer next to the handler decides, and does not change responses that are not problems.
#[tokio::test]
async fn the_nearest_layer_decides() {
    let error = busy("problem-nearest").await;
    let fail = async move || problem(&error);
    let (inner, outer) = (ProblemLayer::new(), ProblemLayer::new());
    let app = Router::new()
        .route("/busy", posted(fail))
        .route("/own", posted(async || (StatusCode::CONFLICT, "mine").into_response()))
        .layer(inner.status(Kind::Busy, StatusCode::LOCKED))
        .layer(outer.status(Kind::Busy, StatusCode::IM_A_TEAPOT));
    assert_eq!(post(&app, "/busy").await.status, StatusCode::LOCKED);
    let own = post(&app, "/own").await;
    assert_eq!((own.status, own.text.as_str()), (StatusCode::CONFLICT, "mine"));
}

/// The log has what the response hides: the holder, and the engine's message. Of many requests to a busy key it
/// has one line a second.
#[tokio::test]
async fn e4_the_log_says_who() {
    let (log, start, mut refused) = (Log::listen(), std::time::Instant::now(), 0);
    let locker = Locker::new(Memory::space("problem-log"));
    let _guard = locker.lock("logged:1").await.unwrap();
    let busy = locker.lock("logged:1").wait(Duration::ZERO).await.unwrap_err();
    let holder = busy.holder().unwrap().to_string();
    let lines = || {
        let first =
            " INFO tenure_axum::problem: request refused component=\"tenure\" kind=\"busy\" ";
        let last = format!("error=lock `logged:1` not acquired: held by `{holder}`");
        log.text().lines().filter(|l| l.starts_with(first) && l.ends_with(&last)).count()
    };
    // Other tests of this process may have used up the line of this second.
    while refused < 200 || lines() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no line in:\n{}", log.text());
        answer(busy.clone(), Some(ProblemLayer::new())).await;
        refused += 1;
    }
    let most = start.elapsed().as_secs() as usize + 2;
    assert!(lines() <= most, "{} lines for {refused} requests", lines());
}

/// E4: requests that fail because the server is unreachable cause one warning per second, with the engine's
/// message.
#[tokio::test]
async fn e4_an_outage_is_one_line_a_second() {
    let (log, start, mut failed) = (Log::listen(), std::time::Instant::now(), 0);
    let warnings = || {
        let first =
            " WARN tenure_axum::problem: request failed component=\"tenure\" kind=\"unavailable\" ";
        let last = "error=engine unavailable: nobody at 10.0.0.9";
        log.text().lines().filter(|l| l.starts_with(first) && l.ends_with(last)).count()
    };
    // Other tests of this process may have used up the line of this second.
    while failed < 200 || warnings() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no line in:\n{}", log.text());
        let away = Fault::new(FaultKind::Unavailable, "nobody at 10.0.0.9");
        answer(Error::from(away), None).await;
        failed += 1;
    }
    let most = start.elapsed().as_secs() as usize + 2;
    assert!(warnings() <= most, "{} lines for {failed} requests", warnings());
}

/// The log of all tests of this process; tests look for their own keys. A subscriber per thread would miss
/// events whose call site another thread has registered first.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn listen() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            let format = tracing_subscriber::fmt().with_ansi(false).without_time();
            format.with_writer(move || writer.clone()).init();
            log
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

//! Errors as answers (E2).

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

/// What an application answers that fails with `error`.
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

/// E2: every kind of error has its status, its word and, where it helps, `Retry-After`. What the engine said
/// reaches no client.
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

/// A lock that is released and kept closed says for how long.
#[tokio::test]
async fn retry_after_what_is_known() {
    let locker = Locker::new(Memory::space("closing"));
    let guard = locker.lock("k").at_least(Duration::from_secs(600)).await.unwrap();
    guard.release().await.unwrap();
    let error = locker.lock("k").wait(Duration::ZERO).await.unwrap_err();
    let answer = answer(error, None).await;
    let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((500..=600).contains(&seconds), "{seconds}");
}

/// E2: the application's statuses and words; the path is the instance, without its query.
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

/// Who holds a lock is told only on demand; the key can be kept back.
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

/// An application's own error type answers by one call, and the layer has its say there too. What else the
/// application put on the response stays, but for what it said of the body.
#[tokio::test]
async fn an_error_type_of_ones_own() {
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

/// The layer next to the handler has the say, and leaves answers alone that are no problems.
#[tokio::test]
async fn the_nearest_layer_has_the_say() {
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

/// The log has what the answer keeps back, once: the holder, and what the engine said.
#[tokio::test]
async fn e4_the_log_says_who() {
    let log = Log::listen();
    let locker = Locker::new(Memory::space("problem-log"));
    let _guard = locker.lock("logged:1").await.unwrap();
    let busy = locker.lock("logged:1").wait(Duration::ZERO).await.unwrap_err();
    let holder = busy.holder().unwrap().to_string();
    answer(busy, Some(ProblemLayer::new())).await;
    let away = Fault::new(FaultKind::Unavailable, "nobody at 10.0.0.9");
    answer(Error::from(away), None).await;
    let lines = [
        format!(
            " INFO tenure_axum::problem: request refused component=\"tenure\" kind=\"busy\" error=lock `logged:1` not acquired: held by `{holder}`"
        ),
        " WARN tenure_axum::problem: request failed component=\"tenure\" kind=\"unavailable\" error=engine unavailable: nobody at 10.0.0.9".into(),
    ];
    let text = log.text();
    for line in lines {
        assert_eq!(text.matches(&line).count(), 1, "`{line}` in:\n{text}");
    }
}

/// What is logged, by all tests of this process: tell them apart by their keys. (Listening by thread would miss
/// events that another thread came upon first.)
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn listen() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            let format = tracing_subscriber::fmt().with_ansi(false).without_time();
            format.with_writer(move || writer.clone()).init();
            log
        })
    }

    fn text(&self) -> String {
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

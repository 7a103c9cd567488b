//! Readers and permits around a handler.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post as posted, put};
use tenure::axum::{Kind, LimitLayer, LockLayer, Locked, Permitted, Problem, ProblemLayer};
use tenure::{Locker, Memory};

use crate::support::{Answer, Stop, post, send};

/// `/{tenant}`, at most two at a time, with a handler that stops at `stop`.
fn limited(locker: &Locker, stop: &'static Stop) -> Router {
    let handler = async |permit: Permitted| {
        assert!(permit.is_held());
        stop.here().await;
        permit.slot().unwrap().to_string()
    };
    let layer = LimitLayer::path(locker, "limit:{tenant}", 2).unwrap();
    Router::new().route("/{tenant}", posted(handler).layer(layer))
}

fn start(app: &Router, path: &'static str) -> tokio::task::JoinHandle<Answer> {
    let app = app.clone();
    tokio::spawn(async move { post(&app, path).await })
}

/// B3, E2: two requests run at once, with a slot each; the third gets 429 with a body and `Retry-After`. Another tenant
/// has permits of its own. After a response its permit is free.
#[tokio::test]
async fn b3_a_full_limit_is_429() {
    let (locker, stop) = (Locker::new(Memory::space("limit")), Stop::new());
    let app = limited(&locker, stop);
    let (one, two) = (start(&app, "/acme"), start(&app, "/acme"));
    stop.reached().await;
    stop.reached().await;
    let full = post(&app, "/acme").await;
    assert_eq!(
        (full.status, &full.headers["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
    );
    assert_eq!(
        full.text,
        r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"no permit of `limit:acme` is free","kind":"full","key":"limit:acme"}"#
    );
    (0..4).for_each(|_| stop.let_go());
    assert_eq!(post(&app, "/other").await.text, "0");
    let mut slots = [one.await.unwrap().text, two.await.unwrap().text];
    slots.sort();
    assert_eq!(slots, ["0", "1"]);
    assert_eq!(post(&app, "/acme").await.status, StatusCode::OK);
    assert!(locker.inspect("limit:acme").await.unwrap().is_none(), "free when it has answered");
}

/// E2: the status of a full limit can be another one; the texts can hide the key and show the holder. A semaphore in
/// the handler itself is answered in the same way.
#[tokio::test]
async fn e2_a_full_limit_in_other_words() {
    let locker = Locker::new(Memory::space("limit-words"));
    let permit = locker.semaphore("limit", 1).acquire().await.unwrap();
    let handler = async |locker: Locker| -> Result<(), Problem> {
        let semaphore = locker.semaphore("limit", 1);
        let _permit = semaphore.acquire().wait(std::time::Duration::ZERO).await?;
        Ok(())
    };
    let app = |problems: ProblemLayer| {
        let locker = locker.clone();
        Router::new().route("/", posted(move || handler(locker.clone()))).layer(problems)
    };
    let hidden = ProblemLayer::new().status(Kind::Full, StatusCode::SERVICE_UNAVAILABLE).hide_key();
    let answer = post(&app(hidden), "/").await;
    assert_eq!(answer.detail(503), "no permit is free");
    assert_eq!(answer.json().get("key"), None);
    let shown = post(&app(ProblemLayer::new().show_holder()), "/").await.detail(429);
    assert!(shown.starts_with("lock `limit` not acquired: held by `"), "{shown}");
    assert!(shown.ends_with("` with 1 of 1 permits"), "{shown}");
    drop(permit);
}

/// E3: a second limit on the same key inside a request takes no second permit. A lock and a permit of one request are
/// told apart, whichever layer is inside.
#[tokio::test]
async fn e3_nested_layers() {
    let locker = Locker::new(Memory::space("limit-nested"));
    let limit = || LimitLayer::path(&locker, "limit:{id}", 1).unwrap();
    let lock = || LockLayer::path(&locker, "order:{id}").unwrap();
    let handler =
        async |held: Locked, permit: Permitted| format!("{} {}", held.key(), permit.key());
    let app = Router::new()
        .route("/a/{id}", posted(handler).layer((limit(), lock())))
        .route("/b/{id}", posted(handler).layer((lock(), limit())))
        .route("/c/{id}", posted(async || "once").layer((limit(), limit())));
    for path in ["/a/1", "/b/1"] {
        assert_eq!(post(&app, path).await.text, "order:1 limit:1", "{path}");
    }
    assert_eq!(post(&app, "/c/1").await.text, "once");
}

/// B2: requests of a shared layer run together, and keep out those of a layer without it.
#[tokio::test]
async fn b2_shared_layers_read_together() {
    let (locker, stop) = (Locker::new(Memory::space("shared-layer")), Stop::new());
    let write = LockLayer::path(&locker, "catalog:{shop}").unwrap();
    let read = LockLayer::path(&locker, "catalog:{shop}").unwrap().shared();
    let read = read.options(|lock, _| lock.label("reader"));
    let reader = async |held: Locked| {
        stop.here().await;
        held.key().to_string()
    };
    let app = Router::new()
        .route("/{shop}", get(reader).layer(read))
        .route("/{shop}", put(async || "changed").layer(write));
    let request = |method: &str| {
        let request = axum::http::Request::builder().method(method).uri("/7");
        let (app, request) = (app.clone(), request.body(axum::body::Body::empty()).unwrap());
        async move { send(&app, request).await }
    };
    let (one, two) = (tokio::spawn(request("GET")), tokio::spawn(request("GET")));
    stop.reached().await;
    stop.reached().await;
    let info = locker.inspect("catalog:7").await.unwrap().unwrap();
    assert_eq!(info.holders[0].holder.label.as_deref(), Some("reader"));
    assert_eq!(request("PUT").await.detail(409), "lock `catalog:7` is held by another");
    stop.let_go();
    stop.let_go();
    assert_eq!(
        (one.await.unwrap().text, two.await.unwrap().text),
        ("catalog:7".into(), "catalog:7".into())
    );
}

/// Mistakes of the application: a limit of 0, and `Permitted` without a layer, also inside a `LockLayer`.
#[tokio::test]
async fn limits_that_are_none() {
    let locker = Locker::new(Memory::space("limit-none"));
    let error = LimitLayer::path(&locker, "limit:{id}", 0).unwrap_err();
    assert!(error.is_invalid() && error.to_string() == "the limit must not be 0", "{error}");
    let lock = LockLayer::path(&locker, "order:{id}").unwrap();
    let app = Router::new().route("/{id}", posted(async |_: Permitted| ()).layer(lock));
    assert_eq!(post(&app, "/1").await.detail(500), "the lock could not be asked for");
}

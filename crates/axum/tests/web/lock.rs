//! A lock round a handler.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::{any, post as posted};
use tenure::axum::{LockLayer, Locked, Problem};
use tenure::{Locker, Memory};
use tenure_testkit::wait::{eventually, within};
use tower::ServiceExt;

use crate::support::{Stop, post, send};

/// `/orders/{id}`, under a lock, with a handler that stops at `stop`.
fn orders(locker: &Locker, stop: &'static Stop) -> Router {
    let handler = async |Path(id): Path<String>, held: Locked| {
        assert!(held.is_held() && held.key().as_str() == format!("order:{id}"));
        stop.here().await;
        format!("{id} under {}", held.fence())
    };
    let layer = LockLayer::path(locker, "order:{id}").unwrap();
    Router::new().route("/orders/{id}", posted(handler).layer(layer))
}

/// E2: while one request has the lock, another is answered 409 with a body and `Retry-After`; other keys
/// are not disturbed; when the first has answered, the lock is free.
#[tokio::test]
async fn e2_one_at_a_time() {
    let (locker, stop) = (Locker::new(Memory::space("one-at-a-time")), Stop::new());
    let app = orders(&locker, stop);
    let first = tokio::spawn({
        let app = app.clone();
        async move { post(&app, "/orders/1").await }
    });
    stop.reached().await;
    let busy = post(&app, "/orders/1").await;
    assert_eq!(busy.status, StatusCode::CONFLICT);
    assert_eq!(busy.headers["retry-after"], "1");
    assert_eq!(
        busy.text,
        r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"lock `order:1` is held by another","kind":"busy","key":"order:1"}"#
    );
    stop.let_go();
    stop.let_go();
    let other = post(&app, "/orders/2").await;
    assert_eq!(other.status, StatusCode::OK);
    let first = first.await.unwrap();
    assert!(first.text.starts_with("1 under "), "{first:?}");
    assert!(locker.inspect("order:1").await.unwrap().is_none(), "free when it has answered");
}

/// With a wait, the second request has its turn after the first, and a higher fence.
#[tokio::test]
async fn options_can_have_it_wait() {
    let (locker, stop) = (Locker::new(Memory::space("patient")), Stop::new());
    let handler = async |held: Locked| {
        stop.here().await;
        held.fence().to_string()
    };
    let layer = LockLayer::with(&locker, |_| Ok::<_, Problem>("k".into()))
        .options(|lock, _| lock.wait(Duration::from_secs(20)));
    let app = Router::new().route("/", posted(handler)).layer(layer);
    let ask = || {
        let app = app.clone();
        tokio::spawn(async move { post(&app, "/").await.text.parse::<u64>().unwrap() })
    };
    let first = ask();
    stop.reached().await;
    let second = ask();
    stop.let_go();
    stop.reached().await;
    stop.let_go();
    assert!(first.await.unwrap() < second.await.unwrap());
}

/// The options see the request: its id is shown with the lock.
#[tokio::test]
async fn a4_the_request_id_is_shown_with_the_lock() {
    let (locker, stop) = (Locker::new(Memory::space("labels")), Stop::new());
    let layer = LockLayer::header(&locker, "payment:{idempotency-key}").unwrap();
    let layer = layer.options(|lock, parts| {
        let id = parts.headers.get("x-request-id").and_then(|id| id.to_str().ok());
        lock.label(id.unwrap_or("none"))
    });
    let app = Router::new().route("/", posted(async || stop.here().await).layer(layer));
    let request = Request::post("/").header("idempotency-key", "7f").header("x-request-id", "r-1");
    let request = request.body(Body::empty()).unwrap();
    let answer = tokio::spawn(async move { send(&app, request).await });
    stop.reached().await;
    let info = locker.inspect("payment:7f").await.unwrap().unwrap();
    assert_eq!(info.holders[0].holder.label.as_deref(), Some("r-1"));
    stop.let_go();
    assert_eq!(answer.await.unwrap().status, StatusCode::OK);
}

/// What a key is made of and is not there is named, with 400; so is a key that is none. The handler
/// does not run.
#[tokio::test]
async fn a_missing_part_is_named() {
    let locker = Locker::new(Memory::space("missing"));
    let never = || any(async || -> () { panic!("no lock, no handler") });
    let by_path = LockLayer::path(&locker, "order:{id}").unwrap();
    let by_header = LockLayer::header(&locker, "payment:{idempotency-key}").unwrap();
    let own = LockLayer::with(&locker, |_| Err::<String, _>((StatusCode::IM_A_TEAPOT, "no tea")));
    let app = Router::new()
        .route("/orders", never().layer(by_path.clone()))
        .route("/orders/{id}", never().layer(by_path))
        .route("/payments", never().layer(by_header))
        .route("/own", never().layer(own));
    assert_eq!(post(&app, "/orders").await.detail(400), "path parameter `id` is missing");
    assert_eq!(
        post(&app, "/orders/a%0Ab").await.detail(400),
        "invalid key `order:a\\nb`: it contains the control character `\\n`"
    );
    let long = post(&app, &format!("/orders/{}", "x".repeat(600))).await.detail(400);
    assert!(long.ends_with("it is 606 bytes long, at most 512 are allowed"), "{long}");
    let header = "header `idempotency-key`";
    assert_eq!(post(&app, "/payments").await.detail(400), format!("{header} is missing"));
    let pay = |values: &[&[u8]]| {
        let one = |request: axum::http::request::Builder, value: &&[u8]| {
            request.header("idempotency-key", *value)
        };
        let request = values.iter().fold(Request::post("/payments"), one);
        send(&app, request.body(Body::empty()).unwrap())
    };
    assert_eq!(pay(&[b""]).await.detail(400), format!("{header} is missing"));
    assert_eq!(pay(&[b"a", b"b"]).await.detail(400), format!("{header} is there more than once"));
    assert_eq!(pay(&[b"\xff"]).await.detail(400), format!("{header} is not plain text"));
    let own = post(&app, "/own").await;
    assert_eq!((own.status, own.text.as_str()), (StatusCode::IM_A_TEAPOT, "no tea"));
}

/// No parameter can move the boundary to the next one: two different requests never have the same key.
#[tokio::test]
async fn parameters_cannot_move_a_boundary() {
    let locker = Locker::new(Memory::space("boundaries"));
    let handler = async |held: Locked| held.key().as_str().to_owned();
    let by_path = LockLayer::path(&locker, "{tenant}:{order}").unwrap();
    let by_header = LockLayer::header(&locker, "{tenant}:{order}").unwrap();
    let app = Router::new()
        .route("/by-path/{tenant}/{order}", posted(handler).layer(by_path))
        .route("/by-header", posted(handler).layer(by_header));
    let by_header = |tenant, order| {
        let request = Request::post("/by-header").header("tenant", tenant).header("order", order);
        send(&app, request.body(Body::empty()).unwrap())
    };
    assert_eq!(post(&app, "/by-path/acme/eu:42").await.text, "acme:eu:42");
    assert_eq!(by_header("acme", "eu:42").await.text, "acme:eu:42");
    let refusal = "`tenant` must not contain `:`, which ends it";
    assert_eq!(post(&app, "/by-path/acme:eu/42").await.detail(400), refusal);
    assert_eq!(post(&app, "/by-path/acme%3Aeu/42").await.detail(400), refusal);
    assert_eq!(by_header("acme:eu", "42").await.detail(400), refusal);
}

/// A lost lock drops the handler at its next await point and is answered 500.
#[tokio::test]
async fn a15_a_lost_lock_ends_the_handler() {
    let (server, stop) = (Memory::space("lost"), Stop::new());
    let locker = Locker::new(server.clone());
    let app = orders(&locker, stop);
    let answer = tokio::spawn(async move { post(&app, "/orders/1").await });
    stop.reached().await;
    server.revoke("order:1").unwrap();
    let answer = within("the answer", answer).await.unwrap();
    assert_eq!(
        answer.detail(500),
        "the lock was lost before the work was done; some of it may be done"
    );
    assert!(!answer.headers.contains_key("retry-after"));
}

/// A handler that answers with an error, or panics, leaves no lock.
#[tokio::test]
async fn a11_released_on_every_way_out() {
    let locker = Locker::new(Memory::space("ways-out"));
    let layer = LockLayer::path(&locker, "order:{id}").unwrap();
    let handler = async |Path(id): Path<String>| {
        assert_ne!(id, "panic");
        StatusCode::BAD_GATEWAY
    };
    let app = Router::new().route("/orders/{id}", posted(handler).layer(layer));
    assert_eq!(post(&app, "/orders/1").await.status, StatusCode::BAD_GATEWAY);
    assert!(!locker.is_locked("order:1").await.unwrap());
    let panicking = tokio::spawn(async move { post(&app, "/orders/panic").await });
    assert!(panicking.await.unwrap_err().is_panic());
    eventually("the release", || async { !locker.is_locked("order:panic").await.unwrap() }).await;
}

/// The lock is held until the response is there, not until its body has been sent.
#[tokio::test]
async fn a_streaming_body_has_no_lock() {
    let locker = Locker::new(Memory::space("streams"));
    let layer = LockLayer::path(&locker, "order:{id}").unwrap();
    let handler = async || Response::new(Body::from("unread"));
    let app = Router::new().route("/orders/{id}", posted(handler).layer(layer));
    let request = Request::post("/orders/1").body(Body::empty()).unwrap();
    let unread = app.oneshot(request).await.unwrap();
    assert!(!locker.is_locked("order:1").await.unwrap());
    drop(unread);
}

/// `Locked` where no layer took a lock is the application's mistake, and not the client's.
#[tokio::test]
async fn locked_without_a_layer() {
    let app = Router::new().route("/", posted(async |_: Locked| ()));
    assert_eq!(post(&app, "/").await.detail(500), "the lock could not be asked for");
}

/// A template that is none is refused when the layer is made.
#[test]
fn a_bad_template_is_refused() {
    let locker = Locker::new(Memory::space("templates"));
    let error = LockLayer::path(&locker, "order:{id").unwrap_err();
    assert!(error.is_invalid(), "{error}");
}

//! A lock around a handler.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Path;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::{any, post as posted};
use tenure::axum::{FenceLayer, LockLayer, Locked, LostLate, Problem};
use tenure::{Locker, Memory};
use tenure_testkit::wait::{eventually, within};
use tower::{Layer, ServiceExt};

use crate::problem::Log;
use crate::support::{Stop, patient, post, send};

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

/// E2: while one request holds the lock, another gets 409 with a body and `Retry-After`. Other keys are not
/// affected. After the first response the lock is free.
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

/// A11: a response that is complete when the loss is found is sent, and is marked: its work is done.
#[tokio::test]
async fn a11_a_late_loss_keeps_the_response() {
    let server = Memory::space("axum-late");
    let layer = LockLayer::path(&Locker::new(server.clone()), "order:{id}").unwrap();
    let pay = posted(async move || {
        server.expire("order:1").unwrap(); // the last step; only the release finds out
        (StatusCode::CREATED, "receipt")
    });
    let app = Router::new().route("/orders/{id}", pay.layer(layer));
    let request = Request::post("/orders/1").body(Body::empty()).unwrap();
    let response = within("a response", app.clone().oneshot(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let LostLate(error) = response.extensions().get().unwrap();
    assert!(error.is_lost(), "{error}");
    assert_eq!(post(&app, "/orders/1").await.text, "receipt");
}

/// With a wait, the second request acquires the lock after the first, with a higher fence.
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

/// The options can read the request: its id becomes the label of the lock.
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

/// A missing part of the key, or an invalid key, gets 400 with a text that names it. The handler does not
/// run.
#[tokio::test]
async fn a_missing_part_is_named() {
    let locker = Locker::new(Memory::space("missing"));
    let never = || any(async || -> () { panic!("no lock, no handler") });
    let by_path = LockLayer::path(&locker, "order:{id}").unwrap();
    let by_header = LockLayer::header(&locker, "payment:{idempotency-key}").unwrap();
    let own = LockLayer::with(&locker, |_| Err::<String, _>((StatusCode::IM_A_TEAPOT, "no tea")));
    let app = Router::new()
        .route("/orders/{id}", never().layer(by_path))
        .route("/payments", never().layer(by_header))
        .route("/own", never().layer(own));
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

/// A template that does not fit its route is a mistake of the application: 500 with the reason, and a warning
/// in the log, at most one a second. It is never 400, which would blame every client.
#[tokio::test]
async fn a_parameter_that_the_route_does_not_have() {
    let (locker, log) = (Locker::new(Memory::space("misfit")), Log::listen());
    let never = || any(async || -> () { panic!("no lock, no handler") });
    let by_path = LockLayer::path(&locker, "order:{id}").unwrap();
    let fenced = FenceLayer::path(Arc::default(), "order:{id}").unwrap();
    let app = Router::new()
        .route("/orders", never().layer(by_path.clone()))
        .route("/orders/{tenant}/{order_id}", never().layer(by_path.clone()))
        .route("/fenced/{order_id}", never().layer(fenced))
        .fallback_service(never().layer(by_path.clone()));
    let needs = "key template `order:{id}` needs the path parameter `id`, but the route has";
    assert_eq!(post(&app, "/orders").await.detail(500), format!("{needs} none"));
    let misspelt = post(&app, "/orders/acme/7").await;
    assert_eq!(misspelt.detail(500), format!("{needs} `tenant`, `order_id`"));
    assert_eq!(misspelt.json()["kind"], "invalid");
    let request = Request::post("/fenced/7").header("fence", "1").body(Body::empty()).unwrap();
    assert_eq!(send(&app, request).await.detail(500), format!("{needs} `order_id`"));
    assert_eq!(post(&app, "/nowhere").await.detail(500), format!("{needs} none"));
    let outside = by_path.layer(app.clone()).oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(outside.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let outside = to_bytes(outside.into_body(), usize::MAX).await.unwrap();
    let outside = String::from_utf8_lossy(&outside);
    assert!(outside.contains("the layer is not on a route: use `route_layer`"), "{outside}");
    let first = " WARN tenure_axum::problem: request failed component=\"tenure\" kind=\"invalid\" ";
    let (start, mut failed) = (std::time::Instant::now(), 0);
    let detail = format!("detail=\"{needs} none\"");
    let warnings =
        || log.text().lines().filter(|l| l.starts_with(first) && l.contains(&detail)).count();
    // One line per second. Other tests of this process may have used up that of this second.
    while failed < 200 || warnings() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no line in:\n{}", log.text());
        post(&app, "/orders").await;
        failed += 1;
    }
    let most = start.elapsed().as_secs() as usize + 3;
    assert!(warnings() <= most, "{} lines for {failed} requests", warnings());
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

/// A lost lock drops the handler at its next await point, and the response is 500.
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

/// A handler that returns an error, or panics, leaves no lock.
#[tokio::test]
async fn a11_released_on_every_way_out() {
    let locker = patient("ways-out");
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

/// The lock is held until the response is returned, not until its body has been sent.
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

/// `Locked` without a layer is a mistake of the application, not of the client.
#[tokio::test]
async fn locked_without_a_layer() {
    let app = Router::new().route("/", posted(async |_: Locked| ()));
    assert_eq!(post(&app, "/").await.detail(500), "the lock could not be asked for");
}

/// An invalid template is rejected when the layer is created.
#[test]
fn a_bad_template_is_refused() {
    let locker = Locker::new(Memory::space("templates"));
    let error = LockLayer::path(&locker, "order:{id").unwrap_err();
    assert!(error.is_invalid(), "{error}");
}

//! Each request is an owner (E3).

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post as posted};
use tenure::axum::{LockLayer, OwnerLayer, Problem, RequestOwner, spawn_in_scope};
use tenure::{Locker, Memory, Owner};
use tower::ServiceExt;

use crate::support::{Stop, post};

/// Locks `order:1` twice, nested, without a wait. Returns the depth of the inner lock.
async fn nested(locker: &Locker) -> Result<String, Problem> {
    let outer = locker.lock("order:1").wait(Duration::ZERO).await?;
    let inner = locker.lock("order:1").wait(Duration::ZERO).await?;
    let depth = inner.depth();
    inner.release().await?;
    outer.release().await?;
    Ok(depth.to_string())
}

/// E3: nested locks on one key re-enter within a request, and are busy without the layer.
#[tokio::test]
async fn e3_nested_locks_re_enter() {
    let locker = Arc::new(Locker::new(Memory::space("nested")));
    let routes = Router::new().route("/", posted(async move || nested(&locker).await));
    assert_eq!(post(&routes.clone().layer(OwnerLayer), "/").await.text, "2");
    assert_eq!(post(&routes, "/").await.status, 409);
}

/// E3: a handler under a `LockLayer` re-enters the same key, without another layer.
#[tokio::test]
async fn e3_a_handler_re_enters_its_routes_lock() {
    let locker = Locker::new(Memory::space("handler"));
    let layer = LockLayer::path(&locker, "order:{id}").unwrap();
    let handler = async move || nested(&locker).await;
    let app = Router::new().route("/{id}", posted(handler).layer(layer));
    assert_eq!(post(&app, "/1").await.text, "3");
}

/// A18: two concurrent requests are two owners, also if both are handled within one scope.
#[tokio::test]
async fn a18_two_requests_are_two_owners() {
    let (locker, stop) = (Locker::new(Memory::space("two")), Stop::new());
    let handler = async move || {
        let guard = locker.lock("k").wait(Duration::ZERO).await?;
        stop.here().await;
        Ok::<_, Problem>(guard.depth().to_string())
    };
    let app = Router::new().route("/", posted(handler)).layer(OwnerLayer);
    let both = async {
        tokio::join!(post(&app, "/"), async {
            stop.reached().await;
            let second = post(&app, "/").await;
            stop.let_go();
            second
        })
    };
    let (first, second) = Owner::new().scope(both).await;
    assert_eq!((first.text.as_str(), second.status.as_u16()), ("1", 409));
}

/// A request that passes two layers has one owner; extractor and scope return the same one.
#[tokio::test]
async fn a_request_has_one_owner() {
    let handler = async |RequestOwner(owner): RequestOwner| {
        assert_eq!(Some(owner.clone()), Owner::current());
        owner.to_string()
    };
    let outer = async |owner: Option<RequestOwner>, request, next: axum::middleware::Next| {
        let seen = owner.unwrap().0.to_string();
        let answer: axum::response::Response = next.run(request).await;
        let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
        assert_eq!(body, seen);
    };
    let app = Router::new()
        .route("/", get(handler))
        .layer(OwnerLayer)
        .layer(axum::middleware::from_fn(outer))
        .layer(OwnerLayer);
    let request = axum::extract::Request::get("/").body(axum::body::Body::empty()).unwrap();
    assert_eq!(app.oneshot(request).await.unwrap().status(), 200);
}

/// A spawned task has no owner unless it runs in the scope; then it re-enters the request's locks.
#[tokio::test]
async fn tasks_have_the_owner_on_demand() {
    let locker = Locker::new(Memory::space("tasks"));
    let handler = async move || {
        let _held = locker.lock("k").wait(Duration::ZERO).await?;
        let again = {
            let locker = locker.clone();
            move || {
                let locker = locker.clone();
                async move { locker.try_lock("k").await.unwrap().map(|guard| guard.depth()) }
            }
        };
        let (mine, nobodys) = (spawn_in_scope(again()).await, tokio::spawn(again()).await);
        Ok::<_, Problem>(format!("{:?} {:?}", mine.unwrap(), nobodys.unwrap()))
    };
    let app = Router::new().route("/", posted(handler)).layer(OwnerLayer);
    assert_eq!(post(&app, "/").await.text, "Some(2) None");
}

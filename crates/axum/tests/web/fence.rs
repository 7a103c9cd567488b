//! A resource that rejects stale holders by a header (A23).

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::put;
use tenure::axum::{FenceLayer, Fenced, Problem, fence_header};
use tenure::{Fence, FenceCheck, Locker, Memory};

use crate::support::{Answer, Stop, send};

fn guarded(handler: impl FnOnce() -> axum::routing::MethodRouter) -> Router {
    let layer = FenceLayer::path(Arc::new(FenceCheck::new()), "account:{id}").unwrap();
    Router::new().route("/accounts/{id}", handler().layer(layer))
}

async fn write(app: &Router, id: u32, fence: Fence) -> Answer {
    let (name, value) = fence_header(fence);
    let request = Request::put(format!("/accounts/{id}")).header(name, value);
    send(app, request.body(Body::empty()).unwrap()).await
}

/// A23: a holder that lost its lock is rejected as soon as the next holder's fence has been seen.
#[tokio::test]
async fn a23_a_stale_holder_is_refused() {
    let app = guarded(|| put(async |Fenced(fence): Fenced| fence.to_string()));
    let locker = Locker::new(Memory::space("fence-layer"));
    let first = locker.lock("account:1").await.unwrap();
    let stale = first.fence();
    assert_eq!(write(&app, 1, stale).await.text, stale.to_string());
    assert_eq!(write(&app, 1, stale).await.status, StatusCode::OK, "the same may come again");
    first.release().await.unwrap();
    let newer = locker.lock("account:1").await.unwrap().fence();
    assert_eq!(write(&app, 1, newer).await.status, StatusCode::OK);
    let late = write(&app, 1, stale).await;
    assert_eq!(
        late.detail(412),
        format!("stale fence {stale} for `account:1`: {newer} has been seen")
    );
    assert_eq!(late.json()["kind"], "stale_fence");
    assert!(!late.headers.contains_key("retry-after"), "it would not help");
    assert_eq!(write(&app, 2, stale).await.status, StatusCode::OK, "another resource");
}

/// A missing fence and an invalid one get different responses.
#[tokio::test]
async fn a23_a_fence_is_needed() {
    let app = guarded(|| put(async || -> () { panic!("not let through") }));
    let with = |values: &[&str]| {
        let one =
            |request: axum::http::request::Builder, value: &&str| request.header("Fence", *value);
        let request = values.iter().fold(Request::put("/accounts/1"), one);
        let request = request.body(Body::empty()).unwrap();
        send(&app, request)
    };
    assert_eq!(with(&[]).await.detail(428), "header `fence` is missing");
    for values in [&["x"][..], &["0"], &["-1"], &[""], &["99999999999999999999"], &["1", "2"]] {
        let detail = with(values).await.detail(400);
        assert_eq!(detail, "header `fence` must be one whole number above zero", "{values:?}");
    }
}

/// A23: a number that no engine can have granted yet is rejected, and locks out no other client.
#[tokio::test]
async fn a23_a_number_out_of_reach_shuts_nobody_out() {
    let app = guarded(|| put(async |_: Fenced| ()));
    let locker = Locker::new(Memory::space("out-of-reach"));
    let right = locker.lock("account:1").await.unwrap().fence();
    let in_nanoseconds = right.get() * 20;
    for number in [u64::MAX, i64::MAX.cast_unsigned() + 1, i64::MAX.cast_unsigned(), in_nanoseconds]
    {
        let refused = write(&app, 1, Fence::from_raw(number)).await;
        assert_eq!(
            refused.detail(400),
            "header `fence` is more than two days ahead of the clock here",
            "{number}"
        );
    }
    assert_eq!(write(&app, 1, right).await.status, StatusCode::OK);
}

/// A23: a request that the handler rejects does not record its fence. A request that fails, panics or is
/// cancelled does, since it may have changed something.
#[tokio::test]
async fn a23_only_what_may_have_changed_something_counts() {
    let stop = Stop::new();
    let app = guarded(|| {
        put(async |Fenced(fence): Fenced| match fence.get() {
            100 => StatusCode::FORBIDDEN,
            200 => StatusCode::SERVICE_UNAVAILABLE,
            300 => panic!("on purpose"),
            400 => {
                stop.here().await;
                StatusCode::OK
            }
            _ => StatusCode::OK,
        })
    });
    let send = |id, fence| {
        let app = app.clone();
        tokio::spawn(async move { write(&app, id, Fence::from_raw(fence)).await.status })
    };
    assert_eq!(send(1, 100).await.unwrap(), StatusCode::FORBIDDEN);
    assert_eq!(send(1, 50).await.unwrap(), StatusCode::OK, "100 was refused");
    assert_eq!(send(1, 49).await.unwrap(), StatusCode::PRECONDITION_FAILED);
    assert_eq!(send(1, 100).await.unwrap(), StatusCode::FORBIDDEN);
    assert_eq!(send(1, 49).await.unwrap(), StatusCode::PRECONDITION_FAILED, "50 still counts");

    assert_eq!(send(2, 200).await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(2, 199).await.unwrap(), StatusCode::PRECONDITION_FAILED);
    assert!(send(3, 300).await.unwrap_err().is_panic());
    assert_eq!(send(3, 299).await.unwrap(), StatusCode::PRECONDITION_FAILED);
    let given_up = send(4, 400);
    stop.reached().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    assert_eq!(send(4, 399).await.unwrap(), StatusCode::PRECONDITION_FAILED);
}

/// A23: for a forgotten resource, the layer still rejects the stale holder, and lets the next one in.
#[tokio::test]
async fn a23_a_forgotten_resource_is_guarded() {
    let check = Arc::new(FenceCheck::with_limit(10));
    let layer = FenceLayer::path(check, "account:{id}").unwrap();
    let app = Router::new().route("/accounts/{id}", put(async |_: Fenced| ()).layer(layer));
    for id in 1..=30 {
        let fence = Fence::from_raw(u64::from(id) * 10);
        assert_eq!(write(&app, id, fence).await.status, StatusCode::OK, "{id}");
    }
    for id in 1..=30 {
        let stale = Fence::from_raw(u64::from(id) * 10 - 1);
        assert_eq!(write(&app, id, stale).await.status, StatusCode::PRECONDITION_FAILED, "{id}");
    }
    assert_eq!(write(&app, 1, Fence::from_raw(301)).await.status, StatusCode::OK);
}

/// A23: a request with a newer fence waits until an older one, which was let through before, has been
/// handled. So the older one cannot write after it. Requests for other resources do not wait.
#[tokio::test]
async fn a23_check_and_write_are_one() {
    let stop = Stop::new();
    let app = guarded(|| {
        put(async |Fenced(fence): Fenced| {
            if fence.get() == 1 {
                stop.here().await;
            }
        })
    });
    let send = |id, fence| {
        let app = app.clone();
        tokio::spawn(async move { write(&app, id, Fence::from_raw(fence)).await.status })
    };
    let older = send(1, 1);
    stop.reached().await;
    let mut newer = send(1, 2);
    assert_eq!(send(2, 5).await.unwrap(), StatusCode::OK);
    tokio::task::yield_now().await;
    assert!(futures_pending(&mut newer).await, "it has to wait");
    stop.let_go();
    assert_eq!((older.await.unwrap(), newer.await.unwrap()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(send(1, 1).await.unwrap(), StatusCode::PRECONDITION_FAILED);
}

async fn futures_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
    })
    .await
}

/// A closure can name the resource. `Fenced` without a layer is a mistake of the application.
#[tokio::test]
async fn a23_named_by_a_closure() {
    let layer = FenceLayer::with(Arc::new(FenceCheck::new()), |parts| {
        parts.uri.query().map(Into::into).ok_or(Problem::bad_request("no query"))
    });
    let app = Router::new()
        .route("/accounts/{id}", put(async |_: Fenced| ()).layer(layer))
        .route("/open", put(async |_: Fenced| ()));
    assert_eq!(write(&app, 1, Fence::from_raw(1)).await.detail(400), "no query");
    let open = send(&app, Request::put("/open").body(Body::empty()).unwrap()).await;
    assert_eq!(open.status, StatusCode::INTERNAL_SERVER_ERROR);
}

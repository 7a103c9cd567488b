//! tonic under a lock, with the code of `docs/guide/web.md`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

// The guide's code begins here.
use http::{Request, Response};
use std::time::Duration;
use tenure::Locker;
use tenure::tower::LockLayer;
use tonic::{Status, body::Body};

fn of_order(
    locker: &Locker,
    request: &Request<Body>,
) -> Result<tenure::LockRequest, Box<Response<Body>>> {
    match request.headers().get("x-order-id").map(|id| id.to_str()) {
        Some(Ok(id)) => Ok(locker.lock(format!("order:{id}")).wait(Duration::from_secs(2))),
        _ => Err(Status::invalid_argument("no order id").into_http().into()),
    }
}

fn refused<E>(error: tenure::Error) -> Result<Response<Body>, E> {
    match error.is_busy() {
        true => Ok(Status::aborted("the order is locked by another").into_http()),
        false => Ok(Status::unavailable("locks cannot be acquired at the moment").into_http()),
    }
}
// The guide's code ends here.

use std::convert::Infallible;
use tenure::Memory;
use tower::{Layer, ServiceExt, service_fn};

/// tonic's requests and responses fit: a busy lock and a request without a key become gRPC statuses.
#[tokio::test]
async fn tonic_answers_with_a_status() {
    let locker = Locker::new(Memory::space("tonic"));
    let _guard = locker.lock("order:7").await.unwrap();
    let layer = LockLayer::new(move |request: &Request<Body>| of_order(&locker, request), refused);
    let never = service_fn(async |_: Request<Body>| -> Result<Response<Body>, Infallible> {
        panic!("no lock, no call")
    });
    let send = async |header: &str| {
        let request = Request::post("/").header(header, "7").body(Body::empty()).unwrap();
        let response = layer.layer(never).oneshot(request).await.unwrap();
        response.headers()["grpc-status"].clone()
    };
    assert_eq!(send("x-order-id").await, "10", "aborted");
    assert_eq!(send("x-other").await, "3", "invalid argument");
}

/// The code above is that of the guide.
#[test]
fn the_guide_has_this_code() {
    let plain = |text: &str| text.replace([' ', '\n', ','], "");
    let (guide, here) = (include_str!("../../../docs/guide/web.md"), include_str!("tonic.rs"));
    let code = here.split("// The guide's code ").nth(1).and_then(|text| text.split_once('\n'));
    let (_, code) = code.unwrap();
    assert!(code.contains("fn of_order"), "{code}");
    assert!(plain(guide).contains(&plain(code)), "`docs/guide/web.md` differs from this test");
}

//! Services of hyper and others under a lock, without axum.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tenure::tower::LockLayer;
use tenure::{Error, Held, LockRequest, Locker, Memory, RunError};
use tenure_testkit::wait::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A body and an error that no web framework knows.
#[derive(Debug, PartialEq)]
struct Order(u64);
#[derive(Debug)]
enum Failed {
    Locked(Error),
    Own,
}

/// Requests the lock of the order, without a wait.
fn ask(
    locker: Locker,
) -> impl Fn(&Request<Order>) -> Result<LockRequest, Box<&'static str>> + Clone {
    move |request| match request.body() {
        Order(0) => Err("no such order".into()),
        Order(id) => Ok(locker.lock(format!("order:{id}")).wait(Duration::ZERO)),
    }
}

fn refuse(error: Error) -> Result<&'static str, Failed> {
    Err(Failed::Locked(error))
}

/// E2: any body, response and error type works. The service runs under the lock and finds it in the request.
/// `refuse` handles a busy lock, and a response from `ask` is returned. The lock is free afterwards.
#[tokio::test]
async fn e2_any_service_runs_under_a_lock() {
    // So long that no lock expires while the test waits.
    let locker = Locker::builder(Memory::space("any-service")).ttl(Duration::from_secs(300));
    let locker = locker.build().unwrap();
    let pay = service_fn(async |request: Request<Order>| {
        let held = request.extensions().get::<Held>().unwrap();
        assert!(held.is_held() && held.key().as_str() == "order:7");
        if request.uri() == "/fail" { Err(Failed::Own) } else { Ok("paid") }
    });
    let pay = LockLayer::new(ask(locker.clone()), refuse).layer(pay);
    let send = |uri: &str, id| pay.clone().oneshot(Request::post(uri).body(Order(id)).unwrap());
    assert_eq!(send("/", 7).await.unwrap(), "paid");
    assert!(matches!(send("/fail", 7).await, Err(Failed::Own)));
    assert_eq!(send("/", 0).await.unwrap(), "no such order");

    let guard = within("the lock", locker.lock("order:7").into_future()).await.unwrap();
    let Err(Failed::Locked(busy)) = send("/", 7).await else { panic!("it is held") };
    assert!(busy.is_busy(), "{busy}");
    guard.release().await.unwrap();
}

/// B3: a layer around permits lets so many requests in, and the service finds the slot of its permit.
#[tokio::test]
async fn b3_permits_around_a_service() {
    let limit = Locker::new(Memory::space("tower-limit")).semaphore("limit:orders", 2);
    let taken = limit.acquire().numbered().await.unwrap();
    let asked = limit.clone();
    let layer = LockLayer::new(
        move |_: &Request<Order>| {
            Ok::<_, Box<u32>>(asked.acquire().numbered().wait(Duration::ZERO))
        },
        |error: Error| Err(Failed::Locked(error)),
    );
    let slot = service_fn(async |request: Request<Order>| {
        Ok::<_, Failed>(request.extensions().get::<Held>().and_then(Held::slot).unwrap())
    });
    let service = layer.layer(slot);
    assert_eq!(service.clone().oneshot(Request::new(Order(1))).await.unwrap(), 1);
    let second = limit.acquire().await.unwrap();
    let full = service.oneshot(Request::new(Order(1))).await;
    assert!(matches!(full, Err(Failed::Locked(error)) if error.is_busy()));
    drop((taken, second));
}

/// A15: a lost lock drops the service's future, and `refuse` gets the loss.
#[tokio::test]
async fn a15_a_lost_lock_ends_the_service() {
    let server = Memory::space("tower-lost");
    let (locker, started) = (Locker::new(server.clone()), Arc::new(Notify::new()));
    let stuck = {
        let started = started.clone();
        service_fn(move |_: Request<Order>| {
            started.notify_one();
            std::future::pending::<Result<&'static str, Failed>>()
        })
    };
    let stuck = LockLayer::new(ask(locker), refuse).layer(stuck);
    let answer = tokio::spawn(stuck.oneshot(Request::new(Order(7))));
    within("the service", started.notified()).await;
    server.revoke("order:7").unwrap();
    let answer = within("the loss", answer).await.unwrap();
    assert!(matches!(answer, Err(Failed::Locked(error)) if error.is_lost()));
}

/// A11: a response that is complete when the loss is found is sent; its work is done.
#[tokio::test]
async fn a11_a_late_loss_keeps_the_response() {
    let server = Memory::space("tower-late");
    let locker = Locker::new(server.clone());
    let pay = service_fn(move |_: Request<Order>| {
        let server = server.clone();
        async move {
            server.expire("order:7").unwrap(); // the last step; only the release finds out
            Ok::<_, Failed>("receipt")
        }
    });
    let lock = locker.lock("order:7");
    let raw = tenure::tower::call(lock, pay.clone(), Request::new(Order(7))).await;
    let Err(RunError::Lost { value: Some("receipt"), error }) = raw else { panic!("{raw:?}") };
    assert!(error.is_lost(), "{error}");
    let pay = LockLayer::new(ask(locker), refuse).layer(pay);
    assert_eq!(pay.oneshot(Request::new(Order(7))).await.unwrap(), "receipt");
}

/// The layer calls the instance that is ready, as tower requires.
#[tokio::test]
async fn the_ready_instance_is_called() {
    #[derive(Default)]
    struct Choosy {
        ready: bool,
    }
    impl Clone for Choosy {
        fn clone(&self) -> Self {
            Choosy::default()
        }
    }
    impl Service<Request<Order>> for Choosy {
        type Response = &'static str;
        type Error = Failed;
        type Future = std::future::Ready<Result<&'static str, Failed>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Failed>> {
            self.ready = true;
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Order>) -> Self::Future {
            assert!(self.ready, "this one was not asked whether it is ready");
            ready(Ok("done"))
        }
    }
    let locker = Locker::new(Memory::space("ready"));
    let service = LockLayer::new(ask(locker), refuse).layer(Choosy::default());
    assert_eq!(service.oneshot(Request::new(Order(1))).await.unwrap(), "done");
}

/// A hyper server over TCP: one request holds the lock, the next gets 409.
#[tokio::test]
async fn hyper_serves_under_a_lock() {
    let locker = Locker::new(Memory::space("hyper"));
    let guard = locker.lock("/a").await.unwrap();
    let asked = locker.clone();
    let layer = LockLayer::new(
        move |request: &Request<Incoming>| {
            Ok(asked.lock(request.uri().path()).wait(Duration::ZERO))
        },
        |error: Error| {
            let mut response = Response::new(error.to_string());
            *response.status_mut() = StatusCode::CONFLICT;
            Ok(response)
        },
    );
    let handler = service_fn(async |request: Request<Incoming>| {
        let held = request.extensions().get::<Held>().unwrap();
        Ok::<_, Error>(Response::new(format!("under {}", held.key())))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(layer.layer(handler));
            let served = hyper::server::conn::http1::Builder::new();
            tokio::spawn(served.serve_connection(TokioIo::new(stream), service));
        }
    });
    let get = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
        answer
    };
    let busy = get("/a").await;
    assert!(busy.starts_with("HTTP/1.1 409 "), "{busy}");
    assert!(busy.contains("lock `/a` not acquired: held by "), "{busy}");
    let other = get("/b").await;
    assert!(other.starts_with("HTTP/1.1 200 ") && other.ends_with("under /b"), "{other}");
    guard.release().await.unwrap();
    assert!(get("/a").await.ends_with("under /a"));
}

//! A client that disconnects, or sends slowly, on a real connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use tenure::axum::LockLayer;
use tenure::{Locker, Memory};
use tenure_testkit::wait::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Stop, patient};

/// A10: if a client disconnects while its request is handled, the handler is dropped and the lock is
/// released.
#[tokio::test]
async fn a10_a_client_that_goes_away_leaves_no_lock() {
    let (locker, stop) = (patient("gone"), Stop::new());
    let layer = LockLayer::path(&locker, "order:{id}").unwrap();
    let handler = async || {
        let _dropped = Dropped(stop);
        stop.here().await;
    };
    let app = Router::new().route("/orders/{id}", post(handler).layer(layer));
    let mut client = TcpStream::connect(serve(app).await).await.unwrap();
    let request = b"POST /orders/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    client.write_all(request).await.unwrap();
    stop.reached().await;
    assert!(locker.is_locked("order:1").await.unwrap());
    drop(client);
    stop.reached().await;
    eventually("the lock to be free", || async { !locker.is_locked("order:1").await.unwrap() })
        .await;
}

/// A client that does not send its body holds the lock until `max_hold` and no longer. Then it gets a
/// response, and the next client acquires the lock.
#[tokio::test]
async fn max_hold_bounds_a_slow_sender() {
    let locker = Locker::new(Memory::space("slow"));
    let layer = LockLayer::path(&locker, "order:{id}").unwrap();
    let layer = layer.options(|lock, _| lock.max_hold(Duration::from_millis(700)));
    let app = Router::new().route("/orders/{id}", post(async |note: String| note).layer(layer));
    let mut slow = TcpStream::connect(serve(app).await).await.unwrap();
    let start = b"POST /orders/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx";
    slow.write_all(start).await.unwrap();
    eventually("it to have the lock", || async { locker.is_locked("order:1").await.unwrap() })
        .await;
    let begun = Instant::now();
    let next = within("the next client's turn", locker.lock("order:1").into_future()).await;
    let waited = begun.elapsed();
    next.unwrap().release().await.unwrap();
    assert!(waited < Duration::from_millis(1_500), "{waited:?}");
    let mut answer = [0; 12];
    within("an answer", slow.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 500");
}

/// Reports to the test that the handler was dropped.
struct Dropped(&'static Stop);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.arrive();
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

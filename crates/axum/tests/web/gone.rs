//! A client that goes away, on a real connection.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::post;
use tenure::axum::LockLayer;
use tenure::{Locker, Memory};
use tenure_testkit::wait::eventually;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::support::Stop;

/// A10: a client that goes away while its request is handled takes the handler and the lock with it.
#[tokio::test]
async fn a10_a_client_that_goes_away_leaves_no_lock() {
    let (locker, stop) = (Locker::new(Memory::space("gone")), Stop::new());
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

/// Says when the handler is dropped.
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

//! A handler works under a lock, and a graceful shutdown lets it finish.
//!
//! `cargo run -p tenure-examples --bin graceful`, then `curl -X POST localhost:3001/report`, then Ctrl-C.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use tenure::{Locker, RunError};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = tenure::connect(&url).await?;
    let address = std::env::args().nth(2).unwrap_or_else(|| "127.0.0.1:3001".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let app = axum::Router::new().route("/report", post(report)).with_state(locker.clone());
    let asked_to_end = async { drop(tokio::signal::ctrl_c().await) };
    // First the requests: no new ones, and those that run may finish. Then the locks.
    axum::serve(listener, app).with_graceful_shutdown(asked_to_end).await?;
    let left = locker.shutdown(Duration::from_secs(5)).await;
    println!("ended; {} locks were still held", left.released);
    Ok(())
}

/// `run` releases the lock on every way out, and stops the body if the lock is lost.
async fn report(State(locker): State<Locker>) -> (StatusCode, String) {
    let request = locker.lock("job:report").wait(Duration::from_secs(1));
    match request.run(|held| async move { write(held.fence().to_string()).await }).await {
        Ok(Ok(report)) => (StatusCode::OK, report),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        Err(RunError::NotAcquired(error)) => (StatusCode::CONFLICT, error.to_string()),
        Err(lost) => (StatusCode::SERVICE_UNAVAILABLE, lost.to_string()),
    }
}

async fn write(fence: String) -> Result<String, std::io::Error> {
    println!("writing");
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(format!("report with fence {fence}"))
}

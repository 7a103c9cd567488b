//! A web service for orders and payments. It can run as any number of instances.
//!
//! ```text
//! cargo run -p tenure-examples --bin orders
//! curl -X PUT  localhost:3000/orders/42 --json '{"cents": 999}'
//! curl -X POST localhost:3000/orders/42/pay       # two at the same time: the second gets 409
//! curl localhost:3000/metrics
//! ```
//!
//! This runs alone, on `memory:`. With `TENURE_URL=redis://localhost`, or `url` in `[lock]` of `tenure.toml`,
//! several instances share locks and orders: an order is paid once, whichever instance gets the request.
//! `ORDERS_LISTEN` is the address to listen on (`127.0.0.1:3000`), `ORDERS_BANK` the address of a bank (see
//! `bank.rs`; without one, payments take a moment and succeed), `RUST_LOG` the log filter.
//!
//! Read `shop.rs` first: it has the business logic. `web.rs` has the routes and responses.

mod shop;
mod ledger;
mod bank;
mod web;

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tenure::{Config, Locker};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::bank::Bank;
use crate::ledger::Ledger;
use crate::shop::Shop;

/// From a tenth of a millisecond to half a minute: the range of lock requests and of the work under locks.
const BUCKETS: [f64; 9] = [0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 5.0, 30.0];

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let log = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    // Installed before the first lock, because metrics are looked up once.
    let metrics = record()?;

    // `tenure.toml`, then the environment; `memory:` if neither chooses an engine.
    let config = Config::read()?.default_url("memory:");
    let locker = config.connect().await?;
    let ledger = Ledger::open(&config.chosen_url()?.unwrap_or_default()).await?;
    let bank = Bank::at(variable("ORDERS_BANK"));
    let shop = Shop { locker: locker.clone(), ledger, bank };

    let address = variable("ORDERS_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let app = web::routes(shop, metrics)?;
    axum::serve(listener, app).with_graceful_shutdown(asked_to_end()).await?;
    end(&locker).await;
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn record() -> Result<PrometheusHandle, Failure> {
    let durations = Matcher::Suffix("_seconds".into());
    Ok(PrometheusBuilder::new().set_buckets_for_metric(durations, &BUCKETS)?.install_recorder()?)
}

/// Waits for Ctrl-C or SIGTERM.
async fn asked_to_end() {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending().await
}

/// Releases the locks that are still held, so that others need not wait until they expire.
async fn end(locker: &Locker) {
    let report = locker.shutdown(Duration::from_secs(5)).await;
    println!("ended; {} locks were taken from what still ran", report.released);
}

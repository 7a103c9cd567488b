//! Six exports, and at most two of them at a time, over all processes. Each has a worker number of its own.
//!
//! `cargo run -p tenure-examples --bin permits`, or with a URL: `.. --bin permits redis://localhost`.

use std::time::Duration;

use tenure::{Error, Locker};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = tenure::connect(&url).await?;
    let mut exports = JoinSet::new();
    for number in 1..=6 {
        let locker = locker.clone();
        exports.spawn(async move { export(&locker, number).await });
    }
    for done in exports.join_all().await {
        done?;
    }
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Waits for one of two permits. The slot names a scratch directory that no other export uses meanwhile.
async fn export(locker: &Locker, number: u32) -> Result<(), Error> {
    let two_at_a_time = locker.semaphore("limit:exports", 2);
    let permit = two_at_a_time.acquire().numbered().wait(Duration::from_secs(20)).await?;
    let slot = permit.slot().unwrap_or_default();
    println!("export {number} begins in scratch-{slot}, fence {}", permit.fence());
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("export {number} ends in scratch-{slot}");
    permit.release().await?;
    Ok(())
}

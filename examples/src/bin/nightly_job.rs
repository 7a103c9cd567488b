//! A job that every instance tries to run and one instance runs.
//!
//! Start it several times at once, on one machine:
//!
//! ```text
//! for i in 1 2 3; do cargo run -p tenure-examples --bin nightly_job & done; wait
//! ```
//!
//! One instance does the work, the others print which one does it. Pass a URL as the first argument to use
//! another engine.

use std::time::Duration;

use tenure::Locker;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(default_url);
    let locker = tenure::connect(&url).await?;
    run_once(&locker).await?;
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// A directory that all instances of this user share.
fn default_url() -> String {
    format!("file:{}", tenure::file::default_dir().display())
}

async fn run_once(locker: &Locker) -> Result<(), Box<dyn std::error::Error>> {
    let Some(guard) = locker.try_lock("job:nightly-report").reason("nightly report").await? else {
        let holder = locker
            .inspect("job:nightly-report")
            .await?
            .and_then(|lock| lock.holders.into_iter().next());
        let who = holder.map_or("another instance".into(), |holding| holding.holder.to_string());
        println!("skipped: {who} is on it");
        return Ok(());
    };
    println!("running, with fence {}", guard.fence());
    tokio::select! {
        () = write_report() => println!("done"),
        loss = guard.lost() => return Err(format!("stopped half-way, the lock is gone: {loss}").into()),
    }
    guard.release().await?;
    Ok(())
}

async fn write_report() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

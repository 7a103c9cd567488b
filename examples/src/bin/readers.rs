//! A catalog that many read and one writes: readers hold it together, a writer holds it alone.
//!
//! `cargo run -p tenure-examples --bin readers`, or with a URL: `.. --bin readers redis://localhost`.

use std::time::Duration;

use tenure::{Error, Locker, ReadGuard};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = tenure::connect(&url).await?;
    let report = locker.read("catalog").await?;
    let page = locker.read("catalog").await?;
    println!("two read, fences {} and {}", report.fence(), page.fence());
    page.release().await?;
    tokio::try_join!(long_report(report), change(&locker))?;
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// A long reader gives way as soon as somebody waits for the key.
async fn long_report(reader: ReadGuard) -> Result<(), Error> {
    tokio::select! {
        () = sleep(Duration::from_secs(60)) => println!("the report is complete"),
        () = reader.contended() => println!("somebody waits: the report stops early"),
    }
    reader.release().await?;
    Ok(())
}

async fn change(locker: &Locker) -> Result<(), Error> {
    let writer = locker.write("catalog").wait(Duration::from_secs(20)).await?;
    println!("one writes, fence {}", writer.fence());
    writer.release().await?;
    Ok(())
}

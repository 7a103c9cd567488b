//! Transfers between accounts in both directions: each holds both accounts or none, and none waits for ever.
//!
//! `cargo run -p tenure-examples --bin several_keys`, or with a URL: `.. --bin several_keys redis://localhost`.

use std::convert::Infallible;
use std::time::Duration;

use tenure::{Error, Fence, Locker};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = tenure::connect(&url).await?;
    tokio::try_join!(
        transfer(&locker, "account:7", "account:3"),
        transfer(&locker, "account:3", "account:7"),
        transfer(&locker, "account:7", "account:5"),
    )?;
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// The order of the keys has no effect. The rates are only read, so transfers share them.
async fn transfer(locker: &Locker, from: &str, to: &str) -> Result<(), Error> {
    let request = locker.lock_all([from, to]).read(["rates"]).wait(Duration::from_secs(20));
    let moved = request.run(async |held| {
        let [one, other] = [from, to].map(|key| held.fence(key).unwrap_or(Fence::NONE));
        println!("{from} to {to} begins, fences {one} and {other}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        println!("{from} to {to} ends");
        Ok::<(), Infallible>(())
    });
    match moved.await? {
        Ok(()) => Ok(()),
    }
}

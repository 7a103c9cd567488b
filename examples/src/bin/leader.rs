//! One instance leads, the others are ready to; each prints who leads.
//!
//! `for i in 1 2 3; do cargo run -p tenure-examples --bin leader redis://localhost node-$i & done; wait`

use std::convert::Infallible;
use std::time::Duration;

use tenure::{Leading, Observer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let name = std::env::args().nth(2).unwrap_or_else(|| "node-1".into());
    let locker = tenure::connect(&url).await?;
    let election = locker.election("leader:example");
    tokio::spawn(report(election.observe().await?));
    // After a loss the body is dropped, and `lead` campaigns again.
    let led = election.campaign(name).ttl(Duration::from_secs(5)).lead(work);
    println!("{}", led.await??);
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn work(leading: Leading) -> Result<&'static str, Infallible> {
    println!("leading, term {}", leading.term());
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok("enough, the next one may lead")
}

async fn report(mut observe: Observer) -> Result<(), tenure::Error> {
    loop {
        match observe.next().await {
            Ok(Some(now)) => println!("{} leads", now.value),
            Ok(None) => println!("nobody leads"),
            Err(error) if error.is_closed() => return Err(error),
            Err(error) => println!("it is not known who leads: {error}"),
        }
    }
}

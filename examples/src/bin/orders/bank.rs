//! The bank: somewhere else, slow, and not ours.
//!
//! One line goes out, `charge ORDER CENTS FENCE`, and one comes back: `ok`, or why not. Without an address the bank
//! is pretended.

use std::time::Duration;

use tenure::Fence;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::shop::AppError;

/// Long enough to be in its way by hand.
const PRETENDED: Duration = Duration::from_millis(500);

pub struct Bank {
    address: Option<String>,
}

impl Bank {
    pub fn at(address: Option<String>) -> Self {
        Bank { address }
    }

    /// Takes the money. The fence goes with it, so that a bank that knows fences can refuse a stale holder.
    pub async fn charge(&self, order_id: &str, cents: u64, fence: Fence) -> Result<(), AppError> {
        let Some(address) = &self.address else {
            tokio::time::sleep(PRETENDED).await;
            return Ok(());
        };
        let answer = ask(address, &format!("charge {order_id} {cents} {fence}\n")).await;
        match answer.map_err(|error| AppError::Bank(error.to_string()))?.trim() {
            "ok" => Ok(()),
            refusal => Err(AppError::Bank(refusal.into())),
        }
    }
}

async fn ask(address: &str, line: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    Ok(answer)
}

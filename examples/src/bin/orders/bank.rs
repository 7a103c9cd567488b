//! The bank: a slow external service.
//!
//! We send one line, `charge ORDER CENTS FENCE`, and receive one: `ok`, or the reason why not. Without an
//! address the bank is simulated.

use std::time::Duration;

use tenure::Fence;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::shop::AppError;

/// Long enough to send a second request by hand.
const PRETENDED: Duration = Duration::from_millis(500);

pub struct Bank {
    address: Option<String>,
}

impl Bank {
    pub fn at(address: Option<String>) -> Self {
        Bank { address }
    }

    /// Charges the money. The fence is sent too, so that a bank that checks fences can reject a stale holder.
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

//! Asks one Sentinel.
//!
//! In: its address, or a connection to it. Out: the server that it names as the master, and the epoch of that
//! configuration.

use std::collections::HashMap;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::Sentinels;
use crate::error::{Cause, EngineError};
use crate::link::Pushes;
use crate::url::Address;

/// The answer of a Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterReport {
    pub(crate) epoch: u64,
    pub(crate) address: Address,
}

/// A connection to a Sentinel. Dropping it closes the connection.
pub(super) struct Line {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Sentinels {
    /// Asks on a new connection.
    pub(crate) async fn ask(&self, address: &Address) -> Result<MasterReport, EngineError> {
        let mut line = self.call_up(address, None).await?;
        self.ask_on(&mut line, address).await
    }

    pub(super) async fn call_up(
        &self,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<Line, EngineError> {
        let within = self.connector.connect_timeout();
        let made = tokio::time::timeout(within, self.connector.handshake(address, pushes)).await;
        let (connection, driver) = made.map_err(|_| timed_out(address))??;
        Ok(Line { connection, driver })
    }

    pub(super) async fn ask_on(
        &self,
        line: &mut Line,
        address: &Address,
    ) -> Result<MasterReport, EngineError> {
        // The epoch first: at the end of a failover the address, which is read after it, may be newer than
        // the epoch but never older.
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let asked = line.connection.send_packed_commands(&pipe, 0, 2);
        let received = tokio::time::timeout(self.connector.response_timeout(), asked).await;
        let received = received.map_err(|_| timed_out(address))?;
        let replies = received.map_err(|error| EngineError::of_connect(address, &error))?;
        self.read(address, replies)
    }

    fn read(&self, sentinel: &Address, replies: Vec<Value>) -> Result<MasterReport, EngineError> {
        let mut replies = replies.into_iter();
        let (fields, address) = (replies.next(), replies.next());
        if let Some(Value::ServerError(error)) = &fields {
            let rest = error.details().unwrap_or_default();
            return Err(match rest.starts_with("No such master") {
                true => self.unknown(sentinel),
                false => EngineError::of_reply(sentinel, error.code(), rest),
            });
        }
        let report = fields.and_then(epoch).zip(address.and_then(address_of));
        let report = report.map(|(epoch, address)| MasterReport { epoch, address });
        report.ok_or_else(|| {
            let what = "cannot be used: it does not answer as a Sentinel does";
            EngineError::new(Cause::Unsupported, sentinel, what)
        })
    }

    fn unknown(&self, sentinel: &Address) -> EngineError {
        let what = format!("the Sentinel knows no service `{}`", self.service.escape_debug());
        EngineError::new(Cause::Refused, sentinel, what)
    }
}

fn timed_out(address: &Address) -> EngineError {
    EngineError::new(Cause::Unreachable, address, "the Sentinel does not answer")
}

fn epoch(fields: Value) -> Option<u64> {
    let fields: HashMap<String, String> = redis::from_redis_value(fields).ok()?;
    fields.get("config-epoch")?.parse().ok()
}

fn address_of(address: Value) -> Option<Address> {
    let (host, port): (String, String) = redis::from_redis_value(address).ok()?;
    Some(Address::Tcp(host, port.parse().ok()?))
}

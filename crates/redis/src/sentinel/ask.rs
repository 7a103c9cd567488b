//! Asking one Sentinel.
//!
//! In: its address, or a connection to it. Out: which server it takes for the master, and in which
//! epoch that became so.

use std::collections::HashMap;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::Sentinels;
use crate::link::Pushes;
use crate::trouble::{Cause, Trouble};
use crate::url::Address;

/// What a Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) epoch: u64,
    pub(crate) address: Address,
}

/// A connection to a Sentinel. Dropping it closes it.
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
    /// Asks on a connection made for that.
    pub(crate) async fn ask(&self, address: &Address) -> Result<Word, Trouble> {
        let mut line = self.call_up(address, None).await?;
        self.ask_on(&mut line, address).await
    }

    pub(super) async fn call_up(
        &self,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<Line, Trouble> {
        let within = self.dial.connect_timeout();
        let made = tokio::time::timeout(within, self.dial.speak(address, pushes)).await;
        let (connection, driver) = made.map_err(|_| silent(address))??;
        Ok(Line { connection, driver })
    }

    pub(super) async fn ask_on(&self, line: &mut Line, address: &Address) -> Result<Word, Trouble> {
        // The epoch first: while a failover ends, an address that comes after it may be newer, and
        // never older.
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let asked = line.connection.send_packed_commands(&pipe, 0, 2);
        let heard = tokio::time::timeout(self.dial.response_timeout(), asked).await;
        let heard = heard.map_err(|_| silent(address))?;
        let replies = heard.map_err(|error| Trouble::of_connect(address, &error))?;
        self.read(address, replies)
    }

    fn read(&self, sentinel: &Address, replies: Vec<Value>) -> Result<Word, Trouble> {
        let mut replies = replies.into_iter();
        let (facts, spot) = (replies.next(), replies.next());
        if let Some(Value::ServerError(error)) = &facts {
            let rest = error.details().unwrap_or_default();
            return Err(match rest.starts_with("No such master") {
                true => self.unknown(sentinel),
                false => Trouble::of_reply(sentinel, error.code(), rest),
            });
        }
        let word = facts.and_then(epoch).zip(spot.and_then(spot_of));
        let word = word.map(|(epoch, address)| Word { epoch, address });
        word.ok_or_else(|| {
            let what = "cannot be used: it does not answer as a Sentinel does";
            Trouble::new(Cause::Unsupported, sentinel, what)
        })
    }

    fn unknown(&self, sentinel: &Address) -> Trouble {
        let what = format!("the Sentinel knows no service `{}`", self.service.escape_debug());
        Trouble::new(Cause::Refused, sentinel, what)
    }
}

fn silent(address: &Address) -> Trouble {
    Trouble::new(Cause::Down, address, "the Sentinel does not answer")
}

fn epoch(facts: Value) -> Option<u64> {
    let facts: HashMap<String, String> = redis::from_redis_value(facts).ok()?;
    facts.get("config-epoch")?.parse().ok()
}

fn spot_of(spot: Value) -> Option<Address> {
    let (host, port): (String, String) = redis::from_redis_value(spot).ok()?;
    Some(Address::Tcp(host, port.parse().ok()?))
}

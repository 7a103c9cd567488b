//! A connection to one server, to examine it.
//!
//! In: an address. Out: the server's replies, each within the response time-out. Unlike a link it accepts any
//! server: replicas and old versions have to be examined too.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::task::AbortHandle;

use crate::error::{Cause, EngineError};
use crate::link::{Connector, Pushes, ServerInfo};
use crate::url::Address;

/// A probe connection. Dropping it closes the connection.
pub(super) struct Visit {
    address: Address,
    connection: MultiplexedConnection,
    driver: AbortHandle,
    within: Duration,
    info: Result<ServerInfo, EngineError>,
    /// A reply is missing. If it came later, it would be taken for another reply, so no further command is
    /// sent.
    timed_out: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Visit {
    /// Connects, and reads the server's `INFO`.
    pub(super) async fn pay(
        connector: &Connector,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<Self, EngineError> {
        let patience = connector.connect_timeout();
        let late = |_| {
            let what = format_args!("no connection within {patience:?}");
            EngineError::new(Cause::Unreachable, address, what)
        };
        let made = tokio::time::timeout(patience, connector.handshake(address, pushes)).await;
        let (connection, driver) = made.map_err(late)??;
        let (address, within) = (address.clone(), connector.response_timeout());
        let info = Ok(ServerInfo::of(String::new()));
        let mut visit = Visit { address, connection, driver, within, info, timed_out: false };
        visit.info = visit.text(&redis::cmd("INFO")).await.map(ServerInfo::of);
        Ok(visit)
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The server's `INFO`, or why it could not be read.
    pub(super) fn info(&self) -> Result<&ServerInfo, &EngineError> {
        self.info.as_ref()
    }

    /// One field of `INFO`, if it is present.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.info.as_ref().ok()?.field(name)
    }

    pub(super) fn mode(&self) -> Option<&str> {
        self.info.as_ref().ok()?.mode()
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, EngineError> {
        self.must_have_answered()?;
        let asked = self.connection.send_packed_command(command);
        let received = tokio::time::timeout(self.within, asked).await;
        let reply = self.receive(received.ok())?;
        self.read(reply)
    }

    /// Sends many commands at a time; each has its own reply or error.
    pub(super) async fn ask_all(
        &mut self,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, EngineError>>, EngineError> {
        self.must_have_answered()?;
        let asked = self.connection.send_packed_commands(commands, 0, commands.len());
        let received = tokio::time::timeout(self.within, asked).await;
        let replies = self.receive(received.ok())?;
        Ok(replies.into_iter().map(|reply| self.read(reply)).collect())
    }

    pub(super) async fn text(&mut self, command: &Cmd) -> Result<String, EngineError> {
        let reply = self.ask(command).await?;
        redis::from_redis_value(reply).map_err(|_| self.odd("it answers with something else"))
    }

    /// A setting, if the user may read it.
    pub(super) async fn setting(&mut self, name: &str) -> Result<String, EngineError> {
        let mut get = redis::cmd("CONFIG");
        let reply = self.ask(get.arg("GET").arg(name)).await?;
        let settings: Option<HashMap<String, String>> = redis::from_redis_value(reply).ok();
        let value = settings.and_then(|mut settings| settings.remove(name));
        value.ok_or_else(|| self.odd(&format!("it does not say its `{name}`")))
    }

    /// A setting as a number.
    pub(super) async fn number(&mut self, name: &str) -> Result<u64, EngineError> {
        let text = self.setting(name).await?;
        text.parse().map_err(|_| self.odd(&format!("its `{name}` is no number")))
    }

    pub(super) fn odd(&self, what: &str) -> EngineError {
        EngineError::new(Cause::Refused, &self.address, what)
    }

    fn must_have_answered(&self) -> Result<(), EngineError> {
        let what = "an answer is still missing";
        match self.timed_out {
            true => Err(EngineError::new(Cause::TimedOut, &self.address, what)),
            false => Ok(()),
        }
    }

    fn receive<T>(&mut self, received: Option<RedisResult<T>>) -> Result<T, EngineError> {
        self.timed_out = received.is_none();
        let within = self.within;
        let timed_out = || {
            let what = format_args!("no answer within {within:?}");
            EngineError::new(Cause::TimedOut, &self.address, what)
        };
        let received = received.ok_or_else(timed_out)?;
        received.map_err(|error| EngineError::of_request(&self.address, &error))
    }

    fn read(&self, reply: Value) -> Result<Value, EngineError> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(EngineError::of_reply(&self.address, error.code(), rest))
    }
}

/// Why a check could not be made, in short.
pub(super) fn why(error: &EngineError) -> String {
    match error.code() {
        "NOPERM" => "could not be checked: the user lacks the right".into(),
        _ => format!("could not be checked: {error}"),
    }
}

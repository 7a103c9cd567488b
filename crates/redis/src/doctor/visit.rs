//! A connection to one server, to look at it.
//!
//! In: an address. Out: what the server answers, each answer within the response time-out. Unlike a
//! link it takes any server: a replica and one that is too old have to be looked at too.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::task::AbortHandle;

use crate::link::{Dial, Facts, Pushes};
use crate::trouble::{Cause, Trouble};
use crate::url::Address;

/// Dropping it closes the connection.
pub(super) struct Visit {
    address: Address,
    connection: MultiplexedConnection,
    driver: AbortHandle,
    within: Duration,
    info: Result<Facts, Trouble>,
    /// A reply did not come. One that comes later would be taken for another's: nothing more is asked.
    silent: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Visit {
    /// Connects, and asks the server what it is.
    pub(super) async fn pay(
        dial: &Dial,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<Self, Trouble> {
        let patience = dial.connect_timeout();
        let late = |_| {
            let what = format_args!("no connection within {patience:?}");
            Trouble::new(Cause::Down, address, what)
        };
        let made = tokio::time::timeout(patience, dial.speak(address, pushes)).await;
        let (connection, driver) = made.map_err(late)??;
        let (address, within) = (address.clone(), dial.response_timeout());
        let info = Ok(Facts::of(String::new()));
        let mut visit = Visit { address, connection, driver, within, info, silent: false };
        visit.info = visit.text(&redis::cmd("INFO")).await.map(Facts::of);
        Ok(visit)
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// What the server says of itself, or why it does not.
    pub(super) fn info(&self) -> Result<&Facts, &Trouble> {
        self.info.as_ref()
    }

    /// One field of that, where there is one.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.info.as_ref().ok()?.field(name)
    }

    pub(super) fn mode(&self) -> Option<&str> {
        self.info.as_ref().ok()?.mode()
    }

    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, Trouble> {
        self.must_have_answered()?;
        let asked = self.connection.send_packed_command(command);
        let heard = tokio::time::timeout(self.within, asked).await;
        let reply = self.hear(heard.ok())?;
        self.read(reply)
    }

    /// Sends many at a time; each has a reply or refusal of its own.
    pub(super) async fn ask_all(
        &mut self,
        commands: &Pipeline,
    ) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        self.must_have_answered()?;
        let asked = self.connection.send_packed_commands(commands, 0, commands.len());
        let heard = tokio::time::timeout(self.within, asked).await;
        let replies = self.hear(heard.ok())?;
        Ok(replies.into_iter().map(|reply| self.read(reply)).collect())
    }

    pub(super) async fn text(&mut self, command: &Cmd) -> Result<String, Trouble> {
        let reply = self.ask(command).await?;
        redis::from_redis_value(reply).map_err(|_| self.odd("it answers with something else"))
    }

    /// A setting, where it may be read.
    pub(super) async fn setting(&mut self, name: &str) -> Result<String, Trouble> {
        let mut get = redis::cmd("CONFIG");
        let reply = self.ask(get.arg("GET").arg(name)).await?;
        let settings: Option<HashMap<String, String>> = redis::from_redis_value(reply).ok();
        let value = settings.and_then(|mut settings| settings.remove(name));
        value.ok_or_else(|| self.odd(&format!("it does not say its `{name}`")))
    }

    /// The same as a number.
    pub(super) async fn number(&mut self, name: &str) -> Result<u64, Trouble> {
        let text = self.setting(name).await?;
        text.parse().map_err(|_| self.odd(&format!("its `{name}` is no number")))
    }

    pub(super) fn odd(&self, what: &str) -> Trouble {
        Trouble::new(Cause::Refused, &self.address, what)
    }

    fn must_have_answered(&self) -> Result<(), Trouble> {
        let what = "an answer is still missing";
        match self.silent {
            true => Err(Trouble::new(Cause::Silent, &self.address, what)),
            false => Ok(()),
        }
    }

    fn hear<T>(&mut self, heard: Option<RedisResult<T>>) -> Result<T, Trouble> {
        self.silent = heard.is_none();
        let within = self.within;
        let silent = || {
            let what = format_args!("no answer within {within:?}");
            Trouble::new(Cause::Silent, &self.address, what)
        };
        let heard = heard.ok_or_else(silent)?;
        heard.map_err(|error| Trouble::of_request(&self.address, &error))
    }

    fn read(&self, reply: Value) -> Result<Value, Trouble> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(Trouble::of_reply(&self.address, error.code(), rest))
    }
}

/// Why a check could not be made, in few words.
pub(super) fn why(trouble: &Trouble) -> String {
    match trouble.word() {
        "NOPERM" => "could not be checked: the user may not ask for it".into(),
        _ => format!("could not be checked: {trouble}"),
    }
}

//! Making a connection, and finding out what it leads to.
//!
//! In: an address and credentials. Out: a [`Live`] connection to a server that can keep locks, or
//! why not. All of it within the connect time-out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, Value};
use tokio::task::AbortHandle;

use super::calls::Calls;
use super::open::{Names, System};
use crate::tls::Secure;
use crate::trouble::{Cause, Trouble};
use crate::url::{Address, Place};

/// How many requests the driver takes before their senders have to wait: with its own 50, each of 512
/// tasks is woken twice per request.
const QUEUE: usize = 1_024;
/// The oldest server with `SET … NX GET` and what else the scripts use.
const VERSION_MIN: (u32, u32) = (6, 2);
/// From here on a script can say that it must run on a full server, and not on a replica.
const VERSION_WITH_FLAGS: (u32, u32) = (7, 0);

/// Where to connect to, and how long that may take.
pub(crate) struct Target {
    pub(super) address: Address,
    pub(super) names: Arc<dyn Names>,
    pub(super) secure: Option<Secure>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    session: RedisConnectionInfo,
}

/// Who takes what the server says unasked; called on the runtime of the connection.
#[derive(Clone)]
pub(crate) struct Pushes(pub(crate) Arc<dyn Fn(PushInfo) + Send + Sync>);

impl fmt::Debug for Pushes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pushes")
    }
}

/// A connection that was found to lead to a master of the right age. Dropping it closes it.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    calls: Calls,
    pub(super) driver: AbortHandle,
    carrier: AbortHandle,
    /// Which run of which server; another after a restart.
    run_id: String,
    turn: u64,
    client_id: Option<i64>,
    flags: bool,
    stray: bool,
}

/// Without the session: it knows the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

/// A dropped connection would otherwise stay open until all that was asked on it is on its way.
impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
        self.carrier.abort();
    }
}

impl Target {
    pub(crate) fn new(
        place: &Place,
        secure: Option<Secure>,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        let (address, session) = (place.address().clone(), session(place));
        let names = Arc::new(System);
        Target { address, names, secure, connect_timeout, response_timeout, session }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Connects, and has the server close `old` so that nothing of it comes after us.
    pub(crate) async fn connect(
        &self,
        old: Option<&Live>,
        pushes: Option<Pushes>,
    ) -> Result<Live, Trouble> {
        let within = self.connect_timeout;
        match tokio::time::timeout(within, self.connect_and_check(old, pushes)).await {
            Ok(made) => made,
            Err(_) => Err(Trouble::new(Cause::Down, &self.address, self.late())),
        }
    }

    fn late(&self) -> String {
        // A server that expects no TLS waits for the rest of what it takes for a request.
        let hint = if self.secure.is_some() { "; does it speak TLS there?" } else { "" };
        format!("no connection within {:?}{hint}", self.connect_timeout)
    }

    async fn connect_and_check(
        &self,
        old: Option<&Live>,
        pushes: Option<Pushes>,
    ) -> Result<Live, Trouble> {
        let stream = self.open().await;
        let stream = stream.map_err(|error| Trouble::of_open(&self.address, &error))?;
        // Time-outs are ours: the driver would go on using a connection after one.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        if let Some(Pushes(hear)) = pushes {
            config = config.set_push_sender(move |push| {
                hear(push);
                Ok::<(), ()>(())
            });
        }
        let made = MultiplexedConnection::new_with_config(&self.session, stream, config).await;
        let (connection, driver) =
            made.map_err(|error| Trouble::of_connect(&self.address, &error))?;
        let driver = tokio::spawn(driver).abort_handle();
        let mut live = Live::unchecked(connection, driver);
        let facts = self.ask(&mut live.connection).await?;
        self.check(&mut live, facts)?;
        live.stray = self.replace(&mut live, old).await;
        Ok(live)
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<Facts, Trouble> {
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication").cmd("CLIENT").arg("ID");
        let replies = connection.send_packed_commands(&pipe, 0, 3).await;
        let mut replies =
            replies.map_err(|error| Trouble::of_connect(&self.address, &error))?.into_iter();
        let mut text = || self.text(replies.next().unwrap_or(Value::Nil));
        let info = text()? + "\n" + &text()?;
        // An id may be denied; it is only needed to close the connection from another.
        let client_id = match replies.next() {
            Some(Value::Int(id)) => Some(id),
            _ => None,
        };
        Ok(Facts { info, client_id })
    }

    fn text(&self, reply: Value) -> Result<String, Trouble> {
        match reply {
            Value::ServerError(error) => {
                let rest = error.details().unwrap_or_default();
                Err(Trouble::of_reply(&self.address, error.code(), rest))
            }
            reply => redis::from_redis_value(reply)
                .map_err(|_| self.cannot("it does not say what it is")),
        }
    }

    fn check(&self, live: &mut Live, facts: Facts) -> Result<(), Trouble> {
        let version = facts.version().ok_or_else(|| self.cannot("it does not say its version"))?;
        if version < VERSION_MIN {
            let shown = facts.field("redis_version").unwrap_or_default();
            let what = format!("its version {shown} is too old, 6.2 or later is needed");
            return Err(self.cannot(what));
        }
        if let Some(mode @ ("cluster" | "sentinel")) = facts.field("redis_mode") {
            return Err(self.cannot(format!("it runs in {mode} mode, which is not supported yet")));
        }
        if facts.field("role") != Some("master") {
            let what = "the server is a replica; locks need the master";
            return Err(Trouble::new(Cause::Demoted, &self.address, what));
        }
        live.run_id = facts.field("run_id").unwrap_or_default().into();
        (live.flags, live.client_id) = (version >= VERSION_WITH_FLAGS, facts.client_id);
        Ok(())
    }

    fn cannot(&self, what: impl fmt::Display) -> Trouble {
        Trouble::new(Cause::Unsupported, &self.address, format_args!("cannot be used: {what}"))
    }

    /// Has the server close the connection before this one. Whether that one may still act.
    async fn replace(&self, live: &mut Live, old: Option<&Live>) -> bool {
        // After a restart the old one is gone, and its number may be another client's.
        let Some(old) = old.filter(|old| old.run_id == live.run_id) else { return false };
        let Some(id) = old.client_id.filter(|_| !old.run_id.is_empty()) else { return true };
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(id);
        kill.query_async::<Value>(&mut live.connection).await.is_err()
    }
}

/// Who we are to the server.
fn session(place: &Place) -> RedisConnectionInfo {
    // `HELLO`, since it says what is wrong with a password.
    let mut session =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(place.db());
    if let Some(user) = place.user() {
        session = session.set_username(user);
    }
    if let Some(password) = place.password() {
        session = session.set_password(password);
    }
    session.set_skip_set_lib_name()
}

impl Live {
    fn unchecked(connection: MultiplexedConnection, driver: AbortHandle) -> Self {
        let (run_id, turn, client_id, flags, stray) = Default::default();
        let (calls, carrier) = Calls::new(connection.clone());
        let carrier = tokio::spawn(carrier).abort_handle();
        Live { connection, calls, driver, carrier, run_id, turn, client_id, flags, stray }
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The client's turn in which it was made.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    pub(super) fn of_turn(mut self, turn: u64) -> Self {
        self.turn = turn;
        self
    }

    /// Whether scripts can carry flags.
    pub(crate) fn has_flags(&self) -> bool {
        self.flags
    }

    /// Whether the connection before this one may still act.
    pub(crate) fn left_a_stray(&self) -> bool {
        self.stray
    }
}

/// What a server says of itself.
struct Facts {
    info: String,
    client_id: Option<i64>,
}

impl Facts {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are found by their whole name, and versions compare as numbers.
    #[test]
    fn facts() {
        let info = "# Server\r\nredis_version:6.10.3\r\nredis_mode:standalone\r\nrole:master\r\n";
        let facts = Facts { info: info.into(), client_id: None };
        assert_eq!(facts.version(), Some((6, 10)));
        assert_eq!(facts.field("redis"), None);
        assert_eq!(facts.field("role"), Some("master"));
        assert!(facts.version() > Some(VERSION_MIN));
    }
}

//! Making a connection, and examining the server behind it.
//!
//! In: a route to the server, and credentials. Out: a [`Connection`] to a server that can store locks, or the
//! reason why not. All of it within the connect time-out.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, Value};
use tenure_core::time::Time;
use tokio::task::AbortHandle;

use super::batch::BatchSender;
use super::connector::Connector;
use super::route::{Found, Route, ServerMode};
use crate::error::{Cause, EngineError};
use crate::url::Address;

/// The oldest server with `SET … NX GET` and everything else that the scripts use.
pub(crate) const VERSION_MIN: (u32, u32) = (6, 2);
/// Since this version a script can state that it must run on a full server, and must not run on a replica.
const VERSION_WITH_FLAGS: (u32, u32) = (7, 0);

/// Where to connect to, and how.
pub(crate) struct Target {
    route: Box<dyn Route>,
    pub(super) connector: Connector,
}

/// Receives the pushes of the server; called on the runtime of the connection.
#[derive(Clone)]
pub(crate) struct Pushes(pub(crate) Arc<dyn Fn(PushInfo) + Send + Sync>);

impl fmt::Debug for Pushes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pushes")
    }
}

/// A connection to a master of a supported version. Dropping it closes it.
pub(crate) struct Connection {
    connection: MultiplexedConnection,
    calls: BatchSender,
    pub(super) driver: AbortHandle,
    carrier: AbortHandle,
    /// Identifies one run of one server; it changes with a restart.
    run_id: String,
    epoch: u64,
    /// How often the master had changed when this connection was made.
    moves: u64,
    /// How long the server had run when it was asked, and the latest possible start of that run.
    uptime: Duration,
    up_since: Time,
    client_id: Option<i64>,
    flags: bool,
    of_cluster: bool,
    zombie: bool,
}

/// Without the connector: it has the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("address", &self.shown()).finish_non_exhaustive()
    }
}

/// The address of the server.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

/// Without this, a dropped connection would stay open until all its requests have been written.
impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

impl Target {
    pub(crate) fn new(route: impl Route + 'static, connector: Connector) -> Self {
        Target { route: Box::new(route), connector }
    }

    /// The address of the server, as far as it is known, for messages.
    pub(crate) fn shown(&self) -> String {
        self.route.shown()
    }

    /// How the address of the server is found.
    pub(crate) fn route(&self) -> &dyn Route {
        &*self.route
    }

    /// How to connect to the server.
    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// How long one call may take.
    pub(crate) fn call_time(&self) -> Duration {
        self.connector.call_time()
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connector.timeouts.connect
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.connector.timeouts.response
    }

    /// Connects, and makes the server close `old` so that nothing sent on `old` executes after this.
    pub(crate) async fn connect(
        &self,
        old: Option<&Connection>,
        pushes: Option<Pushes>,
    ) -> Result<Connection, EngineError> {
        let within = self.connector.timeouts.connect;
        match tokio::time::timeout(within, self.find_and_connect(old, pushes)).await {
            Ok(made) => made,
            Err(_) => Err(EngineError::new(Cause::Unreachable, &self.shown(), self.late())),
        }
    }

    fn late(&self) -> String {
        // A server without TLS waits for the rest of what it takes for a request.
        let hint = if self.connector.secure.is_some() { "; does it speak TLS there?" } else { "" };
        format!("no connection within {:?}{hint}", self.connector.timeouts.connect)
    }

    async fn find_and_connect(
        &self,
        old: Option<&Connection>,
        pushes: Option<Pushes>,
    ) -> Result<Connection, EngineError> {
        let found = self.route.find().await?;
        tokio::select! {
            made = self.connector.connect(&found.address, self.route.mode(), old, pushes) => {
                made.map(|live| live.found_after(found.moves))
            }
            // The address may lead nowhere until the connect time-out ends.
            () = self.left(&found) => {
                let what = format_args!("`{}` is not the master any more", found.address);
                Err(EngineError::new(Cause::Unreachable, &self.shown(), what))
            }
        }
    }

    /// Waits until another server has become the master.
    async fn left(&self, found: &Found) {
        let Some(mut changes) = self.route.changes() else { return pending().await };
        // The route holds the sender, so the wait cannot fail.
        let _ = changes.wait_for(|moves| *moves > found.moves).await;
    }
}

impl Connector {
    /// Connects to `address`, and checks that a server that can store locks is there.
    async fn connect(
        &self,
        address: &Address,
        mode: ServerMode,
        old: Option<&Connection>,
        pushes: Option<Pushes>,
    ) -> Result<Connection, EngineError> {
        let (connection, driver) = self.handshake(address, pushes).await?;
        let mut live = Connection::unchecked(connection, driver);
        let info = ServerInfo::ask(address, &mut live.connection).await?;
        info.check(address, mode)?;
        live.of_cluster = mode == ServerMode::Cluster;
        live.run_id = info.field("run_id").unwrap_or_default().into();
        live.flags = info.version() >= Some(VERSION_WITH_FLAGS);
        live.client_id = info.client_id;
        live.uptime = info.uptime();
        live.zombie = live.replace(old).await;
        Ok(live)
    }
}

impl Connection {
    fn unchecked(connection: MultiplexedConnection, driver: AbortHandle) -> Self {
        let (run_id, epoch, moves, uptime, client_id, flags, of_cluster, zombie) =
            Default::default();
        let up_since = Time::from_nanos(0);
        let (calls, carrier) = BatchSender::new(connection.clone());
        let carrier = tokio::spawn(carrier).abort_handle();
        Connection {
            connection,
            calls,
            driver,
            carrier,
            run_id,
            epoch,
            moves,
            uptime,
            up_since,
            client_id,
            flags,
            of_cluster,
            zombie,
        }
    }

    /// Makes the server close the previous connection. Returns whether requests on it may still execute.
    async fn replace(&mut self, old: Option<&Connection>) -> bool {
        // After a restart the old connection is gone, and its id may belong to another client.
        let Some(old) = old.filter(|old| old.run_id == self.run_id) else { return false };
        let Some(id) = old.client_id.filter(|_| !old.run_id.is_empty()) else { return true };
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(id);
        kill.query_async::<Value>(&mut self.connection).await.is_err()
    }

    /// Ends the connection: its late replies do not count, and no caller waits for them.
    pub(super) fn end(&self) {
        self.driver.abort();
        self.carrier.abort();
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn calls(&self) -> &BatchSender {
        &self.calls
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The epoch of the server in which it was made.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    fn found_after(mut self, moves: u64) -> Self {
        self.moves = moves;
        self
    }

    /// The latest time at which the server may have started.
    pub(crate) fn up_since(&self) -> Time {
        self.up_since
    }

    /// Sets the epoch. `now` is after the server reported its uptime.
    pub(super) fn of_epoch(mut self, epoch: u64, now: Time) -> Self {
        (self.epoch, self.up_since) = (epoch, now.before(self.uptime));
        self
    }

    /// Whether scripts can have flags.
    pub(crate) fn has_flags(&self) -> bool {
        self.flags
    }

    /// Whether the server is a node of a cluster.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.of_cluster
    }

    /// Whether requests on the previous connection may still execute.
    pub(crate) fn may_leave_zombie(&self) -> bool {
        self.zombie
    }
}

/// What a server reports about itself.
#[derive(Clone)]
pub(crate) struct ServerInfo {
    info: String,
    client_id: Option<i64>,
}

impl ServerInfo {
    /// From its reply to `INFO`.
    pub(crate) fn of(info: String) -> Self {
        ServerInfo { info, client_id: None }
    }

    async fn ask(
        address: &Address,
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, EngineError> {
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication").cmd("CLIENT").arg("ID");
        let replies = connection.send_packed_commands(&pipe, 0, 3).await;
        let mut replies =
            replies.map_err(|error| EngineError::of_connect(address, &error))?.into_iter();
        let mut said = || text(address, replies.next().unwrap_or(Value::Nil));
        let info = said()? + "\n" + &said()?;
        // The id may be denied; it is needed only to close this connection from another one.
        let client_id = match replies.next() {
            Some(Value::Int(id)) => Some(id),
            _ => None,
        };
        Ok(ServerInfo { info, client_id })
    }

    /// Whether the server can store locks.
    fn check(&self, address: &Address, mode: ServerMode) -> Result<(), EngineError> {
        let cannot = |what: &str| Err(cannot(address, what));
        let Some(version) = self.version() else { return cannot("it does not say its version") };
        if version < VERSION_MIN {
            let shown = self.field("redis_version").unwrap_or_default();
            return cannot(&format!("its version {shown} is too old, 6.2 or later is needed"));
        }
        match (self.mode(), mode) {
            (Some("cluster"), ServerMode::Alone) => {
                return cannot("it runs in cluster mode; `redis-cluster://HOST` is for it");
            }
            (Some("sentinel"), _) => {
                return cannot(
                    "it runs in sentinel mode; `redis+sentinel://HOST/SERVICE` is for it",
                );
            }
            (Some("standalone"), ServerMode::Cluster) => {
                return cannot("it is no node of a cluster; `redis://HOST` is for it");
            }
            _ => {}
        }
        if self.field("role") == Some("master") {
            return Ok(());
        }
        let what = "the server is a replica; locks need the master";
        Err(EngineError::new(Cause::Demoted, address, what))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// `standalone`, `cluster` or `sentinel`. Valkey 8 has another name for the field.
    pub(crate) fn mode(&self) -> Option<&str> {
        self.field("redis_mode").or_else(|| self.field("server_mode"))
    }

    /// The least time that it has run: the server counts whole seconds of its clock, so one second is
    /// subtracted.
    pub(crate) fn uptime(&self) -> Duration {
        let seconds = self.field("uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(0_u64).saturating_sub(1))
    }

    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

fn text(address: &Address, reply: Value) -> Result<String, EngineError> {
    match reply {
        Value::ServerError(error) => {
            let rest = error.details().unwrap_or_default();
            Err(EngineError::of_reply(address, error.code(), rest))
        }
        reply => redis::from_redis_value(reply)
            .map_err(|_| cannot(address, "it does not say what it is")),
    }
}

fn cannot(address: &Address, what: impl fmt::Display) -> EngineError {
    EngineError::new(Cause::Unsupported, address, format_args!("cannot be used: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields are found by their whole name, and versions compare as numbers.
    #[test]
    fn server_info() {
        let info = "# Server\r\nredis_version:6.10.3\r\nredis_mode:standalone\r\nrole:master\r\n";
        let parsed = ServerInfo { info: info.into(), client_id: None };
        assert_eq!(parsed.version(), Some((6, 10)));
        assert_eq!(parsed.field("redis"), None);
        assert_eq!(parsed.field("role"), Some("master"));
        assert!(parsed.version() > Some(VERSION_MIN));
    }
}

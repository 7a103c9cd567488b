//! Making a connection, and finding out what it leads to.
//!
//! In: an address, or who knows it, and credentials. Out: a [`Live`] connection to a server that can keep locks, or
//! why not. All of it within the connect time-out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, Value};
use tenure_core::time::Time;
use tokio::task::AbortHandle;

use super::calls::Calls;
use super::dial::Dial;
use crate::cluster::{Elsewhere, Spot};
use crate::sentinel::Sentinels;
use crate::trouble::{Cause, Redirect, Trouble};
use crate::url::Address;

/// The oldest server with `SET … NX GET` and what else the scripts use.
pub(crate) const VERSION_MIN: (u32, u32) = (6, 2);
/// From here on a script can say that it must run on a full server, and not on a replica.
const VERSION_WITH_FLAGS: (u32, u32) = (7, 0);

/// Where to connect to, and how.
pub(crate) struct Target {
    pub(super) route: Route,
    pub(super) dial: Dial,
}

/// Where the server is: known, or to be found out for each connection.
pub(crate) enum Route {
    Fixed(Address),
    Sentinel(Arc<Sentinels>),
    /// A node of a cluster, which is to hear of what goes wrong there.
    Node(Spot),
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
    /// How often the master had changed when this one was found.
    moves: u64,
    /// How long it had run when it was asked, and so since when at the latest.
    uptime: Duration,
    up_since: Time,
    client_id: Option<i64>,
    flags: bool,
    of_cluster: bool,
    stray: bool,
}

/// Without the dial: it knows the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("address", &self.shown()).finish_non_exhaustive()
    }
}

/// Where the server is.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
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
        self.end();
    }
}

impl Target {
    pub(crate) fn new(route: Route, dial: Dial) -> Self {
        Target { route, dial }
    }

    /// Where the server is, as far as is known, for messages.
    pub(crate) fn shown(&self) -> String {
        match &self.route {
            Route::Fixed(address) => address.to_string(),
            Route::Sentinel(sentinels) => sentinels.shown(),
            Route::Node(spot) => spot.address().to_string(),
        }
    }

    /// Whether another server may take the place of this one.
    pub(super) fn has_stand_ins(&self) -> bool {
        !matches!(self.route, Route::Fixed(_))
    }

    /// Tells whoever has to know what went wrong.
    pub(super) fn note(&self, trouble: &Trouble) {
        if let Route::Node(spot) = &self.route {
            spot.note(trouble);
        }
    }

    /// The links to another node of the same cluster.
    pub(super) fn elsewhere(&self, redirect: &Redirect) -> Option<Elsewhere> {
        match &self.route {
            Route::Node(spot) => spot.elsewhere(redirect),
            _ => None,
        }
    }

    /// Those who know where the master is.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.route {
            Route::Fixed(_) | Route::Node(_) => None,
            Route::Sentinel(sentinels) => Some(sentinels),
        }
    }

    /// Where the server is, or who knows.
    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// Who we are to the server.
    pub(crate) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// How often another server has become the master, as far as is known.
    pub(super) fn moves(&self) -> u64 {
        self.sentinels().map_or(0, |sentinels| sentinels.moves())
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.dial.connect_timeout
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.dial.response_timeout
    }

    /// Connects, and has the server close `old` so that nothing of it comes after us.
    pub(crate) async fn connect(
        &self,
        old: Option<&Live>,
        pushes: Option<Pushes>,
    ) -> Result<Live, Trouble> {
        let within = self.dial.connect_timeout;
        match tokio::time::timeout(within, self.find_and_connect(old, pushes)).await {
            Ok(made) => made,
            Err(_) => Err(Trouble::new(Cause::Down, &self.shown(), self.late())),
        }
    }

    fn late(&self) -> String {
        // A server that expects no TLS waits for the rest of what it takes for a request.
        let hint = if self.dial.secure.is_some() { "; does it speak TLS there?" } else { "" };
        format!("no connection within {:?}{hint}", self.dial.connect_timeout)
    }

    async fn find_and_connect(
        &self,
        old: Option<&Live>,
        pushes: Option<Pushes>,
    ) -> Result<Live, Trouble> {
        let sentinels = match &self.route {
            Route::Fixed(address) => {
                return self.dial.connect(address, Mode::Alone, old, pushes).await;
            }
            Route::Node(spot) => {
                return self.dial.connect(spot.address(), Mode::Cluster, old, pushes).await;
            }
            Route::Sentinel(sentinels) => sentinels,
        };
        let found = sentinels.find().await?;
        tokio::select! {
            made = self.dial.connect(&found.address, Mode::Alone, old, pushes) => {
                made.map(|live| live.found_after(found.moves))
            }
            // Its address may lead nowhere for as long as we have the patience.
            () = sentinels.moved(found.moves) => Err(sentinels.left(&found.address)),
        }
    }
}

impl Dial {
    /// Connects to `address`, and checks that a server that can keep locks is there.
    async fn connect(
        &self,
        address: &Address,
        mode: Mode,
        old: Option<&Live>,
        pushes: Option<Pushes>,
    ) -> Result<Live, Trouble> {
        let (connection, driver) = self.speak(address, pushes).await?;
        let mut live = Live::unchecked(connection, driver);
        let facts = Facts::ask(address, &mut live.connection).await?;
        facts.check(address, mode)?;
        live.of_cluster = mode == Mode::Cluster;
        live.run_id = facts.field("run_id").unwrap_or_default().into();
        live.flags = facts.version() >= Some(VERSION_WITH_FLAGS);
        live.client_id = facts.client_id;
        live.uptime = facts.uptime();
        live.stray = live.replace(old).await;
        Ok(live)
    }
}

impl Live {
    fn unchecked(connection: MultiplexedConnection, driver: AbortHandle) -> Self {
        let (run_id, turn, moves, uptime, client_id, flags, of_cluster, stray) = Default::default();
        let up_since = Time::from_nanos(0);
        let (calls, carrier) = Calls::new(connection.clone());
        let carrier = tokio::spawn(carrier).abort_handle();
        Live {
            connection,
            calls,
            driver,
            carrier,
            run_id,
            turn,
            moves,
            uptime,
            up_since,
            client_id,
            flags,
            of_cluster,
            stray,
        }
    }

    /// Has the server close the connection before this one. Whether that one may still act.
    async fn replace(&mut self, old: Option<&Live>) -> bool {
        // After a restart the old one is gone, and its number may be another client's.
        let Some(old) = old.filter(|old| old.run_id == self.run_id) else { return false };
        let Some(id) = old.client_id.filter(|_| !old.run_id.is_empty()) else { return true };
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(id);
        kill.query_async::<Value>(&mut self.connection).await.is_err()
    }

    /// Ends it: nothing that it may still answer counts, and nobody is to wait for it.
    pub(super) fn end(&self) {
        self.driver.abort();
        self.carrier.abort();
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The client's turn in which it was made.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    fn found_after(mut self, moves: u64) -> Self {
        self.moves = moves;
        self
    }

    /// Since when the server has run, at the latest.
    pub(crate) fn up_since(&self) -> Time {
        self.up_since
    }

    /// `now` is after the server said how long it had run.
    pub(super) fn of_turn(mut self, turn: u64, now: Time) -> Self {
        (self.turn, self.up_since) = (turn, now.before(self.uptime));
        self
    }

    /// Whether scripts can carry flags.
    pub(crate) fn has_flags(&self) -> bool {
        self.flags
    }

    /// Whether the server is a node of a cluster.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.of_cluster
    }

    /// Whether the connection before this one may still act.
    pub(crate) fn left_a_stray(&self) -> bool {
        self.stray
    }
}

/// In which mode a server is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Alone,
    Cluster,
}

/// What a server says of itself.
#[derive(Clone)]
pub(crate) struct Facts {
    info: String,
    client_id: Option<i64>,
}

impl Facts {
    /// What it answered to `INFO`.
    pub(crate) fn of(info: String) -> Self {
        Facts { info, client_id: None }
    }

    async fn ask(
        address: &Address,
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, Trouble> {
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication").cmd("CLIENT").arg("ID");
        let replies = connection.send_packed_commands(&pipe, 0, 3).await;
        let mut replies =
            replies.map_err(|error| Trouble::of_connect(address, &error))?.into_iter();
        let mut said = || text(address, replies.next().unwrap_or(Value::Nil));
        let info = said()? + "\n" + &said()?;
        // An id may be denied; it is only needed to close the connection from another.
        let client_id = match replies.next() {
            Some(Value::Int(id)) => Some(id),
            _ => None,
        };
        Ok(Facts { info, client_id })
    }

    /// Whether the server can keep locks.
    fn check(&self, address: &Address, mode: Mode) -> Result<(), Trouble> {
        let cannot = |what: &str| Err(cannot(address, what));
        let Some(version) = self.version() else { return cannot("it does not say its version") };
        if version < VERSION_MIN {
            let shown = self.field("redis_version").unwrap_or_default();
            return cannot(&format!("its version {shown} is too old, 6.2 or later is needed"));
        }
        match (self.mode(), mode) {
            (Some("cluster"), Mode::Alone) => {
                return cannot("it runs in cluster mode; `redis-cluster://HOST` is for it");
            }
            (Some("sentinel"), _) => {
                return cannot(
                    "it runs in sentinel mode; `redis+sentinel://HOST/SERVICE` is for it",
                );
            }
            (Some("standalone"), Mode::Cluster) => {
                return cannot("it is no node of a cluster; `redis://HOST` is for it");
            }
            _ => {}
        }
        if self.field("role") == Some("master") {
            return Ok(());
        }
        let what = "the server is a replica; locks need the master";
        Err(Trouble::new(Cause::Demoted, address, what))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// `standalone`, `cluster` or `sentinel`. Valkey 8 has another name for it.
    pub(crate) fn mode(&self) -> Option<&str> {
        self.field("redis_mode").or_else(|| self.field("server_mode"))
    }

    /// How long it has run, at the least: it counts whole seconds of its clock, not of its life.
    pub(crate) fn uptime(&self) -> Duration {
        let seconds = self.field("uptime_in_seconds").and_then(|seconds| seconds.parse().ok());
        Duration::from_secs(seconds.unwrap_or(0_u64).saturating_sub(1))
    }

    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        let mut parts = self.field("redis_version")?.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

fn text(address: &Address, reply: Value) -> Result<String, Trouble> {
    match reply {
        Value::ServerError(error) => {
            let rest = error.details().unwrap_or_default();
            Err(Trouble::of_reply(address, error.code(), rest))
        }
        reply => redis::from_redis_value(reply)
            .map_err(|_| cannot(address, "it does not say what it is")),
    }
}

fn cannot(address: &Address, what: impl fmt::Display) -> Trouble {
    Trouble::new(Cause::Unsupported, address, format_args!("cannot be used: {what}"))
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

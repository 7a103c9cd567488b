//! A link: one connection to the server, replaced when it can no longer be trusted.
//!
//! In: commands. Out: their replies, each within the response time-out, or an [`EngineError`].
//!
//! - A connection on which a request timed out is never used again, so a late reply cannot be mistaken for another
//!   one. Its successor first makes the server close it (`CLIENT KILL`): after that, nothing that was sent on it can
//!   still execute.
//! - No request is sent again automatically; the caller knows whether that is safe.
//! - While there is no connection, a call tries once to make one. Calls that come meanwhile, or shortly after a
//!   failure, share the result.
//! - All links of a client lead to the same server (`generation.rs`). A connection to the previous server is closed,
//!   and the results of its open requests are unknown.
//!
//! In reading order: `pool` chooses a link, `generation` knows the server of all links, `route` finds its
//! address, `connection` makes a connection from what `connector` reached through the stream that `stream`
//! opened, `batch` sends concurrent requests together. `background` keeps the task that follows a failover.
//!
//! Not here: the messages on the connection of the inbox, see `inbox.rs`.

mod pool;
mod generation;
mod route;
mod connection;
mod connector;
mod stream;
mod background;
mod batch;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisResult, Value};
use tenure_core::time::{Time, TimeoutWheel};
use tenure_net::Reconnect;
use tokio::runtime::Handle;

use crate::error::{Cause, EngineError, Redirect};
pub(crate) use background::BackgroundTask;
pub(crate) use batch::SendMode;
pub(crate) use connection::{Connection, Pushes, ServerInfo, Target, VERSION_MIN};
pub(crate) use connector::Connector;
pub(crate) use generation::{FAILOVER, Server};
pub(crate) use pool::Pool;
pub(crate) use route::{Found, RedirectTarget, Route, ServerMode};

#[derive(Debug)]
pub(crate) struct Link {
    server: Arc<Server>,
    bounds: TimeoutWheel,
    /// Receives the pushes of the server.
    pushes: Option<Pushes>,
    state: Mutex<State>,
    reconnect: Reconnect<EngineError>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Arc<Connection>>,
    /// The previous connection: its successor makes the server close it.
    old: Option<Arc<Connection>>,
    /// When a connection was replaced that the server did not close for us.
    zombie: Option<Time>,
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        let bounds = TimeoutWheel::new(server.clock().clone());
        let reconnect = Reconnect::new(server.clock().clone(), server.target().connect_timeout());
        Link { server, bounds, pushes: None, state: Mutex::default(), reconnect }
    }

    /// A link whose connection also receives pushes.
    pub(crate) fn with_pushes(server: Arc<Server>, pushes: Pushes) -> Self {
        Link { pushes: Some(pushes), ..Self::new(server) }
    }

    /// Connections run on this runtime from now on.
    pub(crate) fn pin_to_runtime(&self, runtime: Handle) {
        self.reconnect.pin_to_runtime(runtime);
    }

    /// An error with the server's address.
    pub(crate) fn error(&self, cause: Cause, what: impl std::fmt::Display) -> EngineError {
        self.server.error(cause, what)
    }

    /// The time-outs of waits on this connection, without a timer of the runtime.
    pub(crate) fn bounds(&self) -> &TimeoutWheel {
        &self.bounds
    }

    /// Sends one command.
    pub(crate) async fn call(
        &self,
        live: &Arc<Connection>,
        command: Cmd,
    ) -> Result<Value, EngineError> {
        self.call_by(live, command, SendMode::Plain).await
    }

    /// Sends one command in this mode.
    pub(crate) async fn call_by(
        &self,
        live: &Arc<Connection>,
        command: Cmd,
        way: SendMode,
    ) -> Result<Value, EngineError> {
        let asked = live.calls().call(command, way);
        let received = self.bounds.within(self.response_timeout(), asked).await;
        let reply = self.receive(live, received)?;
        self.read(live, reply)
    }

    /// Sends many commands at once, for at most `within`; each has its own reply or refusal.
    pub(crate) async fn call_all(
        &self,
        live: &Arc<Connection>,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Result<Value, EngineError>>, EngineError> {
        let mut connection = live.connection();
        let asked = connection.send_packed_commands(commands, 0, commands.len());
        let received = tokio::time::timeout(within, asked).await;
        let replies = self.receive(live, received.ok())?;
        Ok(replies.into_iter().map(|reply| self.read(live, reply)).collect())
    }

    /// The reply, if it can be relied on.
    fn receive<T>(
        &self,
        live: &Arc<Connection>,
        received: Option<RedisResult<T>>,
    ) -> Result<T, EngineError> {
        let error = match received {
            // The other connections have left that server: its reply does not count any more.
            Some(_) if !self.server.is_at(live.epoch()) => self.moved(),
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(error)) => EngineError::of_request(&self.server.shown(), &error),
            None => self.timed_out(),
        };
        Err(self.on_error(live, error))
    }

    fn read(&self, live: &Arc<Connection>, reply: Value) -> Result<Value, EngineError> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(self.on_error(live, EngineError::of_reply(&self.server.shown(), error.code(), rest)))
    }

    /// How long a reply may take.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.server.target().response_timeout()
    }

    /// How long connecting may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.server.target().connect_timeout()
    }

    fn timed_out(&self) -> EngineError {
        let within = self.response_timeout();
        self.error(Cause::TimedOut, format_args!("no answer within {within:?}"))
    }

    fn moved(&self) -> EngineError {
        self.error(Cause::Disconnected, "the answer came from a server that was left for another")
    }

    /// Closes the connection if the error shows that it is useless.
    fn on_error(&self, live: &Arc<Connection>, error: EngineError) -> EngineError {
        // A server that became a replica is left for its master, wherever the address now leads.
        if matches!(error.cause(), Cause::TimedOut | Cause::Disconnected | Cause::Demoted) {
            self.discard(live);
        }
        self.server.target().route().note(&error);
        error
    }

    /// The links to the node that we were redirected to, if redirects are followed.
    pub(crate) fn redirect_target(&self, redirect: &Redirect) -> Option<RedirectTarget> {
        self.server.target().route().redirect_target(redirect)
    }

    /// A reply that belongs to another request: nothing on this connection can be trusted any more.
    pub(crate) fn desynced(&self, live: &Arc<Connection>) -> EngineError {
        let what = "a reply belongs to another request; the connection was closed";
        self.on_error(live, self.error(Cause::Disconnected, what))
    }

    /// Gives the connection up, for a reason that the link cannot see.
    pub(crate) fn give_up(&self, live: &Arc<Connection>, why: &str) -> EngineError {
        self.on_error(live, self.error(Cause::Disconnected, why))
    }

    fn discard(&self, live: &Arc<Connection>) {
        let mut state = self.state();
        if state.live.take_if(|current| Arc::ptr_eq(current, live)).is_some() {
            state.old = Some(live.clone());
        }
    }

    /// The connection, made if necessary.
    pub(crate) async fn live(&self) -> Result<Arc<Connection>, EngineError> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let (epoch, current) = (|| self.server.epoch(), || self.current());
        // All rare paths here are boxed: the future of every lock stays small.
        Box::pin(self.reconnect.run(epoch, current, self.connect())).await
    }

    /// The connection, if there is one now.
    pub(crate) fn current(&self) -> Option<Arc<Connection>> {
        self.state().at(&self.server)
    }

    async fn connect(&self) -> Result<Arc<Connection>, EngineError> {
        self.server.keep_watch();
        let old = self.state().old.clone();
        let connect = || {
            let (server, old, pushes) = (self.server.clone(), old.clone(), self.pushes.clone());
            async move { server.target().connect(old.as_deref(), pushes).await }
        };
        let made = self.reconnect.on_runtime(connect).await;
        made.and_then(|live| self.take(live, old.as_deref()))
            .inspect_err(|error| self.server.target().route().note(error))
    }

    /// Makes it the connection of this link, if it leads to the server of the others or to a new one.
    fn take(
        &self,
        live: Connection,
        old: Option<&Connection>,
    ) -> Result<Arc<Connection>, EngineError> {
        let live = Arc::new(self.server.observe_run_id(live, old)?);
        let mut state = self.state();
        if live.may_leave_zombie() {
            state.zombie = Some(self.now());
        }
        // Two calls connected at once: on two connections, commands would overtake each other. Keep the
        // first.
        if let Some(first) = state.at(&self.server) {
            return Ok(first);
        }
        (state.live, state.old) = (Some(live.clone()), None);
        Ok(live)
    }

    /// Whether a request that was sent up to `within` ago may still execute, on a connection that we have
    /// given up and the server has not.
    pub(crate) fn may_have_zombies(&self, within: Duration) -> bool {
        let zombie = self.state().zombie;
        zombie.is_some_and(|at| self.now() < at.after(within))
    }

    /// Pings the connection, so that its loss does not stay unnoticed.
    pub(crate) async fn ping(&self) {
        if let Some(live) = self.current() {
            // `call` handles the error; then a new connection is made.
            if self.call(&live, redis::cmd("PING")).await.is_err() {
                let _ = self.live().await;
            }
        } else if self.state().old.is_some() {
            let _ = self.live().await;
        }
    }

    /// Closes the connection; the next request makes a new one.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        (state.live, state.old) = (None, None);
    }

    fn now(&self) -> Time {
        self.server.clock().now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The connection, if it leads to the current server.
    fn at(&mut self, server: &Server) -> Option<Arc<Connection>> {
        if let Some(left) = self.live.take_if(|live| !server.is_at(live.epoch())) {
            // It may never answer: calls that wait for a reply end now.
            left.end();
            self.old = Some(left);
        }
        self.live.clone()
    }
}

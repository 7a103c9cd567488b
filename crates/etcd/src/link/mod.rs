//! A link: one connection to some member of the cluster, replaced when it is no longer usable.
//!
//! In: requests. Out: their replies, each within a time-out, or an [`EngineError`].
//!
//! - A connection on which a request timed out is never used again, and the next connection goes to another
//!   member if there is one.
//! - A request is sent again automatically only if it never left, or if the server did nothing because the
//!   login was no longer valid. In all other cases the caller knows whether a retry is safe.
//! - While there is no connection, a call tries to connect once. Calls that come meanwhile, or shortly after
//!   a failure, share the result.
//!
//! In reading order: `cluster` knows the members, `connection` connects to one of them, `codec` encodes requests,
//! and `probe` makes a connection that only inspects a member.

mod cluster;
mod connection;
mod codec;
mod probe;
#[cfg(feature = "bare")]
pub(crate) mod bench_connection;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::time::{Clock, Time, TimeoutWheel};
use tenure_net::Reconnect;
use tokio::runtime::Handle;
use tonic::Status;

use crate::error::{EngineError, ErrorKind};
use crate::proto::{
    Call, KeyValue, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
pub(crate) use cluster::Cluster;
use connection::SendHalf;
pub(crate) use connection::{Connection, Messages};
pub(crate) use probe::Probe;

#[derive(Debug)]
pub(crate) struct Link {
    cluster: Arc<Cluster>,
    timeouts: TimeoutWheel,
    connection: Mutex<Option<Arc<Connection>>>,
    reconnect: Reconnect<EngineError>,
}

impl Link {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let timeouts = TimeoutWheel::new(cluster.clock().clone());
        let reconnect = Reconnect::new(cluster.clock().clone(), cluster.timeouts.connect);
        Link { cluster, timeouts, connection: Mutex::default(), reconnect }
    }

    /// Puts new connections on this runtime from now on.
    pub(crate) fn pin_to_runtime(&self, runtime: Handle) {
        self.reconnect.pin_to_runtime(runtime);
    }

    /// The cluster of this link.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.cluster.timeouts.response
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.cluster.timeouts.connect
    }

    /// The time-out wheel of its calls, for other waits.
    pub(crate) fn timeouts(&self) -> &TimeoutWheel {
        &self.timeouts
    }

    /// Whether a member with known bugs was seen.
    pub(crate) fn has_buggy_member(&self) -> bool {
        self.cluster.has_buggy_member()
    }

    /// Drops the present connection, so that the next one goes to another member.
    pub(crate) fn switch_member(&self) {
        if let Some(connection) = self.current() {
            self.discard(&connection);
        }
    }

    /// An error that we detected.
    pub(crate) fn error(&self, kind: ErrorKind, what: impl std::fmt::Display) -> EngineError {
        EngineError::new(kind, &self.cluster.shown(), what)
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.cluster.clock()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock().now()
    }

    /// Sends a request, and waits for its reply.
    pub(crate) async fn call<Q: Call>(&self, request: Q) -> Result<Q::Answer, EngineError> {
        self.call_within(self.response_timeout(), request).await
    }

    /// Like [`call`](Self::call), with another time-out.
    pub(crate) async fn call_within<Q: Call>(
        &self,
        within: Duration,
        request: Q,
    ) -> Result<Q::Answer, EngineError> {
        let (connection, request) = (self.connection().await?, Arc::new(request));
        match self.send(&connection, within, || connection.unary(request.clone())).await {
            // The request has not left: the connection was closed while it was idle.
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                let connection = self.connection().await?;
                self.await_reply(&connection, within, connection.unary(request)).await
            }
            answer => answer,
        }
    }

    /// Keeps a lease alive, with a time-out. Each keep-alive has a stream of its own, so that it cannot
    /// receive the reply to another.
    pub(crate) async fn keep_alive(
        &self,
        lease: i64,
        within: Duration,
    ) -> Result<LeaseKeepAliveResponse, EngineError> {
        let connection = self.connection().await?;
        self.send(&connection, within, || keep_alive_once(&connection, lease)).await
    }

    /// Begins a watch at the server's present revision, or at the one in `create`.
    pub(crate) async fn watch(&self, create: WatchCreateRequest) -> Result<Watch, EngineError> {
        let (connection, within) = (self.connection().await?, self.response_timeout());
        let request =
            || connection.stream(WatchRequest { create: Some(create.clone()) }, SendHalf::Open);
        let stream = self.send(&connection, within, request).await?;
        Ok(Watch { connection, stream })
    }

    /// The oldest key under `prefix`.
    pub(crate) async fn oldest_under(
        &self,
        prefix: Bytes,
    ) -> Result<Option<KeyValue>, EngineError> {
        let oldest = RangeRequest::under(prefix).oldest_first().limit(1);
        Ok(self.call(oldest).await?.first())
    }

    /// What the server reports about a lease. An unknown lease counts as ended.
    pub(crate) async fn time_to_live(
        &self,
        lease: i64,
        within: Duration,
    ) -> Result<LeaseTimeToLiveResponse, EngineError> {
        match self.call_within(within, LeaseTimeToLiveRequest { id: lease }).await {
            Err(error) if error.kind() == ErrorKind::NoLease => {
                Ok(LeaseTimeToLiveResponse { ttl: -1, ..Default::default() })
            }
            answer => answer,
        }
    }

    /// The longest possible rest of a lease: the server reports whole seconds, rounded down. A lease that is
    /// over but not yet removed has nothing left.
    pub(crate) async fn lease_left(&self, lease: i64) -> Result<Option<Duration>, EngineError> {
        if lease == 0 {
            return Ok(None);
        }
        let answer = self.time_to_live(lease, self.response_timeout()).await?;
        let left = (answer.ttl + 1).clamp(0, answer.granted_ttl.max(0));
        Ok(Some(Duration::from_secs(u64::try_from(left).unwrap_or(0))))
    }

    /// Revokes a lease, and so deletes all keys on it. A lease that is gone counts as success.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), EngineError> {
        match self.call(LeaseRevokeRequest { id: lease }).await {
            Err(error) if error.kind() != ErrorKind::NoLease => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a request. If the login is no longer valid, the server did nothing: logs in, and sends once more.
    async fn send<T, F: Future<Output = Result<T, Status>>>(
        &self,
        connection: &Arc<Connection>,
        within: Duration,
        request: impl Fn() -> F,
    ) -> Result<T, EngineError> {
        match self.await_reply(connection, within, request()).await {
            Err(error) if error.kind() == ErrorKind::BadToken && connection.is_logged_in() => {
                self.log_in_again(connection).await?;
                self.await_reply(connection, within, request()).await
            }
            answer => answer,
        }
    }

    /// The reply within the time-out. After an error that concerns the member, the connection is dropped.
    async fn await_reply<T>(
        &self,
        connection: &Arc<Connection>,
        within: Duration,
        sent: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, EngineError> {
        let error = match self.timeouts.within(within, pin!(sent)).await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(status)) => EngineError::of_status(connection.address(), &status),
            None => {
                let what = format_args!("no answer within {within:?}");
                EngineError::new(ErrorKind::TimedOut, connection.address(), what)
            }
        };
        if error.concerns_member() {
            self.discard(connection);
        }
        Err(error)
    }

    async fn log_in_again(&self, connection: &Arc<Connection>) -> Result<(), EngineError> {
        let login = pin!(connection.log_in(&self.cluster));
        let done = self.timeouts.within(self.response_timeout(), login).await;
        let late = || {
            Err(EngineError::new(
                ErrorKind::Unreachable,
                connection.address(),
                "no answer to the login",
            ))
        };
        done.unwrap_or_else(late).inspect_err(|_| self.discard(connection))
    }

    /// Drops a connection. The next one goes to another member, if there is one.
    fn discard(&self, connection: &Arc<Connection>) {
        connection.gone.cancel();
        self.cluster.avoid(connection.member);
        self.kept().take_if(|current| Arc::ptr_eq(current, connection));
    }

    /// The connection, made if necessary.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, EngineError> {
        match self.current() {
            Some(connection) => Ok(connection),
            // Boxed, because it is rare: the future that every lock makes stays small.
            None => Box::pin(self.reconnect.run(|| 0, || self.current(), self.connect())).await,
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        let mut kept = self.kept();
        kept.take_if(|connection| connection.is_closed());
        kept.clone()
    }

    async fn connect(&self) -> Result<Arc<Connection>, EngineError> {
        let connect = || connection::connect(self.cluster.clone());
        let made = Arc::new(self.reconnect.on_runtime(connect).await?);
        *self.kept() = Some(made.clone());
        Ok(made)
    }

    /// Drops the connection. The next request makes a new one.
    pub(crate) fn close(&self) {
        *self.kept() = None;
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep_alive_once(
    connection: &Connection,
    lease: i64,
) -> Result<LeaseKeepAliveResponse, Status> {
    let mut stream =
        connection.stream(LeaseKeepAliveRequest { id: lease }, SendHalf::Closed).await?;
    let answer = stream.message().await?;
    answer.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
}

/// A watch: a stream of changes from the server.
pub(crate) struct Watch {
    connection: Arc<Connection>,
    stream: Messages<WatchResponse>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Watch {
    /// Whether its connection is still usable, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_closed()
    }

    /// The next message. An error ends the watch: read again, then watch again.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, EngineError> {
        let address = self.connection.address();
        let message = tokio::select! {
            message = self.stream.message() => message,
            // Another user of the connection found that it is dead.
            () = self.connection.gone.cancelled() => {
                return Err(EngineError::new(ErrorKind::Disconnected, address, "the connection was given up"));
            }
        };
        match message {
            Ok(Some(response)) if !response.canceled => Ok(response),
            Ok(Some(response)) => {
                let (why, compacted) = (&response.cancel_reason, response.compact_revision);
                let what = format_args!("the watch was ended: {why} (compacted at {compacted})");
                Err(EngineError::new(ErrorKind::Busy, address, what))
            }
            Ok(None) => Err(EngineError::new(ErrorKind::Disconnected, address, "the watch ended")),
            Err(status) => Err(EngineError::of_status(address, &status)),
        }
    }
}

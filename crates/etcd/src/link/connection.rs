//! Opens connections that are ready for requests.
//!
//! In: a member of the cluster. Out: a [`Connection`] to it: open, encrypted if requested, logged in,
//! with its version and cluster checked, and with a leader.
//!
//! Done by hand down to HTTP/2, so that we know of each request whether it has left, so that a name is
//! resolved each time, and so that TLS uses the provider that we selected.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use http::Uri;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tenure_net::{Duplex, encrypted};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::{CancellationHandle, Request, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::cluster::Cluster;
use super::codec;
use crate::error::{EngineError, ErrorKind};
use crate::proto::{AuthenticateRequest, Call, StatusRequest, StatusResponse};
use crate::url::Address;

/// How long to wait for one member before the next one is tried too.
const HEAD_START: Duration = Duration::from_millis(150);
/// The largest reply that is read: a page of locks with the longest notes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// How long to wait for the reason after a connection broke.
const REASON_WITHIN: Duration = Duration::from_millis(200);
/// The name of the metadata entry for the login token.
const TOKEN: &str = "token";

/// The task that drives a connection. Its result is the error that ended the connection.
type Driver = JoinHandle<Result<(), hyper::Error>>;

/// A connection to one member.
pub(crate) struct Connection {
    http: http2::SendRequest<Body>,
    origin: Uri,
    address: Address,
    pub(super) member: usize,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// Cancelled when the connection is dropped.
    pub(super) gone: CancellationToken,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// The error that broke a stream. The layers above keep its text, not its type.
type StreamError = Arc<Mutex<Option<EngineError>>>;

/// A stream that records the error that broke it.
struct RecordingStream {
    stream: Box<dyn Duplex>,
    address: Address,
    stream_error: StreamError,
}

impl RecordingStream {
    fn record(&self, error: &io::Error) {
        let error = EngineError::of_open(&self.address, error);
        *self.stream_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Treats a failed write as done. A peer that closes the connection may have sent the reason before, and
    /// it is still to be read. So the bytes are dropped, and reading finds the end of the connection. An
    /// error here would end the connection before that. A write that never ends would keep the connection and
    /// its socket for ever.
    fn ignore_write_error<T>(written: Poll<io::Result<T>>, done: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(_)) => Poll::Ready(Ok(done)),
            written => written,
        }
    }
}

impl AsyncRead for RecordingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.record(error);
        }
        read
    }
}

/// Not vectored, on purpose: with vectored writes the driver writes a request of 256 bytes or more in one
/// call and the end of its stream in another. Without them it combines everything below a kilobyte, which
/// includes nearly all our requests.
impl AsyncWrite for RecordingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Self::ignore_write_error(Pin::new(&mut self.stream).poll_write(cx, bytes), bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::ignore_write_error(Pin::new(&mut self.stream).poll_flush(cx), ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to the first member that can serve us.
pub(super) async fn connect(cluster: Arc<Cluster>) -> Result<Connection, EngineError> {
    let within = cluster.timeouts.connect;
    let Ok(made) = tokio::time::timeout(within, race(cluster.clone())).await else {
        let what = format_args!("cannot connect: no answer within {within:?}");
        return Err(EngineError::new(ErrorKind::Unreachable, &cluster.shown(), what));
    };
    made.inspect(|connection| cluster.prefer(connection.member))
}

/// Tries one member after the other, each a little after the one before, or at once when that one failed.
async fn race(cluster: Arc<Cluster>) -> Result<Connection, EngineError> {
    let mut waiting = cluster.try_order();
    let (mut running, mut most_useful) = (JoinSet::new(), None);
    loop {
        match waiting.next() {
            Some(member) => drop(running.spawn(connect_to(cluster.clone(), member))),
            None if running.is_empty() => {
                let nobody = || {
                    EngineError::new(ErrorKind::Unreachable, &cluster.shown(), "it has no members")
                };
                return Err(most_useful.unwrap_or_else(nobody));
            }
            None => {}
        }
        tokio::select! {
            Some(done) = running.join_next() => match done {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => most_useful = Some(more_useful(most_useful, error)),
                Err(_) => {}
            },
            () = tokio::time::sleep(HEAD_START), if waiting.size_hint().0 > 0 => {}
        }
    }
}

/// The more useful error: first one for which a retry is useless, then one from a member that answered.
fn more_useful(known: Option<EngineError>, new: EngineError) -> EngineError {
    let weight = |error: &EngineError| (error.is_permanent(), !error.is_unreachable());
    match known {
        Some(known) if weight(&known) >= weight(&new) => known,
        _ => new,
    }
}

async fn connect_to(cluster: Arc<Cluster>, member: usize) -> Result<Connection, EngineError> {
    let opened = open(&cluster, member).await?;
    let first = opened.connection.check_member(&cluster).await;
    opened.with_first_reply(first).await.map(|(connection, ())| connection)
}

/// Connects to one member without checking it, and asks for its status.
pub(super) async fn connect_unchecked(
    cluster: &Cluster,
    member: usize,
) -> Result<(Connection, StatusResponse), EngineError> {
    let opened = open(cluster, member).await?;
    let first = opened.connection.log_in_and_get_status(cluster).await;
    opened.with_first_reply(first).await
}

/// A connection without requests so far.
struct Opened {
    connection: Connection,
    driver: Driver,
    stream_error: StreamError,
}

impl Opened {
    /// The connection and the result of its first requests, or the most useful error.
    async fn with_first_reply<T>(
        self,
        first: Result<T, EngineError>,
    ) -> Result<(Connection, T), EngineError> {
        match first {
            Ok(first) => Ok((self.connection, first)),
            Err(error) if error.concerns_member() => {
                Err(recorded_error(self.driver, &self.stream_error, error).await)
            }
            Err(error) => Err(error),
        }
    }
}

async fn open(cluster: &Cluster, member: usize) -> Result<Opened, EngineError> {
    let address = cluster.members[member].clone();
    let open = async {
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
        // By default the system delays small writes.
        tcp.set_nodelay(true)?;
        encrypted(cluster.tls.as_ref(), &address.host, tcp).await
    };
    let stream = open.await.map_err(|error| EngineError::of_open(&address, &error))?;
    let stream_error = StreamError::default();
    let stream =
        RecordingStream { stream, address: address.clone(), stream_error: stream_error.clone() };
    let (http, driver) = handshake(stream).await.map_err(|error| {
        EngineError::new(ErrorKind::Unreachable, &address, format_args!("cannot connect: {error}"))
    })?;
    let connection = Connection {
        http,
        origin: origin(&address, cluster.tls.is_some()),
        address,
        member,
        token: Mutex::default(),
        gone: CancellationToken::new(),
    };
    Ok(Opened { connection, driver, stream_error })
}

/// A server that wants another client certificate reports that after the handshake, instead of a reply. The
/// stream has recorded that error; it is waited for here.
async fn recorded_error(
    driver: Driver,
    stream_error: &StreamError,
    error: EngineError,
) -> EngineError {
    let _ = tokio::time::timeout(REASON_WITHIN, driver).await;
    let stream_error = stream_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    stream_error.filter(EngineError::is_permanent).unwrap_or(error)
}

/// Starts HTTP/2 on the stream. A task of this runtime drives it until the sender is dropped.
async fn handshake(
    stream: RecordingStream,
) -> Result<(http2::SendRequest<Body>, Driver), hyper::Error> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    // A reply with many locks fits into one window.
    builder.initial_stream_window_size(1 << 20).initial_connection_window_size(1 << 20);
    let (http, connection) = builder.handshake(TokioIo::new(stream)).await?;
    Ok((http, tokio::spawn(connection)))
}

/// The origin of requests. The server does not check it, so only its form matters.
fn origin(address: &Address, tls: bool) -> Uri {
    let scheme = if tls { "https" } else { "http" };
    let named = Uri::builder().scheme(scheme).authority(address.to_string()).path_and_query("/");
    named.build().unwrap_or_else(|_| Uri::from_static("http://etcd"))
}

impl Connection {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether the connection is known to be closed.
    pub(super) fn is_closed(&self) -> bool {
        self.http.is_closed() || self.gone.is_cancelled()
    }

    pub(super) fn is_logged_in(&self) -> bool {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Logs in, and asks the member for its status.
    async fn log_in_and_get_status(
        &self,
        cluster: &Cluster,
    ) -> Result<StatusResponse, EngineError> {
        self.log_in(cluster).await?;
        let status = self.unary(Arc::new(StatusRequest {})).await;
        status.map_err(|status| EngineError::of_first(&self.address, &status))
    }

    /// Logs in, and checks that this member can serve us.
    async fn check_member(&self, cluster: &Cluster) -> Result<(), EngineError> {
        let status = self.log_in_and_get_status(cluster).await?;
        cluster.check_version(&status.version, &self.address)?;
        cluster
            .check_cluster_id(status.header.map_or(0, |header| header.cluster_id), &self.address)?;
        if status.leader == 0 || status.is_learner {
            let what = "the member has no leader, or is a learner";
            return Err(EngineError::new(ErrorKind::NoLeader, &self.address, what));
        }
        Ok(())
    }

    /// Gets a token for our user, if we have one.
    pub(super) async fn log_in(&self, cluster: &Cluster) -> Result<(), EngineError> {
        let Some(login) = &cluster.login else { return Ok(()) };
        let (name, password) = (login.user.clone(), login.password.clone());
        self.set_token(None);
        match self.unary(Arc::new(AuthenticateRequest { name, password })).await {
            Ok(answer) => {
                self.set_token(AsciiMetadataValue::try_from(answer.token).ok());
                Ok(())
            }
            // A server without authentication needs no login.
            Err(status) if status.message().contains("authentication is not enabled") => Ok(()),
            Err(status) => Err(EngineError::of_first(&self.address, &status)),
        }
    }

    fn set_token(&self, token: Option<AsciiMetadataValue>) {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        // Hidden in the `Debug` output of requests.
        *kept = token.map(|mut token| {
            token.set_sensitive(true);
            token
        });
    }

    /// One request, one reply. Without a time-out.
    pub(super) async fn unary<Q: Call>(&self, request: Arc<Q>) -> Result<Q::Answer, Status> {
        let (path, codec) = (PathAndQuery::from_static(Q::PATH), codec::SharedMessage::<Q>::new());
        let answer = self.grpc().unary(self.signed(request), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// One request, and all messages that come back while the stream is kept.
    pub(super) async fn stream<Q: Call>(
        &self,
        request: Q,
        then: SendHalf,
    ) -> Result<Messages<Q::Answer>, Status> {
        use tokio_stream::StreamExt as _;

        let first = tokio_stream::once(request);
        match then {
            SendHalf::Closed => self.stream_of(first).await,
            SendHalf::Open => self.stream_of(first.chain(tokio_stream::pending())).await,
        }
    }

    async fn stream_of<Q: Call>(
        &self,
        requests: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Messages<Q::Answer>, Status> {
        let (path, codec) = (PathAndQuery::from_static(Q::PATH), ProstCodec::<Q, Q::Answer>::new());
        let mut request = self.signed(requests);
        // Before sending: if the caller stops waiting for the first reply, the stream is closed too.
        let cancel = CancelOnDrop(request.cancellation_handle());
        let answer = self.grpc().streaming(request, path, codec).await?;
        Ok(Messages { stream: answer.into_inner(), _cancel: cancel })
    }

    fn grpc(&self) -> Grpc<Http> {
        let grpc = Grpc::with_origin(Http(self.http.clone()), self.origin.clone());
        grpc.max_decoding_message_size(ANSWER_MAX)
    }

    fn signed<T>(&self, request: T) -> Request<T> {
        let mut request = Request::new(request);
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(token) = token {
            request.metadata_mut().insert(TOKEN, token);
        }
        request
    }
}

/// The messages of a stream, which stays open while this is kept.
pub(crate) struct Messages<T> {
    stream: tonic::Streaming<T>,
    _cancel: CancelOnDrop,
}

impl<T> Messages<T> {
    /// The next message; `None` if the server has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<T>, Status> {
        self.stream.message().await
    }
}

/// Our half of a stream. When it is dropped, the server is notified that the stream is cancelled. The driver
/// does this by itself only if our half has ended. A watch would otherwise stay at the server, with its
/// connection open, long after it was dropped here.
struct CancelOnDrop(CancellationHandle);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.clone().cancel();
    }
}

/// What follows the first message of a stream.
#[derive(Clone, Copy)]
pub(super) enum SendHalf {
    /// Our half of the stream ends.
    Closed,
    /// Our half of the stream stays open, so that the server continues to answer.
    Open,
}

/// The connection as the service that the driver needs.
struct Http(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for Http {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

//! From an address to a connection that can be asked.
//!
//! In: a member of the cluster. Out: a [`Live`] connection to it: open, encrypted where that was asked
//! for, logged in, its version and cluster checked, and with a leader.
//!
//! Done by hand down to HTTP/2, so that it is known of each request whether it has left, so that a
//! name is looked up anew each time, and so that TLS uses the provider that we chose.

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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::{CancellationHandle, Request, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::cluster::{Cluster, Member};
use super::codec;
use crate::proto::{AuthenticateRequest, Call, StatusRequest, StatusResponse};
use crate::trouble::{Cause, Trouble};
use crate::url::Address;

/// How long one member may keep us waiting before the next is tried as well.
const HEAD_START: Duration = Duration::from_millis(150);
/// The largest answer that is read: a page of locks with the longest notes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// How long a connection that broke is given to say why.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What the token of a login is sent as.
const TOKEN: &str = "token";

/// Bytes, both ways.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// What drives a connection, and in the end says what went wrong with it.
type Driver = JoinHandle<Result<(), hyper::Error>>;

/// A connection to one member.
pub(crate) struct Live {
    http: http2::SendRequest<Body>,
    origin: Uri,
    address: Address,
    pub(super) member: usize,
    token: Mutex<Option<AsciiMetadataValue>>,
    /// Cancelled when it is given up.
    pub(super) gone: CancellationToken,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// What a stream broke with. The layers above keep the words of it, not the meaning.
type Heard = Arc<Mutex<Option<Trouble>>>;

/// A stream that notes what it broke with.
struct Listening {
    stream: Box<dyn Duplex>,
    address: Address,
    heard: Heard,
}

impl Listening {
    fn note(&self, error: &io::Error) {
        let trouble = Trouble::of_open(&self.address, error);
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
    }

    /// A peer that cuts us off may have said why before, and that is still to be read. So a failed write counts as
    /// done: the bytes are dropped, and reading finds the end of the connection. An error would end the connection
    /// before that. A write that never ends would keep the connection, and its socket, for ever.
    fn unless_cut_off<T>(written: Poll<io::Result<T>>, done: T) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(_)) => Poll::Ready(Ok(done)),
            written => written,
        }
    }
}

impl AsyncRead for Listening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.note(error);
        }
        read
    }
}

/// Not vectored, on purpose: the driver would write a request of 256 bytes or more in one call and its end in
/// another. Like this it gathers what is below a kilobyte, and that is every request of ours but rare ones.
impl AsyncWrite for Listening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Self::unless_cut_off(Pin::new(&mut self.stream).poll_write(cx, bytes), bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::unless_cut_off(Pin::new(&mut self.stream).poll_flush(cx), ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to the first member that can serve us.
pub(super) async fn connect(cluster: Arc<Cluster>) -> Result<Live, Trouble> {
    let within = cluster.connect_timeout;
    let Ok(made) = tokio::time::timeout(within, race(cluster.clone())).await else {
        let what = format_args!("cannot connect: no answer within {within:?}");
        return Err(Trouble::new(Cause::Down, &shown(&cluster), what));
    };
    made.inspect(|live| cluster.prefer(live.member))
}

fn shown(cluster: &Cluster) -> String {
    let addresses: Vec<_> = cluster.members.iter().map(|one| one.address.to_string()).collect();
    addresses.join(",")
}

/// Tries one after the other, each a little after the one before, or at once when that one failed.
async fn race(cluster: Arc<Cluster>) -> Result<Live, Trouble> {
    let mut waiting = cluster.in_turn();
    let (mut running, mut worst) = (JoinSet::new(), None);
    loop {
        match waiting.next() {
            Some(member) => drop(running.spawn(connect_to(cluster.clone(), member))),
            None if running.is_empty() => {
                let nobody = || Trouble::new(Cause::Down, &shown(&cluster), "it has no members");
                return Err(worst.unwrap_or_else(nobody));
            }
            None => {}
        }
        tokio::select! {
            Some(done) = running.join_next() => match done {
                Ok(Ok(live)) => return Ok(live),
                Ok(Err(trouble)) => worst = Some(worse(worst, trouble)),
                Err(_) => {}
            },
            () = tokio::time::sleep(HEAD_START), if waiting.size_hint().0 > 0 => {}
        }
    }
}

/// Whatever says most about why nobody can be asked: that it is of no use to try again, else that
/// somebody answered at all.
fn worse(known: Option<Trouble>, new: Trouble) -> Trouble {
    let weight = |trouble: &Trouble| (trouble.is_final(), !trouble.is_absence());
    match known {
        Some(known) if weight(&known) >= weight(&new) => known,
        _ => new,
    }
}

async fn connect_to(cluster: Arc<Cluster>, member: usize) -> Result<Live, Trouble> {
    let opened = open(&cluster, member).await?;
    let met = opened.live.introduce(&cluster).await;
    opened.after(met).await.map(|(live, ())| live)
}

/// Connects to one member whatever it is, and asks it.
pub(super) async fn look_at(
    cluster: &Cluster,
    member: usize,
) -> Result<(Live, StatusResponse), Trouble> {
    let opened = open(cluster, member).await?;
    let met = opened.live.greet(cluster).await;
    opened.after(met).await
}

/// A connection on which nothing has been asked yet.
struct Opened {
    live: Live,
    driver: Driver,
    heard: Heard,
}

impl Opened {
    /// The connection and what came of the first requests on it, or the best reason why not.
    async fn after<T>(self, met: Result<T, Trouble>) -> Result<(Live, T), Trouble> {
        match met {
            Ok(met) => Ok((self.live, met)),
            Err(trouble) if trouble.is_of_the_member() => {
                Err(last_words(self.driver, &self.heard, trouble).await)
            }
            Err(trouble) => Err(trouble),
        }
    }
}

async fn open(cluster: &Cluster, member: usize) -> Result<Opened, Trouble> {
    let Member { address, name } = cluster.members[member].clone();
    let open = async {
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
        // The system's default would hold small requests back.
        tcp.set_nodelay(true)?;
        encrypted(cluster, name, tcp).await
    };
    let stream = open.await.map_err(|error| Trouble::of_open(&address, &error))?;
    let heard = Heard::default();
    let stream = Listening { stream, address: address.clone(), heard: heard.clone() };
    let (http, driver) = speak(stream).await.map_err(|error| {
        Trouble::new(Cause::Down, &address, format_args!("cannot connect: {error}"))
    })?;
    let live = Live {
        http,
        origin: origin(&address, cluster.tls.is_some()),
        address,
        member,
        token: Mutex::default(),
        gone: CancellationToken::new(),
    };
    Ok(Opened { live, driver, heard })
}

/// A server that wants another certificate of ours says so after the handshake, in the place of an
/// answer: whoever drives the connection has heard it.
async fn last_words(driver: Driver, heard: &Heard, trouble: Trouble) -> Trouble {
    let _ = tokio::time::timeout(LAST_WORDS, driver).await;
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).take();
    heard.filter(Trouble::is_final).unwrap_or(trouble)
}

async fn encrypted(
    cluster: &Cluster,
    name: Option<tokio_rustls::rustls::pki_types::ServerName<'static>>,
    tcp: TcpStream,
) -> io::Result<Box<dyn Duplex>> {
    match (&cluster.tls, name) {
        (Some(config), Some(name)) => {
            let connector = TlsConnector::from(config.clone());
            Ok(Box::new(connector.connect(name, tcp).await?))
        }
        _ => Ok(Box::new(tcp)),
    }
}

/// Speaks HTTP/2 on the stream, driven by a task of this runtime until nobody has the other end.
async fn speak(stream: Listening) -> Result<(http2::SendRequest<Body>, Driver), hyper::Error> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    // An answer of many locks comes in one go.
    builder.initial_stream_window_size(1 << 20).initial_connection_window_size(1 << 20);
    let (http, connection) = builder.handshake(TokioIo::new(stream)).await?;
    Ok((http, tokio::spawn(connection)))
}

/// Only its form matters: the server does not look at it.
fn origin(address: &Address, tls: bool) -> Uri {
    let scheme = if tls { "https" } else { "http" };
    let named = Uri::builder().scheme(scheme).authority(address.to_string()).path_and_query("/");
    named.build().unwrap_or_else(|_| Uri::from_static("http://etcd"))
}

impl Live {
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Whether the other side is known to have gone.
    pub(super) fn is_closed(&self) -> bool {
        self.http.is_closed() || self.gone.is_cancelled()
    }

    pub(super) fn is_logged_in(&self) -> bool {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Logs in, and asks the member what it is.
    async fn greet(&self, cluster: &Cluster) -> Result<StatusResponse, Trouble> {
        self.log_in(cluster).await?;
        let status = self.unary(Arc::new(StatusRequest {})).await;
        status.map_err(|status| Trouble::of_first(&self.address, &status))
    }

    /// Logs in, and finds out whether this member can serve us.
    async fn introduce(&self, cluster: &Cluster) -> Result<(), Trouble> {
        let status = self.greet(cluster).await?;
        cluster.judge(&status.version, &self.address)?;
        cluster.meet(status.header.map_or(0, |header| header.cluster_id), &self.address)?;
        if status.leader == 0 || status.is_learner {
            let what = "the member has no leader, or is a learner";
            return Err(Trouble::new(Cause::NoLeader, &self.address, what));
        }
        Ok(())
    }

    /// Gets a token for our user, if we have one.
    pub(super) async fn log_in(&self, cluster: &Cluster) -> Result<(), Trouble> {
        let Some(login) = &cluster.login else { return Ok(()) };
        let (name, password) = (login.user.clone(), login.password.clone());
        self.set_token(None);
        match self.unary(Arc::new(AuthenticateRequest { name, password })).await {
            Ok(answer) => {
                self.set_token(AsciiMetadataValue::try_from(answer.token).ok());
                Ok(())
            }
            // A server that lets everybody in lets us in.
            Err(status) if status.message().contains("authentication is not enabled") => Ok(()),
            Err(status) => Err(Trouble::of_first(&self.address, &status)),
        }
    }

    fn set_token(&self, token: Option<AsciiMetadataValue>) {
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        // Shown by nobody who debugs a request.
        *kept = token.map(|mut token| {
            token.set_sensitive(true);
            token
        });
    }

    /// One request, one answer. Not bounded in time.
    pub(super) async fn unary<Q: Call>(&self, ask: Arc<Q>) -> Result<Q::Answer, Status> {
        let (path, codec) = (PathAndQuery::from_static(Q::PATH), codec::Shared::<Q>::new());
        let answer = self.grpc().unary(self.signed(ask), path, codec).await;
        answer.map(tonic::Response::into_inner)
    }

    /// One request, and whatever comes back for as long as the stream is kept.
    pub(super) async fn stream<Q: Call>(
        &self,
        ask: Q,
        then: Then,
    ) -> Result<Messages<Q::Answer>, Status> {
        use tokio_stream::StreamExt as _;

        let first = tokio_stream::once(ask);
        match then {
            Then::Nothing => self.stream_of(first).await,
            Then::Listen => self.stream_of(first.chain(tokio_stream::pending())).await,
        }
    }

    async fn stream_of<Q: Call>(
        &self,
        asks: impl tokio_stream::Stream<Item = Q> + Send + 'static,
    ) -> Result<Messages<Q::Answer>, Status> {
        let (path, codec) = (PathAndQuery::from_static(Q::PATH), ProstCodec::<Q, Q::Answer>::new());
        let mut request = self.signed(asks);
        // Before it is sent: whoever stops waiting for the first answer leaves nothing open either.
        let asking = Asking(request.cancellation_handle());
        let answer = self.grpc().streaming(request, path, codec).await?;
        Ok(Messages { stream: answer.into_inner(), _asking: asking })
    }

    fn grpc(&self) -> Grpc<Http> {
        let grpc = Grpc::with_origin(Http(self.http.clone()), self.origin.clone());
        grpc.max_decoding_message_size(ANSWER_MAX)
    }

    fn signed<T>(&self, ask: T) -> Request<T> {
        let mut request = Request::new(ask);
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(token) = token {
            request.metadata_mut().insert(TOKEN, token);
        }
        request
    }
}

/// What comes back on a stream, for as long as this is kept.
pub(crate) struct Messages<T> {
    stream: tonic::Streaming<T>,
    _asking: Asking,
}

impl<T> Messages<T> {
    /// The next one; none where the other side has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<T>, Status> {
        self.stream.message().await
    }
}

/// Our half of a stream. Dropped, it has the server told that nothing more is wanted. The driver does so by
/// itself only where we have said all: one that listens would stay at the server, and its connection open,
/// long after everybody here has forgotten it.
struct Asking(CancellationHandle);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.clone().cancel();
    }
}

/// What follows the first message of a stream.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// The server is told that this was all.
    Nothing,
    /// It is not, so that it goes on answering.
    Listen,
}

/// The connection, as the driver wants to see it.
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

//! From an address to a stream of bytes.
//!
//! In: where a server listens. Out: a stream to it, encrypted where that was asked for.
//!
//! The driver could do this too. We do it ourselves so that a name is looked up anew each time, a
//! socket is set up as we need it, and TLS uses the provider that we chose and never panics over
//! which one the process has.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tenure_core::backend::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::dial::Dial;
use crate::url::Address;

/// When the kernel starts to ask whether an idle peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Bytes, both ways.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// Where names lead.
pub(super) trait Names: Send + Sync {
    /// The addresses of `host` now.
    fn find<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The system's names.
pub(super) struct System;

impl Names for System {
    fn find<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

impl Dial {
    pub(super) async fn open(&self, address: &Address) -> io::Result<Box<dyn Duplex>> {
        match address {
            Address::Unix(path) => unix(path).await,
            Address::Tcp(host, port) => self.open_tcp(host, *port).await,
        }
    }

    async fn open_tcp(&self, host: &str, port: u16) -> io::Result<Box<dyn Duplex>> {
        let tcp = self.tcp(host, port).await?;
        let Some(secure) = &self.secure else { return Ok(Box::new(tcp)) };
        let connector = TlsConnector::from(secure.config.clone());
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(connector.connect(name, tcp).await?))
    }

    /// The first address of the host that accepts. Each has its share of the time, so that one that
    /// swallows everything does not keep us from the others.
    pub(super) async fn tcp(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses = self.names.find(host, port).await?;
        let share = self.connect_timeout / u32::try_from(addresses.len()).unwrap_or(1).max(1);
        let mut failed = io::Error::other("the name has no address");
        for address in addresses {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return self.set_up(stream),
                Ok(Err(error)) => failed = error,
                Err(late) => failed = late.into(),
            }
        }
        Err(failed)
    }

    /// The system's defaults would hold small requests back, and keep a dead peer for hours.
    fn set_up(&self, stream: TcpStream) -> io::Result<TcpStream> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        // A request that nobody acknowledged while we waited for its reply is not delivered later.
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        socket.set_tcp_user_timeout(Some(self.response_timeout))?;
        Ok(stream)
    }
}

#[cfg(unix)]
async fn unix(path: &str) -> io::Result<Box<dyn Duplex>> {
    Ok(Box::new(tokio::net::UnixStream::connect(path).await?))
}

#[cfg(not(unix))]
async fn unix(_: &str) -> io::Result<Box<dyn Duplex>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no unix sockets"))
}

//! From an address to a stream of bytes.
//!
//! In: the address of a server. Out: a stream to it, with TLS if that was configured.
//!
//! The driver could do this too. We do it ourselves so that a name is resolved again each time, a socket is
//! set up as we need it, and TLS uses the provider that we chose and never panics because of the provider of
//! the process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tenure_core::backend::BoxFuture;
use tenure_net::{Duplex, encrypted};
use tokio::net::TcpStream;

use super::connector::Connector;
use crate::url::Address;

/// When the kernel starts to probe an idle peer.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Resolves names.
pub(super) trait Names: Send + Sync {
    /// The addresses of `host` now.
    fn find<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the system.
pub(super) struct System;

impl Names for System {
    fn find<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

impl Connector {
    pub(super) async fn open(&self, address: &Address) -> io::Result<Box<dyn Duplex>> {
        match address {
            Address::Unix(path) => unix(path).await,
            Address::Tcp(host, port) => {
                encrypted(self.secure.as_ref(), host, self.tcp(host, *port).await?).await
            }
        }
    }

    /// Connects to the first address of the host that accepts. Each address has its share of the time, so
    /// that one that does not answer at all leaves time for the others.
    pub(super) async fn tcp(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses = self.names.find(host, port).await?;
        let share = self.timeouts.connect / u32::try_from(addresses.len()).unwrap_or(1).max(1);
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

    /// The system's defaults would delay small requests, and keep a dead peer for hours.
    fn set_up(&self, stream: TcpStream) -> io::Result<TcpStream> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
        // A request that was not acknowledged within the response time-out is not delivered later.
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        socket.set_tcp_user_timeout(Some(self.timeouts.response))?;
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

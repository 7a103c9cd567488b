//! How to reach servers of one kind: our login, how they prove their identity, and the time-outs.
//!
//! In: an address. Out: a connection of the driver, before the server behind it was examined.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tenure_net::Timeouts;
use tokio::task::AbortHandle;

use super::Pushes;
use super::stream::{Names, System};
use crate::error::EngineError;
use crate::url::{Address, Login};
use tokio_rustls::rustls::ClientConfig;

/// How many requests the driver queues before their senders have to wait: with its default of 50, each of 512
/// tasks is woken twice per request.
const QUEUE: usize = 1_024;

/// Our login, the trusted certificates, and the time-outs. No `Debug`: it has the password.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(super) names: Arc<dyn Names>,
    pub(super) secure: Option<Arc<ClientConfig>>,
    pub(super) timeouts: Timeouts,
    session: RedisConnectionInfo,
}

impl Connector {
    pub(crate) fn new(
        login: Login<'_>,
        secure: Option<Arc<ClientConfig>>,
        timeouts: Timeouts,
    ) -> Self {
        let (names, session) = (Arc::new(System), session(login));
        Connector { names, secure, timeouts, session }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.timeouts.connect
    }

    /// How long one call may take: to connect, and to answer.
    pub(crate) fn call_time(&self) -> Duration {
        self.timeouts.call_time()
    }

    /// The user name: `default` if none was configured.
    pub(crate) fn user(&self) -> &str {
        self.session.username().unwrap_or("default")
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.timeouts.response
    }

    /// Connects to `address`; also returns the task that drives the connection.
    pub(crate) async fn handshake(
        &self,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<(MultiplexedConnection, AbortHandle), EngineError> {
        let stream = self.open(address).await;
        let stream = stream.map_err(|error| EngineError::of_open(address, &error))?;
        // We have our own time-outs: the driver would keep using a connection after one.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        if let Some(Pushes(receive)) = pushes {
            config = config.set_push_sender(move |push| {
                receive(push);
                Ok::<(), ()>(())
            });
        }
        let made = MultiplexedConnection::new_with_config(&self.session, stream, config).await;
        let (connection, driver) =
            made.map_err(|error| EngineError::of_connect(address, &error))?;
        Ok((connection, tokio::spawn(driver).abort_handle()))
    }
}

fn session(login: Login<'_>) -> RedisConnectionInfo {
    // `HELLO`, since its error tells what is wrong with a password.
    let mut session =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(login.db);
    if let Some(user) = login.user {
        session = session.set_username(user);
    }
    if let Some(password) = login.password {
        session = session.set_password(password);
    }
    session.set_skip_set_lib_name()
}

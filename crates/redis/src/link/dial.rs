//! How to reach servers of one kind: who we are to them, how they prove who they are, how long it may
//! take.
//!
//! In: an address. Out: a connection of the driver's, before anybody has looked at what it leads to.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tokio::task::AbortHandle;

use super::Pushes;
use super::open::{Names, System};
use crate::tls::Secure;
use crate::trouble::Trouble;
use crate::url::Address;

/// How many requests the driver takes before their senders have to wait: with its own 50, each of 512
/// tasks is woken twice per request.
const QUEUE: usize = 1_024;

/// Who we are, whom we trust, and our patience. No `Debug`: it knows the password.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(super) names: Arc<dyn Names>,
    pub(super) secure: Option<Secure>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    session: RedisConnectionInfo,
}

/// Who we are to a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) db: i64,
}

impl Dial {
    pub(crate) fn new(
        login: Login<'_>,
        secure: Option<Secure>,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        let (names, session) = (Arc::new(System), session(login));
        Dial { names, secure, connect_timeout, response_timeout, session }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Who we are: `default` where nobody said.
    pub(crate) fn user(&self) -> &str {
        self.session.username().unwrap_or("default")
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// A connection to `address`, and the task that drives it.
    pub(crate) async fn speak(
        &self,
        address: &Address,
        pushes: Option<Pushes>,
    ) -> Result<(MultiplexedConnection, AbortHandle), Trouble> {
        let stream = self.open(address).await;
        let stream = stream.map_err(|error| Trouble::of_open(address, &error))?;
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
        let (connection, driver) = made.map_err(|error| Trouble::of_connect(address, &error))?;
        Ok((connection, tokio::spawn(driver).abort_handle()))
    }
}

fn session(login: Login<'_>) -> RedisConnectionInfo {
    // `HELLO`, since it says what is wrong with a password.
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

//! What somebody would write who has the driver and no library: `SET NX PX`, and a script that
//! compares and deletes.
//!
//! The same driver with the same settings as ours: one multiplexed connection, RESP3, no delay, and a
//! time-out on every reply.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, RedisError, Script,
    Value,
};

use crate::error::Error;

/// How many requests the driver takes before their senders have to wait, as with ours.
const QUEUE: usize = 1_024;
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";
/// Ours, by default.
const TTL: Duration = Duration::from_secs(30);

/// A connection without us.
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    release: String,
}

impl Bare {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let mut connection =
            client(url)?.get_multiplexed_async_connection_with_config(&config()).await?;
        let release = Script::new(RELEASE).load_async(&mut connection).await?;
        Ok(Bare { connection, release })
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// One that takes and gives back the key `key`.
    pub(crate) fn lock(&self, key: String) -> BareLock {
        // As long as ours; always the same, since making a new one is none of the bare commands.
        let token = "0123456789abcdef0123456789abcdef".into();
        BareLock { connection: self.connection(), release: self.release.clone(), key, token }
    }
}

/// The driver's way to the server.
pub(crate) fn client(url: &str) -> Result<Client, Error> {
    // The driver knows its own names only.
    let url = url.strip_prefix("valkey").map_or(url.into(), |rest| format!("redis{rest}"));
    let info = url.into_connection_info()?;
    let session = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let tcp = TcpSettings::default().set_nodelay(true);
    Ok(Client::open(info.set_redis_settings(session).set_tcp_settings(tcp))?)
}

pub(crate) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_response_timeout(Some(tenure::redis::RESPONSE_TIMEOUT_DEFAULT))
        .set_pipeline_buffer_size(QUEUE)
}

/// A key as one task locks it.
pub(crate) struct BareLock {
    connection: MultiplexedConnection,
    release: String,
    key: String,
    token: String,
}

impl BareLock {
    /// What takes it, and what gives it back.
    pub(crate) fn commands(&self) -> (Cmd, Cmd) {
        (self.set(), self.release())
    }

    fn set(&self) -> Cmd {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&self.token).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        set
    }

    fn release(&self) -> Cmd {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(&self.key).arg(&self.token);
        release
    }

    /// Takes it and gives it back.
    pub(crate) async fn cycle(&mut self) -> Result<(), Error> {
        let set: Value = self.set().query_async(&mut self.connection).await?;
        let freed: i64 = self.release().query_async(&mut self.connection).await?;
        match (set, freed) {
            (Value::Okay, 1) => Ok(()),
            _ => Err(RedisError::from((redis::ErrorKind::Client, "the lock was not ours")).into()),
        }
    }
}

//! A lock with only the driver, without a library: `SET NX PX`, and a script that compares and deletes.
//!
//! The same driver with our settings: one multiplexed connection, RESP3, no delay, and a time-out on every
//! reply.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, ProtocolVersion, RedisError, Script,
    Value,
};

use crate::error::Error;

/// The length of the driver's request queue before senders have to wait; the same as ours.
const QUEUE: usize = 1_024;
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";
/// Our default ttl.
const TTL: Duration = Duration::from_secs(30);

/// A connection of the bare driver.
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

    /// A bare lock on `key`.
    pub(crate) fn lock(&self, key: String) -> BareLock {
        // As long as our tokens. It is always the same, because creating a token is not part of the bare
        // commands.
        let token = "0123456789abcdef0123456789abcdef".into();
        BareLock { connection: self.connection(), release: self.release.clone(), key, token }
    }
}

/// A client of the driver.
pub(crate) fn client(url: &str) -> Result<Client, Error> {
    // The driver knows only its own schemes.
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

/// A key that one task locks.
pub(crate) struct BareLock {
    connection: MultiplexedConnection,
    release: String,
    key: String,
    token: String,
}

impl BareLock {
    /// The commands that acquire and release the lock.
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

    /// Acquires and releases the lock.
    pub(crate) async fn cycle(&mut self) -> Result<(), Error> {
        let set: Value = self.set().query_async(&mut self.connection).await?;
        let freed: i64 = self.release().query_async(&mut self.connection).await?;
        match (set, freed) {
            (Value::Okay, 1) => Ok(()),
            _ => Err(RedisError::from((redis::ErrorKind::Client, "the lock was not ours")).into()),
        }
    }
}

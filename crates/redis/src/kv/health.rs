//! Checks the health of the server.

use std::time::Duration;

use tenure_kv::Error;

use crate::client::Client;
use crate::error::Cause;

/// The result of [`Client::health`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The round-trip time of a `PING`.
    pub round_trip: Duration,
    /// `master`, or `slave` if the server has become a replica since we connected.
    pub role: String,
    /// As the server reports it, such as `7.0.15`.
    pub version: String,
}

impl Client {
    /// Pings the server, and reads its role and version.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if it cannot be reached, [`is_unknown`](Error::is_unknown)
    /// if it does not answer in time, [`is_denied`](Error::is_denied) if it requires another password.
    pub async fn health(&self) -> Result<Health, Error> {
        let link = self.commands().any();
        let live = link.live().await?;
        let started = self.now();
        link.call(&live, redis::cmd("PING")).await?;
        let round_trip = self.now().since(started);
        let mut info = String::new();
        for section in ["server", "replication"] {
            let said = link.call(&live, redis::cmd("INFO").arg(section).clone()).await?;
            let said: String = redis::from_redis_value(said)
                .map_err(|_| link.error(Cause::Refused, "it does not say what it is"))?;
            info += &said;
        }
        let field = |name| field(&info, name).unwrap_or_default().to_owned();
        Ok(Health { round_trip, role: field("role"), version: field("redis_version") })
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

//! How long a server may take to connect and to reply.

use std::time::Duration;

use tenure_core::Error;

/// How long a connection may take to be ready: name, network, login, checks. Two seconds are enough for one
/// lost packet.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
/// How long a reply may take before it counts as unknown and the connection as dead. Longer than the usual
/// election of a leader, and far below the default ttl, so that a renewal can be retried on a new connection.
pub const RESPONSE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// The bounds of both time-outs. If they are above 8 s together, the ttl must be at least twice their sum;
/// the core checks this.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// See [`TIMEOUT_MIN`].
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// The time-outs of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// How long connecting may take.
    pub connect: Duration,
    /// How long a reply may take.
    pub response: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { connect: CONNECT_TIMEOUT_DEFAULT, response: RESPONSE_TIMEOUT_DEFAULT }
    }
}

impl Timeouts {
    /// How long one call may take: to connect, and to answer.
    pub fn call_time(self) -> Duration {
        self.connect + self.response
    }

    /// Checks that both are within their bounds.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid), with the name of the setter.
    pub fn validate(self) -> Result<(), Error> {
        let named = [("connect_timeout", self.connect), ("response_timeout", self.response)];
        match named.iter().find(|(_, timeout)| !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(timeout)) {
            None => Ok(()),
            Some((name, timeout)) => Err(Error::invalid(format!(
                "{name} ({timeout:?}) must be between {TIMEOUT_MIN:?} and {TIMEOUT_MAX:?}"
            ))),
        }
    }
}

//! What a URL cannot say: prefix and time-outs.
//!
//! In: a URL and setters. Out: a [`Redis`], connected and checked, or one that connects when it is
//! first asked.

use std::fmt;
use std::time::Duration;

use tenure_core::{Error, Token};

use crate::backend::Redis;
use crate::keys::Keys;
use crate::link::Target;
use crate::url::Place;
use crate::value::Author;

/// What all our keys start with.
pub const PREFIX_DEFAULT: &str = "tenure";
/// The longest prefix, in bytes.
pub const PREFIX_MAX: usize = 64;
/// How long a connection may take to be ready: name, network, password, checks. Two seconds ride
/// out a lost packet.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
/// How long a reply may take before it counts as unknown and the connection as dead. Far below the
/// default ttl, so that a renewal can be tried again on a new connection.
pub const RESPONSE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// The bounds of both time-outs. The engine gives up on any call after ten seconds.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(4);

/// How to reach a server; made by [`Redis::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    connect_timeout: Duration,
    response_timeout: Duration,
}

/// Without the URL: it may hold a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Builder {
            url: url.into(),
            prefix: PREFIX_DEFAULT.into(),
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            response_timeout: RESPONSE_TIMEOUT_DEFAULT,
        }
    }

    /// What all keys start with: `tenure` unless said otherwise. Lockers with different prefixes do
    /// not see each other's locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long connecting may take.
    pub fn connect_timeout(mut self, longest: Duration) -> Self {
        self.connect_timeout = longest;
        self
    }

    /// How long a reply may take. After that the answer is unknown, and the connection replaced.
    pub fn response_timeout(mut self, longest: Duration) -> Self {
        self.response_timeout = longest;
        self
    }

    /// Connects, and checks that the server can keep locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if the server cannot be reached,
    /// [`is_refused`](Error::is_refused) if it wants other credentials,
    /// [`is_unsupported`](Error::is_unsupported) if it is too old or a cluster.
    pub async fn connect(self) -> Result<Redis, Error> {
        let redis = self.connect_later()?;
        redis.check().await?;
        Ok(redis)
    }

    /// The same without connecting: that happens when it is first asked for something, on the
    /// runtime that asks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense.
    pub fn connect_later(self) -> Result<Redis, Error> {
        self.validate()?;
        let place = Place::parse(&self.url)?;
        let target = Target::new(place, self.connect_timeout, self.response_timeout)?;
        let id = Token::random().map_err(|error| {
            Error::invalid(format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Redis::on(target, Keys::new(&self.prefix), Author::new(id), self.connect_timeout))
    }

    fn validate(&self) -> Result<(), Error> {
        let prefix = &self.prefix;
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || prefix.chars().any(char::is_control) {
            let shown = prefix.escape_debug();
            return Err(Error::invalid(format!(
                "invalid prefix `{shown}`: one to {PREFIX_MAX} bytes without control characters"
            )));
        }
        bounded("connect_timeout", self.connect_timeout)?;
        bounded("response_timeout", self.response_timeout)
    }
}

fn bounded(name: &str, timeout: Duration) -> Result<(), Error> {
    match (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{name} ({timeout:?}) must be between {TIMEOUT_MIN:?} and {TIMEOUT_MAX:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that make no sense are named, with what is allowed.
    #[test]
    fn settings_are_checked() {
        let refused = |builder: Builder| builder.connect_later().unwrap_err().to_string();
        assert_eq!(
            refused(Redis::builder("redis://h").prefix("")),
            "invalid prefix ``: one to 64 bytes without control characters"
        );
        assert_eq!(
            refused(Redis::builder("redis://h").response_timeout(Duration::ZERO)),
            "response_timeout (0ns) must be between 1ms and 4s"
        );
    }

    /// t66: neither a builder nor what it makes shows the password.
    #[test]
    fn t66_debug_keeps_the_password() {
        let builder = Redis::builder("redis://u:hunter2@h");
        let shown = format!("{builder:?} {:?}", builder.clone().connect_later().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

//! What a URL cannot say: prefix, time-outs, number of connections, certificates.
//!
//! In: a URL and setters. Out: a [`Redis`] or a [`Client`], connected and checked, or one that
//! connects when it is first asked.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Clock;
use tenure_core::{Error, Token};

use crate::backend::Redis;
use crate::client::Client;
use crate::keys::{self, Keys};
use crate::link::{Dial, Login, Route, Target};
use crate::sentinel::Sentinels;
use crate::tls::{Ca, Secure, Tls};
use crate::url::{Address, Place};
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

/// How many connections carry commands. One reaches what a server can do; more help where a single
/// stream is the limit, as with TLS or a slow network.
pub const POOL_SIZE_DEFAULT: usize = 1;
/// The most connections for commands.
pub const POOL_SIZE_MAX: usize = 64;

/// The most replicas that a grant can wait for: no master has more, and a typing error would be an
/// endless refusal.
const REPLICAS_MAX: usize = 64;

/// How long a quorum's node must have run before its vote counts: the default ttl.
pub const QUARANTINE_DEFAULT: Duration = Duration::from_secs(30);

/// The bounds of both time-outs. The engine gives up on any call after ten seconds.
pub(crate) const TIMEOUT_MIN: Duration = Duration::from_millis(1);
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(4);

/// How to reach a server; made by [`Redis::builder`] or [`Client::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    connect_timeout: Duration,
    response_timeout: Duration,
    pool_size: usize,
    tls: Tls,
    debug: bool,
    replicas: Option<usize>,
    sentinel_login: Option<(Option<String>, String)>,
    quarantine: Option<Duration>,
}

/// Without the URL, which may hold a password, and without keys.
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
            pool_size: POOL_SIZE_DEFAULT,
            tls: Tls::default(),
            debug: false,
            replicas: None,
            sentinel_login: None,
            quarantine: Some(QUARANTINE_DEFAULT),
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

    /// How many connections carry commands: 1 unless said otherwise, at most 64. Everything about a
    /// key travels on the same one. Renewals have another of their own.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Has every grant wait until so many replicas have acknowledged it (`WAIT`); where fewer do within
    /// half of the response time-out, the lock is given back and asking for it is an error. 0 unless
    /// said otherwise; `?replicas=N` in the URL says the same.
    ///
    /// Fewer locks are lost with a master that dies; it is no consensus, and renewals do not wait.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = Some(count);
        self
    }

    /// Who we are to the Sentinels of a `redis+sentinel://` url, where they want to know; user and
    /// password in the URL are the master's. `sentinel_user` and `sentinel_password` in the URL's query
    /// say the same.
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some((user.map(Into::into), password.into()));
        self
    }

    /// Logs every verb of the client at level `debug`: the command, its key and how long it took,
    /// never the value.
    pub fn debug(mut self, on: bool) -> Self {
        self.debug = on;
        self
    }

    /// Trusts the certificate authorities in this PEM file, and not the system's. Read once, when
    /// the builder connects. Needs `rediss://`.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(Ca::File(path.into()));
        self
    }

    /// The same with the text of such a file.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.ca = Some(Ca::Pem(pem.into()));
        self
    }

    /// Shows this certificate to a server that asks for one: the chain and its private key, both as
    /// PEM. Needs `rediss://`.
    pub fn client_cert(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.client = Some((chain.into(), key.into()));
        self
    }

    /// Encrypts without checking who answers: anybody between us and the server can read and change
    /// everything. For trying things out; `#insecure` at the end of the URL says the same.
    pub fn insecure(mut self) -> Self {
        self.tls.insecure = true;
        self
    }

    /// How long a quorum's node must have run before its vote counts: it may have restarted and
    /// forgotten a lock, which must have ended by then. 30 s unless said otherwise, and never less than
    /// the ttl that is asked for. Say the longest ttl that any process uses there, if that is more.
    pub fn quarantine(mut self, longest_ttl: Duration) -> Self {
        self.quarantine = Some(longest_ttl);
        self
    }

    /// Counts the vote of a quorum's node however lately it started. Only for nodes that keep every
    /// write through a restart (`appendfsync always`), or that nobody has used yet: one that forgot a
    /// lock would grant it again. `?restarted=trusted` in the URL says the same.
    pub fn trust_restarted(mut self) -> Self {
        self.quarantine = None;
        self
    }

    /// Connects, and checks that the server can keep locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if the server cannot be reached,
    /// [`is_refused`](Error::is_refused) if it wants other credentials, or its certificate is not to
    /// be trusted, [`is_unsupported`](Error::is_unsupported) if it is too old or a cluster.
    pub async fn connect(self) -> Result<Redis, Error> {
        self.client().await.map(Redis::alone_on)
    }

    /// The same without connecting: that happens when it is first asked for something, on the
    /// runtime that asks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense.
    pub fn connect_later(self) -> Result<Redis, Error> {
        self.client_later().map(Redis::alone_on)
    }

    /// Connects as [`connect`](Self::connect) does, for several lockers to share.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    pub async fn client(self) -> Result<Client, Error> {
        let client = self.client_later()?;
        client.check().await?;
        Ok(client)
    }

    /// The same without connecting, as [`connect_later`](Self::connect_later) does.
    ///
    /// # Errors
    ///
    /// Those of [`connect_later`](Self::connect_later).
    pub fn client_later(self) -> Result<Client, Error> {
        self.client_at(&Place::parse(&self.url)?, &author()?)
    }

    pub(crate) fn client_at(&self, place: &Place, author: &Author) -> Result<Client, Error> {
        let (pool_size, target) = (self.validate()?, self.target(place)?);
        let (keys, replicas) = (Keys::new(&self.prefix), self.wanted_replicas(place)?);
        Ok(Client::new(target, pool_size, keys, author.clone(), self.debug, replicas))
    }

    pub(crate) fn prefix_said(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn wanted_replicas(&self, place: &Place) -> Result<Option<NonZeroUsize>, Error> {
        let count = self.replicas.or(place.replicas()).unwrap_or(0);
        match count <= REPLICAS_MAX {
            true => Ok(NonZeroUsize::new(count)),
            false => Err(Error::invalid(format!(
                "replicas ({count}) must be between 0 and {REPLICAS_MAX}"
            ))),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn quarantine_of_nodes(&self) -> Option<Duration> {
        self.quarantine
    }

    fn target(&self, place: &Place) -> Result<Target, Error> {
        let secure = self.secure(place)?;
        let route = self.route(place, secure.clone())?;
        Ok(Target::new(route, self.dial(login(place), secure)))
    }

    /// How to reach `place`, and others of its kind.
    pub(crate) fn dial_to(&self, place: &Place) -> Result<Dial, Error> {
        let secure = self.secure(place)?;
        match self.sentinel_login {
            None => Ok(self.dial(login(place), secure)),
            Some(_) => Err(self.no_sentinels()),
        }
    }

    fn no_sentinels(&self) -> Error {
        Error::invalid("`sentinel_login` needs a `redis+sentinel://` url")
    }

    /// Whom to trust, if at all.
    fn secure(&self, place: &Place) -> Result<Option<Secure>, Error> {
        let mut tls = self.tls.clone();
        tls.insecure |= place.is_insecure();
        let secure = match place.address() {
            Address::Tcp(host, _) if place.has_tls() => Some(tls.secure(host)?),
            _ => None,
        };
        if let (None, Some(setting)) = (&secure, tls.said()) {
            return Err(Error::invalid(format!("`{setting}` needs a `rediss://` url")));
        }
        if tls.insecure {
            tracing::warn!(address = %place.address(), "whoever answers is trusted (`insecure`)");
        }
        Ok(secure)
    }

    fn route(&self, place: &Place, secure: Option<Secure>) -> Result<Route, Error> {
        let Some(service) = place.service() else {
            return match self.sentinel_login {
                None => Ok(Route::Fixed(place.address().clone())),
                Some(_) => Err(self.no_sentinels()),
            };
        };
        let login = match &self.sentinel_login {
            None => service.login(),
            Some((user, password)) => {
                Login { user: user.as_deref(), password: Some(password), db: 0 }
            }
        };
        let dial = self.dial(login, secure);
        let (name, sentinels) = (service.name(), service.sentinels());
        Ok(Route::Sentinel(Arc::new(Sentinels::new(name, sentinels, dial, Clock::system()))))
    }

    fn dial(&self, login: Login<'_>, secure: Option<Secure>) -> Dial {
        Dial::new(login, secure, self.connect_timeout, self.response_timeout)
    }

    /// The number of connections, if all is well.
    pub(crate) fn validate(&self) -> Result<NonZeroUsize, Error> {
        let prefix = &self.prefix;
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || prefix.chars().any(char::is_control) {
            let shown = prefix.escape_debug();
            return Err(Error::invalid(format!(
                "invalid prefix `{shown}`: one to {PREFIX_MAX} bytes without control characters"
            )));
        }
        if let Some((other, ours)) = keys::other_prefix(prefix) {
            return Err(Error::invalid(format!(
                "invalid prefix `{prefix}`: `{ours}` is ours, and its keys could be those of the prefix \
                 `{other}`"
            )));
        }
        bounded("connect_timeout", self.connect_timeout)?;
        bounded("response_timeout", self.response_timeout)?;
        let size = self.pool_size;
        NonZeroUsize::new(size).filter(|size| size.get() <= POOL_SIZE_MAX).ok_or_else(|| {
            Error::invalid(format!("pool_size ({size}) must be between 1 and {POOL_SIZE_MAX}"))
        })
    }
}

fn login(place: &Place) -> Login<'_> {
    Login { user: place.user(), password: place.password(), db: place.db() }
}

/// This process under an id of its own.
pub(crate) fn author() -> Result<Author, Error> {
    let id = Token::random();
    id.map(Author::new)
        .map_err(|error| Error::invalid(format!("the system gives no random numbers: {error}")))
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
            refused(Redis::builder("redis://h").prefix("tenure:lock")),
            "invalid prefix `tenure:lock`: `lock` is ours, and its keys could be those of the prefix \
             `tenure`"
        );
        assert_eq!(
            refused(Redis::builder("redis://h").response_timeout(Duration::ZERO)),
            "response_timeout (0ns) must be between 1ms and 4s"
        );
        for size in [0, 65] {
            assert_eq!(
                refused(Redis::builder("redis://h").pool_size(size)),
                format!("pool_size ({size}) must be between 1 and 64")
            );
        }
    }

    /// t65: certificates that make no sense are refused by their setting, without their text.
    #[test]
    fn t65_certificates_are_checked() {
        let refused = |builder: Builder| builder.connect_later().unwrap_err().to_string();
        let (plain, tls) = (Redis::builder("redis://h"), Redis::builder("rediss://h"));
        assert_eq!(refused(plain.clone().ca_pem("x")), "`ca_pem` needs a `rediss://` url");
        assert_eq!(refused(plain.insecure()), "`insecure` needs a `rediss://` url");
        assert_eq!(
            refused(tls.clone().ca_pem("-----BEGIN hunter2")),
            "invalid `ca_pem`: it is not a certificate in PEM form"
        );
        assert_eq!(
            refused(tls.clone().ca_file("/no/such.pem")),
            "invalid `ca_file`: cannot read `/no/such.pem`: No such file or directory (os error 2)"
        );
        assert_eq!(
            refused(Redis::builder("rediss://h#insecure").ca_pem("x")),
            "a CA to trust and `insecure`, which trusts anybody, contradict each other"
        );
        assert_eq!(
            refused(tls.insecure().client_cert("hunter2", "hunter2")),
            "invalid `client_cert`: it is not a certificate in PEM form"
        );
    }

    /// t66: neither a builder nor what it makes shows the password.
    #[test]
    fn t66_debug_keeps_the_password() {
        let builder = Redis::builder("redis://u:hunter2@h");
        let client = builder.clone().client_later().unwrap();
        assert!(!format!("{client:?}").contains("hunter2"));
        let shown = format!("{builder:?} {:?}", builder.clone().connect_later().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

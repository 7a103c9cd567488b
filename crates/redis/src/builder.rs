//! Options that a URL does not have: prefix, time-outs, number of connections, certificates.
//!
//! In: a URL and setters. Out: a [`Redis`] or a [`Client`], connected and checked, or one that connects with
//! its first request.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Clock;
use tenure_core::{Error, Token};
use tenure_net::{Timeouts, Tls, server_name};

use crate::client::{Client, ClientOptions};
use crate::link::{Connector, Server, Target};
use crate::sentinel::Sentinels;
use crate::single::Redis;
use crate::url::{Address, Endpoint, Login};
use crate::wire::keys::{self, Keys};
use crate::wire::lock_key::{LockKey, PREFIX_MAX};
use crate::wire::value::ValueWriter;
use tokio_rustls::rustls::ClientConfig;

/// The start of all our keys.
pub const PREFIX_DEFAULT: &str = "tenure";
/// How many connections are used for commands. One is enough for all that a server can do; more help if a
/// single stream is the limit, as with TLS or a slow network.
pub const POOL_SIZE_DEFAULT: usize = 1;
/// The most connections for commands.
pub const POOL_SIZE_MAX: usize = 64;

/// The most replicas that a grant can wait for: no master has more, and with a typing error every lock would
/// be refused for ever.
const REPLICAS_MAX: usize = 64;

/// How long a quorum's node must have run before its vote counts: the default ttl.
pub const QUARANTINE_DEFAULT: Duration = Duration::from_secs(30);

/// How to reach a server; made by [`Redis::builder`] or [`Client::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    lock_key: Option<String>,
    timeouts: Timeouts,
    pool_size: usize,
    tls: Tls,
    debug: bool,
    replicas: Option<usize>,
    sentinel_login: Option<(Option<String>, String)>,
    quarantine: Option<Duration>,
}

/// Without the URL, which may contain a password, and without keys.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Redis {
    /// Connects to the server at `url`, and checks that it can store locks.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts from `url`, for options that a URL does not have.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Client {
    /// Connects to the server at `url`, and checks that it can store locks.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).client().await
    }

    /// Starts from `url`, for options that a URL does not have; [`Builder::client`] ends it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

tenure_net::connection_setters!(Builder, "rediss://");

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Builder {
            url: url.into(),
            prefix: PREFIX_DEFAULT.into(),
            lock_key: None,
            timeouts: Timeouts::default(),
            pool_size: POOL_SIZE_DEFAULT,
            tls: Tls::default(),
            debug: false,
            replicas: None,
            sentinel_login: None,
            quarantine: Some(QUARANTINE_DEFAULT),
        }
    }

    /// A template for the key of a lock on the server: `distributed_lock:{key}`, where `{key}` stands for the
    /// name of the lock, or `{key}` for the name alone. `?lock_key=…` in the URL is the same.
    ///
    /// This is for locks that other programs acquire with `SET NX PX`. Both kinds exclude each other, and
    /// each releases and renews only its own locks. Without a template the key is `<prefix>:lock:<name>`. All
    /// other keys of the lock start with the prefix. Every process that shares these locks must use the same
    /// prefix.
    pub fn lock_key(mut self, template: impl Into<String>) -> Self {
        self.lock_key = Some(template.into());
        self
    }

    /// How many connections are used for commands: 1 by default, at most 64. All requests about a key use the
    /// same one. Renewals have another connection of their own.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Makes every grant wait until so many replicas have acknowledged it (`WAIT`). If fewer do within half
    /// of the response time-out, the lock is released and the request for it is an error. 0 by default;
    /// `?replicas=N` in the URL is the same.
    ///
    /// Fewer locks are lost with a master that dies. It is not a consensus, and renewals do not wait.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = Some(count);
        self
    }

    /// The login for the Sentinels of a `redis+sentinel://` URL, if they require one; user and password in
    /// the URL are the master's. `sentinel_user` and `sentinel_password` in the URL's query are the same.
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some((user.map(Into::into), password.into()));
        self
    }

    /// Logs every verb of the client at level `debug`: the command, its key and how long it took, never the
    /// value.
    pub fn debug(mut self, on: bool) -> Self {
        self.debug = on;
        self
    }

    /// How long a quorum's node must have run before its vote counts: it may have restarted and forgotten a
    /// lock, which must have ended by then. 30 s by default, and never less than the ttl of the claim. Set
    /// the longest ttl that any process uses there, if it is more.
    pub fn quarantine(mut self, longest_ttl: Duration) -> Self {
        self.quarantine = Some(longest_ttl);
        self
    }

    /// Counts the vote of a quorum's node however recently it started. Only for nodes that keep every write
    /// through a restart (`appendfsync always`), or that have never been used: a node that forgot a lock
    /// would grant it again. `?restarted=trusted` in the URL is the same.
    pub fn trust_restarted(mut self) -> Self {
        self.quarantine = None;
        self
    }

    /// Connects, and checks that the server can store locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if the server cannot be reached,
    /// [`is_refused`](Error::is_refused) if it requires other credentials or its certificate cannot be
    /// trusted, [`is_unsupported`](Error::is_unsupported) if it is too old or a cluster.
    pub async fn connect(self) -> Result<Redis, Error> {
        self.client().await.map(Redis::owning)
    }

    /// Like [`connect`](Self::connect), but connects with the first request, on the runtime of that request.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense.
    pub fn connect_later(self) -> Result<Redis, Error> {
        self.client_later().map(Redis::owning)
    }

    /// Connects like [`connect`](Self::connect), for several lockers to share.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    pub async fn client(self) -> Result<Client, Error> {
        Clock::system().must_run()?;
        let client = self.client_later()?;
        client.check().await?;
        Ok(client)
    }

    /// A client that connects with its first request, like [`connect_later`](Self::connect_later).
    ///
    /// # Errors
    ///
    /// The errors of [`connect_later`](Self::connect_later).
    pub fn client_later(self) -> Result<Client, Error> {
        self.client_at(&Endpoint::parse(&self.url)?, &writer()?)
    }

    pub(crate) fn client_at(
        &self,
        endpoint: &Endpoint,
        writer: &ValueWriter,
    ) -> Result<Client, Error> {
        let (pool_size, secure) = (self.validate()?, self.secure(endpoint)?);
        let sentinels = self.sentinels(endpoint, secure.clone())?;
        let connector = self.connector(endpoint.login(), secure);
        let target = match &sentinels {
            None => Target::new(endpoint.address().clone(), connector),
            Some(sentinels) => Target::new(sentinels.clone(), connector),
        };
        let keys = Keys::new(&self.prefix, self.template(endpoint)?);
        let (writer, replicas) = (writer.clone(), self.wanted_replicas(endpoint)?);
        let options =
            ClientOptions { pool_size, keys, writer, debug: self.debug, replicas, sentinels };
        Ok(Client::new(Arc::new(Server::new(target, Clock::system())), options))
    }

    pub(crate) fn prefix_name(&self) -> &str {
        &self.prefix
    }

    /// The template for the keys of locks. Two different ones are refused: either could be meant, and the
    /// wrong one would lock other keys than the rest of the fleet.
    pub(crate) fn template(&self, endpoint: &Endpoint) -> Result<Option<LockKey>, Error> {
        match (self.lock_key.as_deref(), endpoint.lock_key()) {
            (Some(said), Some(in_url)) if said != in_url => Err(Error::invalid(format!(
                "lock_key `{}` is not that of the url, `{}`",
                said.escape_debug(),
                in_url.escape_debug()
            ))),
            (Some(said), _) | (None, Some(said)) => LockKey::parse(said, &self.prefix),
            (None, None) => Ok(None),
        }
    }

    pub(crate) fn wanted_replicas(
        &self,
        endpoint: &Endpoint,
    ) -> Result<Option<NonZeroUsize>, Error> {
        let count = self.replicas.or(endpoint.replicas()).unwrap_or(0);
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

    /// How to reach `endpoint`, and others of its kind.
    pub(crate) fn connector_to(&self, endpoint: &Endpoint) -> Result<Connector, Error> {
        let secure = self.secure(endpoint)?;
        match self.sentinel_login {
            None => Ok(self.connector(endpoint.login(), secure)),
            Some(_) => Err(self.no_sentinels()),
        }
    }

    fn no_sentinels(&self) -> Error {
        Error::invalid("`sentinel_login` needs a `redis+sentinel://` url")
    }

    /// The TLS configuration, if the URL has TLS.
    fn secure(&self, endpoint: &Endpoint) -> Result<Option<Arc<ClientConfig>>, Error> {
        let mut tls = self.tls.clone();
        tls.insecure |= endpoint.is_insecure();
        let secure = match endpoint.address() {
            Address::Tcp(host, _) if endpoint.has_tls() => {
                server_name(host)?;
                Some(tls.config(None)?)
            }
            _ => None,
        };
        if let (None, Some(setting)) = (&secure, tls.needs_tls()) {
            return Err(Error::invalid(format!("`{setting}` needs a `rediss://` url")));
        }
        if tls.insecure {
            tracing::warn!(address = %endpoint.address(), "any server that answers is trusted (`insecure`)");
        }
        Ok(secure)
    }

    /// The Sentinels that know the server, if the URL names them.
    fn sentinels(
        &self,
        endpoint: &Endpoint,
        secure: Option<Arc<ClientConfig>>,
    ) -> Result<Option<Arc<Sentinels>>, Error> {
        let Some(service) = endpoint.service() else {
            return match self.sentinel_login {
                None => Ok(None),
                Some(_) => Err(self.no_sentinels()),
            };
        };
        let login = match &self.sentinel_login {
            None => service.login(),
            Some((user, password)) => {
                Login { user: user.as_deref(), password: Some(password), db: 0 }
            }
        };
        let connector = self.connector(login, secure);
        let (name, sentinels) = (service.name(), service.sentinels());
        Ok(Some(Arc::new(Sentinels::new(name, sentinels, connector, Clock::system()))))
    }

    fn connector(&self, login: Login<'_>, secure: Option<Arc<ClientConfig>>) -> Connector {
        Connector::new(login, secure, self.timeouts)
    }

    /// Checks the settings. Returns the number of connections.
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
        self.timeouts.validate()?;
        let size = self.pool_size;
        NonZeroUsize::new(size).filter(|size| size.get() <= POOL_SIZE_MAX).ok_or_else(|| {
            Error::invalid(format!("pool_size ({size}) must be between 1 and {POOL_SIZE_MAX}"))
        })
    }
}

/// This process under a random id.
pub(crate) fn writer() -> Result<ValueWriter, Error> {
    let id = Token::random();
    id.map(ValueWriter::new)
        .map_err(|error| Error::invalid(format!("the system gives no random numbers: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that make no sense are named, with the allowed values.
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
            "response_timeout (0ns) must be between 1ms and 30s"
        );
        for size in [0, 65] {
            assert_eq!(
                refused(Redis::builder("redis://h").pool_size(size)),
                format!("pool_size ({size}) must be between 1 and 64")
            );
        }
    }

    /// t65: certificates that make no sense are refused by the name of their setting, without their text.
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

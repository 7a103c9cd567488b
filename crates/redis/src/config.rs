//! `[redis]` of `tenure.toml`, the environment and code; each overrides the one before.
//!
//! In: the fields by name. Out: a [`Builder`], or a connected [`Client`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tenure_core::Error;
use tenure_core::config::{self, Field, Origins, Settings, duration};
use tenure_net::{RESPONSE_TIMEOUT_DEFAULT, TIMEOUT_MAX, TIMEOUT_MIN};

use crate::builder::{Builder, POOL_SIZE_DEFAULT, POOL_SIZE_MAX, PREFIX_DEFAULT};
use crate::client::Client;

const HOST_DEFAULT: &str = "localhost";
const PORT_DEFAULT: u16 = 6379;
/// The fields that select the server and how its identity is checked.
const SERVER: [&str; 5] = ["host", "port", "tls", "ca_file", "insecure"];

/// The sections of `tenure.toml` that other modules read.
const OTHERS: &[&str] = &["lock"];

static FIELDS: [Field; 14] = [
    Field::new("host", &[]),
    Field::new("port", &[]),
    Field::new("database", &[]),
    Field::new("pool_size", &["poolSize", "max_connections", "maxConnections"]),
    Field::new("username", &[]),
    Field::secret("password"),
    Field::new("timeout", &["timeout_ms", "timeoutMs"]),
    Field::new("debug", &[]),
    Field::new("prefix", &[]),
    Field::new("tls", &[]),
    Field::new("ca_file", &[]),
    Field::new("client_cert_file", &[]),
    Field::new("client_key_file", &[]),
    Field::new("insecure", &[]),
];

/// How to reach a server, field by field.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_redis::Config;
///
/// let redis = Config::read()?.prefix("billing").connect().await?;
/// # drop(redis);
/// # Ok(()) }
/// ```
///
/// | field | also | default |
/// |---|---|---|
/// | `host` | | `localhost` |
/// | `port` | | 6379 |
/// | `database` | | 0 |
/// | `pool_size` | `poolSize`, `max_connections`, `maxConnections` | 1 |
/// | `username`, `password` | | none |
/// | `timeout`: to connect, and to answer; `2s` | `timeout_ms`, `timeoutMs`: `2000` | 2 s |
/// | `debug`: log every command | | `false` |
/// | `prefix` | | `tenure` |
/// | `tls`: encrypt, and check the server's certificate | | `false` |
/// | `ca_file`: trust the authorities in this PEM file, and not the system's | | none |
/// | `client_cert_file`, `client_key_file`: our certificate and its key, PEM files | | none |
/// | `insecure`: encrypt without checking the server's certificate | | `false` |
///
/// The last four need `tls = true`.
/// In the environment `pool_size` is `TENURE_REDIS_POOL_SIZE`, and so on.
#[derive(Clone)]
#[must_use = "a configuration does nothing until it connects"]
pub struct Config {
    host: String,
    port: u16,
    database: u32,
    pool_size: usize,
    username: Option<String>,
    password: Option<String>,
    timeout: Duration,
    debug: bool,
    prefix: String,
    tls: Tls,
    /// The origins of the fields. Fields set by code and defaults have none.
    from: Origins,
}

/// The TLS settings. The files are read when a builder is made.
#[derive(Clone, Debug, Default)]
struct Tls {
    on: bool,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure: bool,
}

impl Tls {
    fn of(given: &Settings) -> Result<Self, Error> {
        let path = |name| given.get(name, "a path", |text| (!text.is_empty()).then(|| text.into()));
        Ok(Tls {
            on: flag(given, "tls")?,
            ca_file: path("ca_file")?,
            cert_file: path("client_cert_file")?,
            key_file: path("client_key_file")?,
            insecure: flag(given, "insecure")?,
        })
    }

    /// Rejects settings that contradict each other.
    fn check(&self) -> Result<(), Error> {
        let said = [
            ("ca_file", self.ca_file.is_some()),
            ("client_cert_file", self.cert_file.is_some()),
            ("client_key_file", self.key_file.is_some()),
            ("insecure", self.insecure),
        ];
        match said.iter().find(|(_, said)| *said && !self.on) {
            Some((name, _)) => Err(Error::invalid(format!("`{name}` needs `tls = true`"))),
            None if self.cert_file.is_some() != self.key_file.is_some() => {
                Err(Error::invalid("`client_cert_file` and `client_key_file` need each other"))
            }
            None => Ok(()),
        }
    }

    fn apply(&self, mut builder: Builder) -> Result<Builder, Error> {
        if let Some(path) = &self.ca_file {
            builder = builder.ca_file(path);
        }
        if let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) {
            let (cert, key) = (read("client_cert_file", cert)?, read("client_key_file", key)?);
            builder = builder.client_cert(cert, key);
        }
        Ok(builder)
    }
}

fn read(field: &str, path: &Path) -> Result<Vec<u8>, Error> {
    let shown = path.display();
    std::fs::read(path).map_err(|error| {
        Error::invalid(format!("invalid `{field}`: cannot read `{shown}`: {error}"))
    })
}

/// Without the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("host", &self.host).field("port", &self.port).field("database", &self.database);
        shown.field("pool_size", &self.pool_size).field("username", &self.username);
        shown.field("timeout", &self.timeout).field("debug", &self.debug);
        shown.field("prefix", &self.prefix).field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            host: HOST_DEFAULT.into(),
            port: PORT_DEFAULT,
            database: 0,
            pool_size: POOL_SIZE_DEFAULT,
            username: None,
            password: None,
            timeout: RESPONSE_TIMEOUT_DEFAULT,
            debug: false,
            prefix: PREFIX_DEFAULT.into(),
            tls: Tls::default(),
            from: Origins::default(),
        }
    }
}

impl Config {
    /// The defaults, the [files](config::files) that exist, and the environment.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a file that cannot be read, and for an unknown or invalid field;
    /// the message names it.
    pub fn read() -> Result<Self, Error> {
        Self::if_given(&config::files()).map(Option::unwrap_or_default)
    }

    /// Like [`read`](Self::read), with another file.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::if_given(&[path.as_ref()]).map(Option::unwrap_or_default)
    }

    /// Like [`read`](Self::read), with several files; later ones override earlier ones. `None` if neither the
    /// files nor the environment set any field.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn if_given(paths: &[impl AsRef<Path>]) -> Result<Option<Self>, Error> {
        let settings = Settings::new("redis", OTHERS, &FIELDS);
        let settings = paths.iter().try_fold(settings, |all, path| all.file(path.as_ref()))?;
        let settings = settings.environment()?;
        if settings.is_empty() { Ok(None) } else { Self::of(&settings).map(Some) }
    }

    fn of(given: &Settings) -> Result<Self, Error> {
        let text = |name| given.get(name, "", |text| Some(text.to_owned()));
        let some =
            |name| given.get(name, "text", |text| (!text.is_empty()).then(|| text.to_owned()));
        let default = Self::default();
        Ok(Config {
            host: some("host")?.unwrap_or(default.host),
            port: given.get("port", "a port, 1 to 65535", port)?.unwrap_or(default.port),
            database: given
                .get("database", "the number of a database", |text| text.parse().ok())?
                .unwrap_or(default.database),
            pool_size: given
                .get("pool_size", &format!("a number from 1 to {POOL_SIZE_MAX}"), pool_size)?
                .unwrap_or(default.pool_size),
            username: text("username")?.filter(|name| !name.is_empty()),
            password: text("password")?.filter(|password| !password.is_empty()),
            timeout: given.get("timeout", &timeout_form(), timeout)?.unwrap_or(default.timeout),
            debug: flag(given, "debug")?,
            prefix: some("prefix")?.unwrap_or(default.prefix),
            tls: Tls::of(given)?,
            from: given.origins(),
        })
    }

    /// The host of the server.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self.by_code("host")
    }

    /// The port of the server.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self.by_code("port")
    }

    /// The number of the database.
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// How many connections carry commands; see [`Builder::pool_size`].
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self.by_code("pool_size")
    }

    /// The user name. Needs a [`password`](Self::password).
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.username = Some(name.into());
        self.by_code("username")
    }

    /// The password of the user.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self.by_code("password")
    }

    /// How long connecting may take, and how long an answer may take: each at most 30 s. If it is more than 4
    /// s, locks need a ttl of at least four times as long.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.timeout = longest;
        self.by_code("timeout")
    }

    /// Logs every command; see [`Builder::debug`].
    pub fn debug(mut self, on: bool) -> Self {
        self.debug = on;
        self
    }

    /// The prefix of all keys; see [`Builder::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self.by_code("prefix")
    }

    /// Encrypts, and checks the server's certificate.
    pub fn tls(mut self, on: bool) -> Self {
        self.tls.on = on;
        self.by_code("tls")
    }

    /// Trusts the certificate authorities in this PEM file, and not the system's. Needs [`tls`](Self::tls).
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca_file = Some(path.into());
        self.by_code("ca_file")
    }

    /// Presents this certificate to a server that requires one: the chain and its private key, two PEM files.
    /// Needs [`tls`](Self::tls).
    pub fn client_cert_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.tls.cert_file, self.tls.key_file) = (Some(chain.into()), Some(key.into()));
        self.by_code("client_cert_file").by_code("client_key_file")
    }

    /// Encrypts without checking the server's certificate; see [`Builder::insecure`]. Needs
    /// [`tls`](Self::tls).
    pub fn insecure(mut self, on: bool) -> Self {
        self.tls.insecure = on;
        self.by_code("insecure")
    }

    /// A value set by code is trusted, wherever the field was read before.
    fn by_code(mut self, field: &str) -> Self {
        self.from.forget(field);
        self
    }

    /// The origins of the fields that were not set by code: for messages.
    pub fn origins(&self) -> &Origins {
        &self.from
    }

    /// Connects to the server.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::client`].
    pub async fn connect(&self) -> Result<Client, Error> {
        let client = self.builder()?.client().await;
        client.map_err(|error| self.from.blame(error, self.from.get("host")))
    }

    /// A builder with these settings, for further ones before connecting.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid field.
    pub fn builder(&self) -> Result<Builder, Error> {
        self.builder_at(&self.url()?)
    }

    /// Like [`builder`](Self::builder), for the server at `url`. Prefix, time-out, number of connections and
    /// `debug` apply to it too; certificates only if `url` is [`url`](Self::url).
    ///
    /// # Errors
    ///
    /// As [`builder`](Self::builder).
    pub fn builder_at(&self, url: &str) -> Result<Builder, Error> {
        if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&self.timeout) {
            let (given, form) = (self.timeout, timeout_form());
            return Err(Error::invalid(format!("timeout ({given:?}) is not {form}")));
        }
        let builder = Builder::new(url).prefix(&self.prefix).pool_size(self.pool_size);
        let builder = builder.connect_timeout(self.timeout).response_timeout(self.timeout);
        let builder = builder.debug(self.debug);
        match self.url() {
            Ok(own) if own == url => {
                self.tls.apply(builder).map_err(|error| self.from.blame(error, None))
            }
            _ => Ok(builder),
        }
    }

    /// The server as a URL, with the password: to connect, not to display.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a user without a password, and for TLS settings that contradict
    /// each other. Also if a file in the working directory names the server or turns off the check of its
    /// certificate, and the password comes from elsewhere.
    pub fn url(&self) -> Result<String, Error> {
        self.checked_url().map_err(|error| self.from.blame(error, None))
    }

    fn checked_url(&self) -> Result<String, Error> {
        self.tls.check()?;
        // A file that only turns TLS on weakens nothing.
        let weakens = |name: &&str| self.password.is_some() && !(*name == "tls" && self.tls.on);
        for name in SERVER.into_iter().filter(weakens) {
            if let Some(server) = self.from.get(name) {
                server.may_receive("`password`", self.from.get("password"))?;
            }
        }
        let quoted = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let user = quoted(self.username.as_deref().unwrap_or_default());
        let who = match &self.password {
            Some(password) => format!("{user}:{}@", quoted(password)),
            None if user.is_empty() => String::new(),
            None => return Err(Error::invalid("`username` needs a `password`")),
        };
        // An IPv6 address has colons, so it needs brackets.
        let host = if self.host.contains(':') {
            format!("[{}]", self.host.trim_matches(['[', ']']))
        } else {
            quoted(&self.host)
        };
        let (port, database) = (self.port, self.database);
        let scheme = if self.tls.on { "rediss" } else { "redis" };
        let trust = if self.tls.insecure { "#insecure" } else { "" };
        Ok(format!("{scheme}://{who}{host}:{port}/{database}{trust}"))
    }
}

fn flag(given: &Settings, name: &str) -> Result<bool, Error> {
    given.get(name, "`true` or `false`", |text| text.parse().ok()).map(Option::unwrap_or_default)
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

fn pool_size(text: &str) -> Option<usize> {
    text.parse().ok().filter(|size| (1..=POOL_SIZE_MAX).contains(size))
}

fn timeout(text: &str) -> Option<Duration> {
    duration(text).filter(|timeout| (TIMEOUT_MIN..=TIMEOUT_MAX).contains(timeout))
}

fn timeout_form() -> String {
    format!("a time from {TIMEOUT_MIN:?} to {TIMEOUT_MAX:?}")
}

#[cfg(test)]
mod tests;

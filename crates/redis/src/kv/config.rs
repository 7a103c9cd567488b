//! `[redis]` of `tenure.toml`, the environment and code, each stronger than the one before.
//!
//! In: the fields by name. Out: a [`Builder`], or a [`Client`] that is connected.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tenure_core::Error;
use tenure_core::config::{FILE, Field, Origin, Settings, duration};

use crate::builder::{
    Builder, POOL_SIZE_DEFAULT, POOL_SIZE_MAX, PREFIX_DEFAULT, RESPONSE_TIMEOUT_DEFAULT,
    TIMEOUT_MAX, TIMEOUT_MIN,
};
use crate::client::Client;

const HOST_DEFAULT: &str = "localhost";
const PORT_DEFAULT: u16 = 6379;

static FIELDS: [Field; 9] = [
    Field::new("host", &[]),
    Field::new("port", &[]),
    Field::new("database", &[]),
    Field::new("pool_size", &["poolSize", "max_connections", "maxConnections"]),
    Field::new("username", &[]),
    Field::secret("password"),
    Field::new("timeout", &["timeout_ms", "timeoutMs"]),
    Field::new("debug", &[]),
    Field::new("prefix", &[]),
];

/// How to reach a server, field by field.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_redis::kv::Config;
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
/// | `timeout`: to connect, and to answer; `2s`, or milliseconds | `timeout_ms`, `timeoutMs` | 2 s |
/// | `debug`: log every command | | `false` |
/// | `prefix` | | `tenure` |
///
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
    /// Where host, port and password were read; `None` if they are by default or by code.
    host_from: Option<Origin>,
    port_from: Option<Origin>,
    password_from: Option<Origin>,
}

/// Without the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("host", &self.host).field("port", &self.port).field("database", &self.database);
        shown.field("pool_size", &self.pool_size).field("username", &self.username);
        shown.field("timeout", &self.timeout).field("debug", &self.debug);
        shown.field("prefix", &self.prefix).finish_non_exhaustive()
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
            host_from: None,
            port_from: None,
            password_from: None,
        }
    }
}

impl Config {
    /// The defaults, `tenure.toml` in the working directory if there is one, and the environment.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a file that cannot be read, and for a field that is not
    /// known or makes no sense; the message names it.
    pub fn read() -> Result<Self, Error> {
        Self::read_file(FILE)
    }

    /// The same with another file.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::if_given(&[path.as_ref()]).map(Option::unwrap_or_default)
    }

    /// The same with several files, the last the strongest; `None` if neither they nor the environment
    /// say anything.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn if_given(paths: &[impl AsRef<Path>]) -> Result<Option<Self>, Error> {
        let settings = Settings::new("redis", &FIELDS);
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
            debug: given
                .get("debug", "`true` or `false`", |text| text.parse().ok())?
                .unwrap_or(default.debug),
            prefix: some("prefix")?.unwrap_or(default.prefix),
            host_from: given.origin("host"),
            port_from: given.origin("port"),
            password_from: given.origin("password"),
        })
    }

    /// Where the server runs.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        (self.host, self.host_from) = (host.into(), None);
        self
    }

    /// Where it listens.
    pub fn port(mut self, port: u16) -> Self {
        (self.port, self.port_from) = (port, None);
        self
    }

    /// Which of its databases.
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// How many connections carry commands; see [`Builder::pool_size`].
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Who we are to it. Needs a [`password`](Self::password).
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.username = Some(name.into());
        self
    }

    /// What proves it.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        (self.password, self.password_from) = (Some(password.into()), None);
        self
    }

    /// How long connecting may take, and how long an answer.
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.timeout = longest;
        self
    }

    /// Logs every command; see [`Builder::debug`].
    pub fn debug(mut self, on: bool) -> Self {
        self.debug = on;
        self
    }

    /// What all keys start with; see [`Builder::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::client`].
    pub async fn connect(&self) -> Result<Client, Error> {
        self.builder()?.client().await
    }

    /// The same, to say more before connecting.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a field that makes no sense.
    pub fn builder(&self) -> Result<Builder, Error> {
        self.builder_at(&self.url()?)
    }

    /// The same for the server that `url` names: what else is said here goes for it too.
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
        Ok(builder.debug(self.debug))
    }

    /// The server as a URL, with the password: for whoever connects, not for readers.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a user without a password, and for a password that was not read
    /// where the server is named, if that is a file in the working directory.
    pub fn url(&self) -> Result<String, Error> {
        for server in [&self.host_from, &self.port_from].into_iter().flatten() {
            if self.password.is_some() {
                server.may_receive("`password`", self.password_from.as_ref())?;
            }
        }
        let quoted = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let user = quoted(self.username.as_deref().unwrap_or_default());
        let who = match &self.password {
            Some(password) => format!("{user}:{}@", quoted(password)),
            None if user.is_empty() => String::new(),
            None => return Err(Error::invalid("`username` needs a `password`")),
        };
        // An IPv6 address has colons, which only stand in brackets.
        let host = if self.host.contains(':') {
            format!("[{}]", self.host.trim_matches(['[', ']']))
        } else {
            quoted(&self.host)
        };
        let (port, database) = (self.port, self.database);
        Ok(format!("redis://{who}{host}:{port}/{database}"))
    }
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
mod tests {
    use super::*;

    fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let settings = Settings::new("redis", &FIELDS).toml(toml, "tenure.toml");
        let settings = settings.and_then(|settings| settings.variables(all));
        settings.and_then(|settings| Config::of(&settings)).map_err(|error| error.to_string())
    }

    fn url(toml: &str) -> String {
        read(toml, &[]).unwrap().url().unwrap()
    }

    /// D9: nothing given is a server on this machine.
    #[test]
    fn d9_defaults() {
        let config = read("", &[]).unwrap();
        assert_eq!(config.url().unwrap(), "redis://localhost:6379/0");
        assert_eq!((config.pool_size, config.timeout), (1, Duration::from_secs(2)));
        assert_eq!((config.prefix.as_str(), config.debug), ("tenure", false));
    }

    /// D9: every field by every name.
    #[test]
    fn d9_fields_and_their_other_names() {
        assert_eq!(
            url(
                "[redis]\nhost = '::1'\nport = 7\ndatabase = 3\nusername = 'a@b'\npassword = 'p:/%'"
            ),
            "redis://a%40b:p%3A%2F%25@[::1]:7/3"
        );
        for name in ["pool_size", "poolSize", "max_connections", "maxConnections"] {
            assert_eq!(read(&format!("redis.{name} = 5"), &[]).unwrap().pool_size, 5, "{name}");
        }
        for name in ["timeout", "timeout_ms", "timeoutMs"] {
            let config = read(&format!("redis.{name} = 700"), &[]).unwrap();
            assert_eq!(config.timeout, Duration::from_millis(700), "{name}");
        }
        let config =
            read("redis = { timeout = '3s', debug = true, prefix = 'shop' }", &[]).unwrap();
        assert_eq!((config.timeout, config.debug), (Duration::from_secs(3), true));
        assert_eq!(config.prefix, "shop");
    }

    /// D9: file, environment, code, each stronger than the one before.
    #[test]
    fn d9_each_is_stronger_than_the_one_before() {
        let toml = "[redis]\nhost = 'file'\nport = 1\nmaxConnections = 2";
        let variables = [("TENURE_REDIS_PORT", "2"), ("TENURE_REDIS_POOL_SIZE", "3")];
        let config = read(toml, &variables).unwrap().pool_size(4);
        assert_eq!((config.host.as_str(), config.port, config.pool_size), ("file", 2, 4));
    }

    /// D9: what is invalid is refused with the field's name and what is allowed.
    #[test]
    fn d9_invalid_values_are_named() {
        let refused = |toml: &str| read(&format!("redis.{toml}"), &[]).unwrap_err();
        assert_eq!(
            refused("port = 70000"),
            "invalid `redis.port` in `tenure.toml`: `70000` is not a port, 1 to 65535"
        );
        assert_eq!(
            refused("maxConnections = 0"),
            "invalid `redis.maxConnections` in `tenure.toml`: `0` is not a number from 1 to 64"
        );
        assert_eq!(
            refused("timeoutMs = 5000"),
            "invalid `redis.timeoutMs` in `tenure.toml`: `5000` is not a time from 1ms to 4s"
        );
        for field in ["database = -1", "debug = 'yes'", "host = ''", "prefix = ''"] {
            let name = field.split_once(' ').unwrap().0;
            assert!(refused(field).starts_with(&format!("invalid `redis.{name}` in")), "{field}");
        }
        assert!(refused("pass = 'hunter2'").starts_with("unknown field `redis.pass` in"));
        assert_eq!(
            read("", &[("TENURE_REDIS_PORT", "x")]).unwrap_err(),
            "invalid `TENURE_REDIS_PORT` in the environment: `x` is not a port, 1 to 65535"
        );
        let refused = |config: Config| config.builder().unwrap_err().to_string();
        assert_eq!(refused(Config::default().username("u")), "`username` needs a `password`");
        assert_eq!(
            refused(Config::default().timeout(Duration::ZERO)),
            "timeout (0ns) is not a time from 1ms to 4s"
        );
    }

    /// A password goes to the server that the working directory's file names only if that file has it.
    #[test]
    fn t66_passwords_for_the_working_directory() {
        let password = [("TENURE_REDIS_PASSWORD", "hunter2")];
        let url = |toml: &str| {
            let config = read(toml, &password).unwrap();
            config.url().map_err(|error| error.to_string())
        };
        for field in ["host = 'h'", "port = 7"] {
            let refused = url(&format!("redis.{field}")).unwrap_err();
            let start =
                "`TENURE_REDIS_PASSWORD` in the environment is not sent to the server that `redis.";
            assert!(refused.starts_with(start) && !refused.contains("hunter2"), "{refused}");
        }
        assert_eq!(url("redis.database = 3").unwrap(), "redis://:hunter2@localhost:6379/3");
        let by_code = read("redis.host = 'h'", &password).unwrap().host("code");
        assert_eq!(by_code.url().unwrap(), "redis://:hunter2@code:6379/0");
        let refused = read("redis.host = 'h'", &[]).unwrap().password("hunter2").url().unwrap_err();
        assert!(refused.to_string().starts_with("`password` is not sent to"), "{refused}");
        assert!(read("redis.host = 'h'", &[]).unwrap().url().is_ok(), "no password at all");
    }

    /// t66: the password is in no message and no debug output.
    #[test]
    fn t66_the_password_is_not_shown() {
        let config = read("redis.password = 'hunter2'", &[]).unwrap();
        let shown = format!("{config:?} {:?}", config.builder().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        let refused = read("redis.password = ['hunter2']", &[]).unwrap_err();
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}

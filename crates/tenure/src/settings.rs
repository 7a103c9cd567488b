//! The configuration: `[lock]` of `tenure.toml`, the environment and code, each stronger than the one before.
//!
//! In: the fields by name. Out: a [`Locker`] on the chosen engine, with the configured defaults. If no engine
//! is chosen, that is an error: a default on one machine would not exclude the other machines.

mod choice;
mod fields;
mod values;

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use tenure_core::config::{self, Origin, Origins, Settings};
use tenure_core::doctor::Finding;
use tenure_core::time::Clock;
use tenure_core::{
    Error, FileLocks, Locker, LockerBuilder, Memory, RETRY_INTERVAL_MIN, Renew, TTL_DEFAULT,
    TTL_MIN, WithinProcess, blocking, file,
};

use self::fields::{FIELDS, OTHERS, REDIS_URL, application_url, url_and_driver};
use self::values::{LEAST, any_time, between, renew, some, time, wait, within_process};
use crate::engines::{Engine, dir_named, dir_of, expected};

/// A locker as the [files](config::files) `tenure.toml` and the environment configure it.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// tenure::install(tenure::from_config().await?)?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The errors of [`Config::read`] and [`Config::connect`].
pub async fn from_config() -> Result<Locker, Error> {
    Config::read()?.connect().await
}

/// [`tenure::from_config`](from_config) for code without a runtime. It connects to a server at the first
/// request.
///
/// # Errors
///
/// The errors of [`Config::read`] and [`Config::connect_later`].
pub fn from_config_blocking() -> Result<blocking::Locker, Error> {
    Config::read()?.connect_later().map(blocking::Locker::new)
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driver {
    /// `memory:`
    Memory,
    /// `file:`, the directory that the command `tenure` uses.
    File,
    /// `redis:`, with the server of `[redis]`.
    #[cfg(feature = "redis")]
    Redis,
    /// `etcd:`, with the cluster of the variables that `etcdctl` reads.
    #[cfg(feature = "etcd")]
    Etcd,
}

impl Driver {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "memory" => Some(Driver::Memory),
            "file" => Some(Driver::File),
            #[cfg(feature = "redis")]
            "redis" | "valkey" => Some(Driver::Redis),
            #[cfg(feature = "etcd")]
            "etcd" => Some(Driver::Etcd),
            _ => None,
        }
    }

    /// Whether `url` belongs to this engine.
    fn has(self, url: &str) -> bool {
        Engine::of(url).is_ok_and(|engine| match engine {
            Engine::Memory => self == Driver::Memory,
            Engine::File => self == Driver::File,
            #[cfg(feature = "redis")]
            Engine::Redis | Engine::Cluster | Engine::Quorum => self == Driver::Redis,
            #[cfg(feature = "etcd")]
            Engine::Etcd => self == Driver::Etcd,
            #[allow(
                unreachable_patterns,
                reason = "an engine whose feature is off is an error above"
            )]
            _ => false,
        })
    }
}

/// Builds the engine of a URL with the functions that are named: those that connect, with `await`, or those that
/// connect later.
macro_rules! engine {
    ($self:ident, $url:ident, $connect:ident, $cluster:ident, $quorum:ident $(, $await:tt)?) => {
        match Engine::of($url)? {
            Engine::Memory => Ok(Locker::builder(Memory::space(rest_of($url)))),
            Engine::File => FileLocks::open(dir_named(rest_of($url))?).map(Locker::builder),
            #[cfg(feature = "redis")]
            Engine::Redis => Ok(Locker::builder($self.redis_at($url)?.$connect()$(.$await)??)),
            #[cfg(feature = "redis")]
            Engine::Cluster => Ok(Locker::builder($self.redis_at($url)?.$cluster()$(.$await)??)),
            #[cfg(feature = "redis")]
            Engine::Quorum => Ok(Locker::builder($self.redis_at($url)?.$quorum()$(.$await)??)),
            #[cfg(feature = "etcd")]
            Engine::Etcd => Ok(Locker::builder($self.etcd_at($url)?.$connect()$(.$await)??)),
            #[allow(unreachable_patterns, reason = "an engine whose feature is off is an error above")]
            _ => Err(Error::invalid(expected())),
        }
    };
}

/// What follows the scheme of a URL.
fn rest_of(url: &str) -> &str {
    url.split_once(':').map_or("", |(_, rest)| rest)
}

/// Which engine to use, and the defaults of its locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
///
/// let config = tenure::Config::read()?.url("memory:").ttl(Duration::from_secs(15));
/// let locker = config.connect().await?;
/// # drop(locker);
/// # Ok(()) }
/// ```
///
/// | field of `[lock]` | value | default |
/// |---|---|---|
/// | `url` | as for [`connect`](crate::connect()) | |
/// | `url_file` | a file that contains the URL | |
/// | `driver` | `memory`, `file`, `redis` or `etcd` | see below |
/// | `prefix` | the prefix of all keys on a server | the prefix of `[redis]`, or `tenure` |
/// | `lock_key` | on Redis, the form of a lock's key: `distributed_lock:{key}` | `<prefix>:lock:{key}` |
/// | `ttl` | a time: `15s` | 30 s; 10 s for `#[lock]` |
/// | `wait` | a time, or `forever` | `forever`; no time for `#[lock]` |
/// | `unavailable_after` | a time: how long the engine may not answer during a wait | as long as the wait |
/// | `retry_interval`, `retry` | a time, at least 10 ms | 100 ms; 50 ms for `#[lock]` |
/// | `watchdog` | `true` or `false`: whether leases are renewed | `true` |
/// | `watchdog_ratio` | the part of the ttl after which leases are renewed, between 0 and 0.5 | a third |
/// | `max_hold` | a time | none |
/// | `within_process` | `queue` or `fail`: if another owner of this process holds the lock | `queue` |
/// | `flush_timeout` | a time: how long the drop of the last `Locker` waits for releases | 500 ms |
///
/// `driver` must match `url`, or replaces it. Without both, `redis` is chosen if `[redis]` has a `host` or a
/// `port`, or if there is a `REDIS_URL`. In the environment `ttl` is `TENURE_LOCK_TTL`, and so on; `url` is also
/// `TENURE_URL`, and `url_file` is `TENURE_URL_FILE`. `REDIS_URL` is used if nothing else chooses an engine. If no
/// engine is chosen, connecting is an error, unless there is a [`default_url`](Self::default_url).
#[derive(Clone, Default)]
#[must_use = "a configuration does nothing until it connects"]
pub struct Config {
    url: Option<String>,
    driver: Option<Driver>,
    default_url: Option<String>,
    /// The value of `REDIS_URL`, and its origin for messages.
    application: Option<(String, Origin)>,
    prefix: Option<String>,
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "it is for Redis"))]
    lock_key: Option<String>,
    ttl: Option<Duration>,
    wait: Option<Wait>,
    unavailable_after: Option<Duration>,
    retry_interval: Option<Duration>,
    renew: Option<Renew>,
    max_hold: Option<Duration>,
    within_process: Option<WithinProcess>,
    flush_timeout: Option<Duration>,
    /// Where the fields were read. Fields that code has set are not included.
    from: Origins,
    #[cfg(feature = "redis")]
    redis: Option<tenure_redis::Config>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Forever,
    For(Duration),
}

/// Without the URL, which may contain a password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("driver", &self.driver).field("prefix", &self.prefix).field("ttl", &self.ttl);
        shown.field("wait", &self.wait).field("retry_interval", &self.retry_interval);
        shown.field("renew", &self.renew).field("max_hold", &self.max_hold);
        shown.field("within_process", &self.within_process).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads those of the [files](config::files) that exist (`/etc/tenure/tenure.toml`, the user's, the one in the
    /// working directory; the last the strongest), and the environment.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a file that cannot be read, for an unknown section or field, and
    /// for an invalid value. The message names it, and the allowed values.
    pub fn read() -> Result<Self, Error> {
        Self::read_files(&config::files())
    }

    /// Like [`read`](Self::read), with another file, which must exist.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let settings = Settings::new("lock", OTHERS, &FIELDS).named_file(path)?;
        Self::of(&settings.environment()?, &[path], std::env::var_os(REDIS_URL))
    }

    /// Like [`read`](Self::read), with several files, the last the strongest. Files that do not exist are
    /// skipped.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_files(paths: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let settings = Settings::new("lock", OTHERS, &FIELDS);
        let settings = paths.iter().try_fold(settings, |all, path| all.file(path.as_ref()))?;
        Self::of(&settings.environment()?, paths, std::env::var_os(REDIS_URL))
    }

    #[cfg_attr(not(feature = "redis"), allow(unused_variables, reason = "they have its section"))]
    fn of(
        given: &Settings,
        paths: &[impl AsRef<Path>],
        application: Option<OsString>,
    ) -> Result<Self, Error> {
        let (url, driver, from) = url_and_driver(given)?;
        Ok(Config {
            url,
            driver,
            from,
            application: application_url(application)?,
            default_url: None,
            prefix: given.get("prefix", "text", some)?,
            lock_key: given.get("lock_key", "text", some)?,
            ttl: given.get("ttl", &between(TTL_MIN), |text| time(text, TTL_MIN))?,
            wait: given.get("wait", &format!("{} or `forever`", between(Duration::ZERO)), wait)?,
            unavailable_after: given.get(
                "unavailable_after",
                &between(Duration::ZERO),
                any_time,
            )?,
            retry_interval: given.get("retry_interval", &between(RETRY_INTERVAL_MIN), |text| {
                time(text, RETRY_INTERVAL_MIN)
            })?,
            renew: renew(given)?,
            max_hold: given.get("max_hold", &between(LEAST), |text| time(text, LEAST))?,
            within_process: given.get("within_process", "`queue` or `fail`", within_process)?,
            flush_timeout: given.get("flush_timeout", &between(Duration::ZERO), any_time)?,
            #[cfg(feature = "redis")]
            redis: tenure_redis::Config::if_given(paths)?,
        })
    }

    /// Sets the engine by its URL. Replaces a URL and a driver that were read.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        (self.url, self.driver) = (Some(url.into()), None);
        self.from.forget("url");
        self.from.forget("driver");
        self
    }

    /// Sets the engine by its name. A URL that was read stays only if it belongs to this engine.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self.from.forget("driver");
        self.url = self.url.filter(|url| driver.has(url));
        if self.url.is_none() {
            self.from.forget("url");
        }
        self
    }

    /// The engine to use if none is chosen.
    pub fn default_url(mut self, url: impl Into<String>) -> Self {
        self.default_url = Some(url.into());
        self
    }

    /// The prefix of all keys on a server. No effect on `memory:` and `file:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self.from.forget("prefix");
        self
    }

    /// The form of a lock's key on Redis, such as `distributed_lock:{key}`, to share locks with programs that
    /// use `SET NX PX`. No effect on other engines.
    pub fn lock_key(mut self, template: impl Into<String>) -> Self {
        self.lock_key = Some(template.into());
        self.from.forget("lock_key");
        self
    }

    /// How long a dead holder keeps others out.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self.from.forget("ttl");
        self
    }

    /// The longest time to wait for a lock.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = Some(Wait::For(longest));
        self
    }

    /// How long the engine may not answer during a wait; see
    /// [`LockRequest::unavailable_after`](tenure_core::LockRequest::unavailable_after).
    pub fn unavailable_after(mut self, longest: Duration) -> Self {
        self.unavailable_after = Some(longest);
        self.from.forget("unavailable_after");
        self
    }

    /// Waits without a limit, also for a server that is down.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// The pause between attempts of a waiter that gets no notification.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.retry_interval = Some(interval);
        self.from.forget("retry_interval");
        self
    }

    /// When leases are renewed.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = Some(renew);
        self.from.forget("watchdog");
        self.from.forget("watchdog_ratio");
        self
    }

    /// The longest time to hold a lock.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self.from.forget("max_hold");
        self
    }

    /// What happens if another owner of this process holds the lock.
    pub fn within_process(mut self, within: WithinProcess) -> Self {
        self.within_process = Some(within);
        self.from.forget("within_process");
        self
    }

    /// How long the drop of the last locker waits for releases that are under way.
    pub fn flush_timeout(mut self, longest: Duration) -> Self {
        self.flush_timeout = Some(longest);
        self.from.forget("flush_timeout");
        self
    }

    /// The ttl, if one was set.
    pub fn get_ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// The longest time to wait, if one was set; [`Duration::MAX`] for `forever`.
    pub fn get_wait(&self) -> Option<Duration> {
        match self.wait {
            Some(Wait::For(longest)) => Some(longest),
            Some(Wait::Forever) => Some(Duration::MAX),
            None => None,
        }
    }

    /// How long the engine may not answer during a wait, if that was set.
    pub fn get_unavailable_after(&self) -> Option<Duration> {
        self.unavailable_after
    }

    /// The longest time to hold a lock, if one was set.
    pub fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// Connects, checks the server, and returns a locker.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](crate::connect()), and [`is_invalid`](Error::is_invalid) for values that
    /// contradict each other, and while tokio's time is paused.
    pub async fn connect(&self) -> Result<Locker, Error> {
        Clock::system().must_run()?;
        let url = self.url_to_connect()?;
        let engine = self.engine(&url).await.map_err(|error| self.blame_engine(error))?;
        self.build(engine)
    }

    async fn engine(&self, url: &str) -> Result<LockerBuilder, Error> {
        engine!(self, url, connect, cluster, quorum, await)
    }

    /// Returns a locker without connecting. It connects at the first request, on the runtime of that request.
    /// For a program that has to start while the server is down: until the server is back, a lock request
    /// returns an error ([`is_unavailable`](Error::is_unavailable)).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for invalid values.
    pub fn connect_later(&self) -> Result<Locker, Error> {
        let url = self.url_to_connect()?;
        let engine = self.engine_later(&url).map_err(|error| self.blame_engine(error))?;
        self.build(engine)
    }

    fn engine_later(&self, url: &str) -> Result<LockerBuilder, Error> {
        engine!(self, url, connect_later, cluster_later, quorum_later)
    }

    /// Checks the engine for problems that make locks unsafe, with advice for each. A server that cannot be
    /// reached, or a directory that would be refused, is also a finding. Nothing is left behind: a missing
    /// directory is not created.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_later`](Self::connect_later), and [`is_invalid`](Error::is_invalid) while
    /// tokio's time is paused.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// use tenure::doctor::Verdict;
    ///
    /// let findings = tenure::Config::default().url("memory:").diagnose().await?;
    /// assert_eq!(Verdict::worst(&findings), Verdict::Warning); // it excludes no other process
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(&self) -> Result<Vec<Finding>, Error> {
        Clock::system().must_run()?;
        if let Some(dir) = dir_of(&self.url_to_connect()?) {
            return Ok(file::diagnose(dir?, self.ttl.unwrap_or(TTL_DEFAULT)).await);
        }
        let locker = self.connect_later()?;
        let findings = locker.diagnose().await;
        locker.shutdown(Duration::ZERO).await;
        findings
    }

    /// Adds to `error` where the value was read that it is about; `otherwise` if it names no field.
    fn blame(&self, error: Error, otherwise: Option<&Origin>) -> Error {
        #[cfg(feature = "redis")]
        if let (Some(redis), None) = (&self.redis, &self.prefix) {
            return self.from.clone().beside(redis.origins()).blame(error, otherwise);
        }
        self.from.blame(error, otherwise)
    }

    /// Like [`blame`](Self::blame), for an error of the engine. The source that chose the engine is added
    /// only if the error is about the engine or its URL, and not about an option that code has set.
    fn blame_engine(&self, error: Error) -> Error {
        let message = error.to_string();
        let about_it = message.contains("url") || message.contains("engine");
        self.blame(error, self.chosen_from().filter(|_| about_it))
    }

    /// A locker on the engine, with the configured defaults.
    fn build(&self, engine: LockerBuilder) -> Result<Locker, Error> {
        self.with_defaults(engine).build().map_err(|error| self.blame(error, None))
    }

    /// The builder with the configured defaults.
    fn with_defaults(&self, mut builder: LockerBuilder) -> LockerBuilder {
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        builder = match self.wait {
            Some(Wait::For(longest)) => builder.wait(longest),
            Some(Wait::Forever) => builder.wait_forever(),
            None => builder,
        };
        if let Some(longest) = self.unavailable_after {
            builder = builder.unavailable_after(longest);
        }
        if let Some(interval) = self.retry_interval {
            builder = builder.retry_interval(interval);
        }
        if let Some(renew) = self.renew {
            builder = builder.renew(renew);
        }
        if let Some(longest) = self.max_hold {
            builder = builder.max_hold(longest);
        }
        if let Some(longest) = self.flush_timeout {
            builder = builder.flush_timeout(longest);
        }
        match self.within_process {
            Some(within) => builder.within_process(within),
            None => builder,
        }
    }
}

#[cfg(test)]
mod tests;

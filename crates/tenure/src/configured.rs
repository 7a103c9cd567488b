//! One configuration chooses: `[lock]` of `tenure.toml`, the environment and code, each stronger than
//! the one before.
//!
//! In: the fields by name. Out: a [`Locker`] on the engine they choose, with the defaults they set.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::config::{FILE, Field, Origin, Settings, duration};
use tenure_core::doctor::Finding;
use tenure_core::{
    Error, Locker, LockerBuilder, RETRY_INTERVAL_MIN, Renew, TTL_DEFAULT, TTL_MAX, TTL_MIN,
    blocking, file,
};

use crate::connect::{dir_of, embedded};

static FIELDS: [Field; 9] = [
    Field::new("driver", &[]),
    // It may hold a password. The variable is the one that the command `tenure` reads too.
    Field::secret("url").variable("TENURE_URL"),
    Field::new("prefix", &[]),
    Field::new("ttl", &[]),
    Field::new("wait", &[]),
    Field::new("retry_interval", &["retry"]),
    Field::new("watchdog", &[]),
    Field::new("watchdog_ratio", &[]),
    Field::new("max_hold", &[]),
];

/// A locker as `tenure.toml` in the working directory and the environment say.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// tenure::install(tenure::from_config().await?)?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Those of [`Config::read`] and [`Config::connect`].
pub async fn from_config() -> Result<Locker, Error> {
    Config::read()?.connect().await
}

/// [`tenure::from_config`](from_config) for code without a runtime. A server is reached when it is
/// first asked for something.
///
/// # Errors
///
/// Those of [`Config::read`] and [`Config::connect_later`].
pub fn from_config_blocking() -> Result<blocking::Locker, Error> {
    Config::read()?.connect_later().map(blocking::Locker::new)
}

/// The engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driver {
    /// `memory:`
    Memory,
    /// `file:`, in the directory that the command `tenure` uses too.
    File,
    /// `redis:`, where `[redis]` says.
    #[cfg(feature = "redis")]
    Redis,
    /// `etcd:`, where the variables that `etcdctl` reads say.
    #[cfg(feature = "etcd")]
    Etcd,
}

/// The engines, for messages.
const DRIVERS: &str = match (cfg!(feature = "redis"), cfg!(feature = "etcd")) {
    (true, true) => "`memory`, `file`, `redis` or `etcd`",
    (true, false) => "`memory`, `file` or `redis`",
    (false, true) => "`memory`, `file` or `etcd`",
    (false, false) => "`memory` or `file`",
};

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

    /// Whether `url` is one of this engine's.
    fn has(self, url: &str) -> bool {
        match self {
            Driver::Memory => url.starts_with("memory:"),
            Driver::File => url.starts_with("file:"),
            #[cfg(feature = "redis")]
            Driver::Redis => crate::connect::is_any_redis(url),
            #[cfg(feature = "etcd")]
            Driver::Etcd => crate::connect::is_etcd(url),
        }
    }
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
/// | `driver` | `memory`, `file`, `redis` or `etcd`; it goes with `url`, or stands for it | `redis` if there is a section `[redis]`, else `file` |
/// | `prefix` | what all keys on a server start with | that of `[redis]`, or `tenure` |
/// | `ttl` | a time: `15s`, or milliseconds | 30 s; 10 s for `#[lock]` |
/// | `wait` | a time, or `forever` | `forever`; no time for `#[lock]` |
/// | `retry_interval`, `retry` | a time, at least 10 ms | 100 ms; 50 ms for `#[lock]` |
/// | `watchdog` | `true` or `false`: whether leases are renewed | `true` |
/// | `watchdog_ratio` | at which part of the ttl, between 0 and 0.5 | a third |
/// | `max_hold` | a time | none |
///
/// In the environment `ttl` is `TENURE_LOCK_TTL`, and so on; `url` is `TENURE_URL` as well.
#[derive(Clone, Default)]
#[must_use = "a configuration does nothing until it connects"]
pub struct Config {
    url: Option<String>,
    /// Where it was read; `None` if it is by code.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only etcd's logins stand apart"))]
    url_from: Option<Origin>,
    driver: Option<Driver>,
    chosen_by: Option<String>,
    default_url: Option<String>,
    prefix: Option<String>,
    ttl: Option<Duration>,
    wait: Option<Wait>,
    retry_interval: Option<Duration>,
    renew: Option<Renew>,
    max_hold: Option<Duration>,
    #[cfg(feature = "redis")]
    redis: Option<tenure_redis::kv::Config>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Forever,
    For(Duration),
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("driver", &self.driver).field("prefix", &self.prefix).field("ttl", &self.ttl);
        shown.field("wait", &self.wait).field("retry_interval", &self.retry_interval);
        shown.field("renew", &self.renew).field("max_hold", &self.max_hold);
        shown.finish_non_exhaustive()
    }
}

impl Config {
    /// What `tenure.toml` in the working directory says, if there is one, and the environment.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a file that cannot be read, and for a field that is not
    /// known or makes no sense; the message names it, and says what is allowed.
    pub fn read() -> Result<Self, Error> {
        Self::read_files(&[FILE])
    }

    /// The same with another file, which must be there.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let settings = Settings::new("lock", &FIELDS).named_file(path)?;
        Self::of(&settings.environment()?, &[path])
    }

    /// The same with several files, the last the strongest. Those that are not there say nothing.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_files(paths: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let settings = Settings::new("lock", &FIELDS);
        let settings = paths.iter().try_fold(settings, |all, path| all.file(path.as_ref()))?;
        Self::of(&settings.environment()?, paths)
    }

    #[cfg_attr(not(feature = "redis"), allow(unused_variables, reason = "they have its section"))]
    fn of(given: &Settings, paths: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let (url, driver) = place(given)?;
        Ok(Config {
            chosen_by: url.as_ref().and(given.shown("url")).or(driver.and(given.shown("driver"))),
            url,
            url_from: given.origin("url"),
            driver,
            default_url: None,
            prefix: given.get("prefix", "text", some)?,
            ttl: given.get("ttl", &between(TTL_MIN), |text| time(text, TTL_MIN))?,
            wait: given.get("wait", &format!("{} or `forever`", between(Duration::ZERO)), wait)?,
            retry_interval: given.get("retry_interval", &between(RETRY_INTERVAL_MIN), |text| {
                time(text, RETRY_INTERVAL_MIN)
            })?,
            renew: renew(given)?,
            max_hold: given.get("max_hold", &between(LEAST), |text| time(text, LEAST))?,
            #[cfg(feature = "redis")]
            redis: tenure_redis::kv::Config::if_given(paths)?,
        })
    }

    /// The engine by its URL, whatever was read.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        (self.url, self.driver, self.chosen_by) = (Some(url.into()), None, None);
        self.url_from = None;
        self
    }

    /// The engine by its name, whatever was read of another.
    pub fn driver(mut self, driver: Driver) -> Self {
        (self.driver, self.chosen_by) = (Some(driver), None);
        self.url = self.url.filter(|url| driver.has(url));
        self
    }

    /// The engine to use if nobody has chosen one.
    pub fn default_url(mut self, url: impl Into<String>) -> Self {
        self.default_url = Some(url.into());
        self
    }

    /// What all keys on a server start with. No effect inside this program and on `file:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How long a dead holder keeps others out.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The longest time to wait for a lock.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = Some(Wait::For(longest));
        self
    }

    /// To wait for ever.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Some(Wait::Forever);
        self
    }

    /// How long to pause between looks where nobody tells.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.retry_interval = Some(interval);
        self
    }

    /// When leases are renewed.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = Some(renew);
        self
    }

    /// The longest time to hold a lock.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// The URL of the engine that was chosen, with its password: for whoever connects, not for readers.
    /// `None` if nobody has chosen one.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a section `[redis]` that makes no sense.
    pub fn chosen_url(&self) -> Result<Option<String>, Error> {
        match (&self.url, self.driver) {
            (Some(url), _) => Ok(Some(url.clone())),
            (None, Some(Driver::Memory)) => Ok(Some("memory:".into())),
            (None, Some(Driver::File)) => Ok(Some(default_dir())),
            #[cfg(feature = "redis")]
            (None, Some(Driver::Redis)) => self.redis.clone().unwrap_or_default().url().map(Some),
            #[cfg(feature = "etcd")]
            (None, Some(Driver::Etcd)) => Ok(Some("etcd://".into())),
            (None, None) => self.implied_url(),
        }
    }

    /// Who has chosen it, where that was read: `` `lock.url` in `tenure.toml` ``.
    pub fn chosen_by(&self) -> Option<&str> {
        #[cfg(feature = "redis")]
        if self.url.is_none() && self.driver.is_none() && self.redis.is_some() {
            return Some("`[redis]` of the configuration");
        }
        self.chosen_by.as_deref()
    }

    /// The ttl, if one was set.
    pub fn get_ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// The longest time to wait, if one was set.
    pub fn get_wait(&self) -> Option<Duration> {
        match self.wait {
            Some(Wait::For(longest)) => Some(longest),
            Some(Wait::Forever) | None => None,
        }
    }

    /// The longest time to hold a lock, if one was set.
    pub fn get_max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// Whoever says how to reach Redis wants it used.
    fn implied_url(&self) -> Result<Option<String>, Error> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            return redis.url().map(Some);
        }
        Ok(self.default_url.clone())
    }

    /// A locker, with its server reached and checked.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](crate::connect()), and [`is_invalid`](Error::is_invalid) for values that do
    /// not go together.
    pub async fn connect(&self) -> Result<Locker, Error> {
        let url = self.place()?;
        #[cfg(feature = "redis")]
        if crate::connect::is_redis(&url) {
            let redis = self.redis_at(&url)?.connect().await?;
            return self.told(Locker::builder(redis)).build();
        }
        #[cfg(feature = "redis")]
        if crate::connect::is_cluster(&url) {
            let cluster = self.redis_at(&url)?.cluster().await?;
            return self.told(Locker::builder(cluster)).build();
        }
        #[cfg(feature = "redis")]
        if crate::connect::is_quorum(&url) {
            let quorum = self.redis_at(&url)?.quorum().await?;
            return self.told(Locker::builder(quorum)).build();
        }
        #[cfg(feature = "etcd")]
        if crate::connect::is_etcd(&url) {
            let etcd = self.etcd_at(&url)?.connect().await?;
            return self.told(Locker::builder(etcd)).build();
        }
        self.told(embedded(&url)?).build()
    }

    /// The same without connecting: that happens when it is first asked for something, on the runtime
    /// that asks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for values that make no sense.
    pub fn connect_later(&self) -> Result<Locker, Error> {
        let url = self.place()?;
        #[cfg(feature = "redis")]
        if crate::connect::is_redis(&url) {
            let redis = self.redis_at(&url)?.connect_later()?;
            return self.told(Locker::builder(redis)).build();
        }
        #[cfg(feature = "redis")]
        if crate::connect::is_cluster(&url) {
            let cluster = self.redis_at(&url)?.cluster_later()?;
            return self.told(Locker::builder(cluster)).build();
        }
        #[cfg(feature = "redis")]
        if crate::connect::is_quorum(&url) {
            let quorum = self.redis_at(&url)?.quorum_later()?;
            return self.told(Locker::builder(quorum)).build();
        }
        #[cfg(feature = "etcd")]
        if crate::connect::is_etcd(&url) {
            let etcd = self.etcd_at(&url)?.connect_later()?;
            return self.told(Locker::builder(etcd)).build();
        }
        self.told(embedded(&url)?).build()
    }

    /// Looks for what makes locks unsafe on the engine, and says what to do about it. A server that cannot
    /// be reached, or a directory that would be refused, is a finding too. Nothing is left behind: a
    /// directory that is not there is not made.
    ///
    /// # Errors
    ///
    /// Those of [`connect_later`](Self::connect_later).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tenure::Error> {
    /// use tenure::doctor::Verdict;
    ///
    /// let findings = tenure::Config::default().url("memory:").examine().await?;
    /// assert_eq!(Verdict::worst(&findings), Verdict::Warning); // it excludes no other process
    /// # Ok(()) }
    /// ```
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        if let Some(dir) = dir_of(&self.place()?) {
            return Ok(file::examine(dir?, self.ttl.unwrap_or(TTL_DEFAULT)).await);
        }
        let locker = self.connect_later()?;
        let findings = locker.examine().await;
        locker.shutdown(Duration::ZERO).await;
        findings
    }

    /// Where to connect, having said so if nobody has chosen.
    fn place(&self) -> Result<String, Error> {
        if let Some(url) = self.chosen_url()? {
            return Ok(url);
        }
        let url = default_dir();
        tracing::info!(component = "tenure", url, "no engine is configured: locks are kept here");
        Ok(url)
    }

    #[cfg(feature = "redis")]
    fn redis_at(&self, url: &str) -> Result<tenure_redis::Builder, Error> {
        let builder = self.redis.clone().unwrap_or_default().builder_at(url)?;
        Ok(match &self.prefix {
            Some(prefix) => builder.prefix(prefix),
            None => builder,
        })
    }

    #[cfg(feature = "etcd")]
    fn etcd_at(&self, url: &str) -> Result<tenure_etcd::Builder, Error> {
        let builder = tenure_etcd::Etcd::builder(url).environment()?;
        if let Some(from) = self.url_from.as_ref()
            && builder.lends_login()?
        {
            from.may_receive("`ETCDCTL_USER` in the environment", None)?;
        }
        Ok(match &self.prefix {
            Some(prefix) => builder.prefix(prefix),
            None => builder,
        })
    }

    /// The defaults, told to the locker.
    fn told(&self, mut builder: LockerBuilder) -> LockerBuilder {
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        builder = match self.wait {
            Some(Wait::For(longest)) => builder.wait(longest),
            Some(Wait::Forever) => builder.wait_forever(),
            None => builder,
        };
        if let Some(interval) = self.retry_interval {
            builder = builder.retry_interval(interval);
        }
        if let Some(renew) = self.renew {
            builder = builder.renew(renew);
        }
        match self.max_hold {
            Some(longest) => builder.max_hold(longest),
            None => builder,
        }
    }
}

/// More than nothing.
const LEAST: Duration = Duration::from_millis(1);

fn default_dir() -> String {
    let dir: PathBuf = file::default_dir();
    format!("file:{}", dir.display())
}

/// The engine that the strongest place chooses. What a weaker one says of another is of no account;
/// within one place it is a contradiction.
fn place(given: &Settings) -> Result<(Option<String>, Option<Driver>), Error> {
    let url = given.get("url", "a url", some)?;
    let driver = given.get("driver", DRIVERS, Driver::parse)?;
    let (Some(address), Some(engine)) = (&url, driver) else { return Ok((url, driver)) };
    if engine.has(address) {
        return Ok((url, driver));
    }
    match given.rank("url").cmp(&given.rank("driver")) {
        std::cmp::Ordering::Greater => Ok((url, None)),
        std::cmp::Ordering::Less => Ok((None, driver)),
        std::cmp::Ordering::Equal => {
            let shown = |name| given.shown(name).unwrap_or_default();
            let (url, driver) = (shown("url"), shown("driver"));
            Err(Error::invalid(format!("{url} is not for the engine of {driver}")))
        }
    }
}

/// `None` if nothing was said; off is off, whatever the ratio.
fn renew(given: &Settings) -> Result<Option<Renew>, Error> {
    let on = given.get("watchdog", "`true` or `false`", |text| text.parse().ok())?;
    let ratio = given.get("watchdog_ratio", "a number between 0 and 0.5", |text| {
        text.parse().ok().filter(|ratio| *ratio > 0.0 && *ratio < 0.5)
    })?;
    Ok(match (on, ratio) {
        (Some(false), _) => Some(Renew::Off),
        (_, Some(ratio)) => Some(Renew::Ratio(ratio)),
        (Some(true), None) => Some(Renew::Auto),
        (None, None) => None,
    })
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.into())
}

fn wait(text: &str) -> Option<Wait> {
    match text {
        "forever" => Some(Wait::Forever),
        _ => time(text, Duration::ZERO).map(Wait::For),
    }
}

fn time(text: &str, min: Duration) -> Option<Duration> {
    duration(text).filter(|time| (min..=TTL_MAX).contains(time))
}

fn between(min: Duration) -> String {
    format!("a time from {min:?} to 365 days, such as `15s`")
}

#[cfg(test)]
mod tests;

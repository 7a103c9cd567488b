//! Which engine is used: the first source that names one.
//!
//! In: the fields of a [`Config`]. Out: the URL, its origin for messages, and the builder of the engine.

use tenure_core::Error;
use tenure_core::config::{FILE, Origin};

use super::{Config, Driver};
#[cfg(feature = "redis")]
use crate::engines::Engine;
use crate::engines::expected;

/// The fields of `[redis]` that describe the server of `host` and `port`. Another server has these values in its
/// URL.
#[cfg(feature = "redis")]
const OF_SERVER: [&str; 8] = [
    "database",
    "username",
    "password",
    "tls",
    "ca_file",
    "client_cert_file",
    "client_key_file",
    "insecure",
];

impl Config {
    /// The URL of the chosen engine, with its password: for connecting, not for display. `None` if no engine
    /// is chosen.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid section `[redis]`.
    pub fn chosen_url(&self) -> Result<Option<String>, Error> {
        match (&self.url, self.driver) {
            (Some(url), _) => Ok(Some(url.clone())),
            (None, Some(Driver::Memory)) => Ok(Some("memory:".into())),
            (None, Some(Driver::File)) => Ok(Some("file:".into())),
            #[cfg(feature = "redis")]
            (None, Some(Driver::Redis)) => match self.implied_url()? {
                Some(url) => self.must_be_redis(&url).map(|()| Some(url)),
                None => self.redis.clone().unwrap_or_default().url().map(Some),
            },
            #[cfg(feature = "etcd")]
            (None, Some(Driver::Etcd)) => Ok(Some("etcd://".into())),
            (None, None) => Ok(self.implied_url()?.or_else(|| self.default_url.clone())),
        }
    }

    /// Which setting has chosen the engine, if it was read: `` `lock.url` in `tenure.toml` ``.
    pub fn chosen_by(&self) -> Option<&str> {
        self.chosen_from().map(Origin::as_str)
    }

    pub(super) fn chosen_from(&self) -> Option<&Origin> {
        if self.url.is_some() {
            return self.from.get("url");
        }
        #[cfg(feature = "redis")]
        if matches!(self.driver, None | Some(Driver::Redis)) {
            let application = self.application.as_ref().map(|(_, origin)| origin);
            return self.server_of_section().or(application).or(self.from.get("driver"));
        }
        self.from.get("driver")
    }

    /// The origin of `host` or `port` of `[redis]`: only these two choose a server. The other fields have
    /// defaults for programs that use `[redis]` for their values alone.
    #[cfg(feature = "redis")]
    fn server_of_section(&self) -> Option<&Origin> {
        let section = self.redis.as_ref()?.origins();
        section.get("host").or(section.get("port"))
    }

    /// The Redis server of `[redis]` if it has `host` or `port`, otherwise that of `REDIS_URL`.
    fn implied_url(&self) -> Result<Option<String>, Error> {
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            if self.server_of_section().is_some() {
                return redis.url().map(Some);
            }
            self.must_not_describe_another(redis)?;
        }
        Ok(self.application.as_ref().map(|(url, _)| url.clone()))
    }

    /// Refuses a `REDIS_URL` of another engine if the driver is `redis`.
    #[cfg(feature = "redis")]
    fn must_be_redis(&self, url: &str) -> Result<(), Error> {
        // An unknown engine has an error of its own, which says what is possible.
        let is_of_another = |url| Engine::of(url).is_ok() && !Driver::Redis.has(url);
        let Some((_, from)) = self.application.as_ref().filter(|_| is_of_another(url)) else {
            return Ok(());
        };
        let driver = self.from.get("driver").map_or("the driver", Origin::as_str);
        // The scheme alone: the rest may contain a password.
        let scheme = url.split(':').next().unwrap_or_default();
        Err(Error::invalid(format!(
            "{driver} is `redis`, but {} is for the engine `{scheme}:`",
            from.as_str()
        )))
    }

    /// Refuses fields of `[redis]` that describe a server if `REDIS_URL` names the server: the lock would not
    /// use them.
    #[cfg(feature = "redis")]
    fn must_not_describe_another(&self, redis: &tenure_redis::Config) -> Result<(), Error> {
        let Some((_, url)) = &self.application else { return Ok(()) };
        match OF_SERVER.iter().find_map(|field| redis.origins().get(field)) {
            None => Ok(()),
            Some(field) => Err(Error::invalid(format!(
                "{} is not for the server of {}: put it into that URL, or set `host` of `[redis]`",
                field.as_str(),
                url.as_str()
            ))),
        }
    }

    /// The URL to connect to, or the error that no engine is configured.
    pub(super) fn url_to_connect(&self) -> Result<String, Error> {
        self.chosen_url()?.ok_or_else(|| {
            Error::invalid(format!(
                "no engine is configured: set `TENURE_URL`, or `url` of `[lock]` in `{FILE}`, or call \
                 `Config::url`{}; {}",
                self.half_a_server(),
                expected()
            ))
        })
    }

    /// For the message that no engine is configured: what is missing in `[redis]`.
    fn half_a_server(&self) -> &'static str {
        #[cfg(feature = "redis")]
        if self.redis.is_some() {
            return ", or `host` of `[redis]`";
        }
        ""
    }

    #[cfg(feature = "redis")]
    pub(super) fn redis_at(&self, url: &str) -> Result<tenure_redis::Builder, Error> {
        let builder = self.redis.clone().unwrap_or_default().builder_at(url)?;
        let builder = match &self.lock_key {
            Some(template) => builder.lock_key(template),
            None => builder,
        };
        Ok(match &self.prefix {
            Some(prefix) => builder.prefix(prefix),
            None => builder,
        })
    }

    #[cfg(feature = "etcd")]
    pub(super) fn etcd_at(&self, url: &str) -> Result<tenure_etcd::Builder, Error> {
        let builder = tenure_etcd::Etcd::builder(url).environment()?;
        if let Some(from) = self.from.get("url")
            && builder.lends_login()?
        {
            from.may_receive("`ETCDCTL_USER` in the environment", None)?;
        }
        Ok(match &self.prefix {
            Some(prefix) => builder.prefix(prefix),
            None => builder,
        })
    }
}

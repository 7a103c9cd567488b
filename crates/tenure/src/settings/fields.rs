//! The fields of `[lock]`, and which of several sources chooses the engine.
//!
//! In: [`Settings`]. Out: a URL or a driver, and where it was read.

use std::ffi::OsString;

use tenure_core::Error;
use tenure_core::config::{Field, Origin, Origins, Settings};

use super::Driver;
use super::values::some;

/// The variable with which many deployments configure the application's own Redis.
pub(super) const REDIS_URL: &str = "REDIS_URL";
/// The sections of `tenure.toml` that other modules read.
pub(super) const OTHERS: &[&str] = &["redis"];

pub(super) static FIELDS: [Field; 14] = [
    Field::new("driver", &[]),
    // It may contain a password.
    Field::secret("url").variable("TENURE_URL"),
    Field::new("url_file", &[]).variable("TENURE_URL_FILE"),
    Field::new("prefix", &[]),
    Field::new("lock_key", &[]),
    Field::new("ttl", &[]),
    Field::new("wait", &[]),
    Field::new("unavailable_after", &[]),
    Field::new("retry_interval", &["retry"]),
    Field::new("watchdog", &[]),
    Field::new("watchdog_ratio", &[]),
    Field::new("max_hold", &[]),
    Field::new("within_process", &[]),
    Field::new("flush_timeout", &[]),
];

/// The engines, for messages.
pub(super) const DRIVERS: &str = match (cfg!(feature = "redis"), cfg!(feature = "etcd")) {
    (true, true) => "`memory`, `file`, `redis` or `etcd`",
    (true, false) => "`memory`, `file` or `redis` (`etcd` needs the Cargo feature `etcd`)",
    (false, true) => "`memory`, `file` or `etcd` (`redis` needs the Cargo feature `redis`)",
    (false, false) => {
        "`memory` or `file` (`redis` and `etcd` need the Cargo features of these names)"
    }
};

/// The engine that the strongest source chooses, and where the fields were read. A setting for another engine
/// in a weaker source is ignored; within one source it is a contradiction.
pub(super) fn url_and_driver(
    given: &Settings,
) -> Result<(Option<String>, Option<Driver>, Origins), Error> {
    let (name, url) = address(given)?;
    let mut from = given.origins();
    if let Some(origin) = given.origin(name) {
        from.set("url", origin);
    }
    let driver = given.get("driver", DRIVERS, Driver::parse)?;
    let (Some(at), Some(engine)) = (&url, driver) else { return Ok((url, driver, from)) };
    if engine.has(at) {
        return Ok((url, driver, from));
    }
    match given.rank(name).cmp(&given.rank("driver")) {
        std::cmp::Ordering::Greater => {
            from.forget("driver");
            Ok((url, None, from))
        }
        std::cmp::Ordering::Less => {
            from.forget("url");
            Ok((None, driver, from))
        }
        std::cmp::Ordering::Equal => {
            let shown = |name| given.shown(name).unwrap_or_default();
            let (url, driver) = (shown(name), shown("driver"));
            Err(Error::invalid(format!("{url} is not for the engine of {driver}")))
        }
    }
}

/// The URL, and the field that it is from: `url` or `url_file`, whichever is in the stronger source, and
/// `url` if both are in the same.
fn address(given: &Settings) -> Result<(&'static str, Option<String>), Error> {
    let url = given.get("url", "a url", |text| some(text.trim()))?;
    let Some(path) = given.get("url_file", "a path", some)? else { return Ok(("url", url)) };
    if given.rank("url") >= given.rank("url_file") {
        return Ok(("url", url));
    }
    let shown = given.shown("url_file").unwrap_or_default();
    let refused = |why: String| Error::invalid(format!("{shown}: {why}"));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| refused(format!("cannot read the URL from `{path}`: {error}")))?;
    match some(text.trim()) {
        Some(url) => Ok(("url_file", Some(url))),
        None => Err(refused(format!("the URL in `{path}` is empty"))),
    }
}

/// The value of `REDIS_URL`. An empty value counts as not set.
pub(super) fn application_url(url: Option<OsString>) -> Result<Option<(String, Origin)>, Error> {
    let Some(url) = url.filter(|_| cfg!(feature = "redis")) else { return Ok(None) };
    let url = url.into_string().map_err(|_| {
        Error::invalid(format!("invalid `{REDIS_URL}` in the environment: it is not UTF-8"))
    })?;
    Ok(some(url.trim()).map(|url| (url, Origin::variable(REDIS_URL))))
}

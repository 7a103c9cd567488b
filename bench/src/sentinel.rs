//! A Redis server behind Sentinels: our locks through them, against our locks on the same server without
//! them.
//!
//! All keys have a random prefix of the run, and are deleted at the end.

use tenure::Locker;
use tenure::redis::Redis;

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::DRAIN;
use crate::redis::{Bare, bare_client, clear, prefix};
use crate::report::Figure;
use crate::rounds::{Lap, interleave};

/// The bar is from the issue that introduced Sentinel.
pub(crate) const ENTRIES: &[Entry<()>] = &[Entry { names: &["sentinel/1"], kind: () }];
const BAR: f64 = 1.1;

/// Whether URLs with this scheme belong to this module.
pub(crate) fn is_sentinel(scheme: &str) -> bool {
    let rest = scheme.strip_suffix("+sentinel").or(scheme.strip_suffix("-sentinel"));
    rest.is_some_and(|scheme| ["redis", "rediss", "valkey", "valkeys"].contains(&scheme))
}

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let ours = async |lap| cycles(&site.through, "ours", lap).await;
    let measured = interleave(run, ours, async |lap| cycles(&site.direct, "bare", lap).await);
    Ok(vec![Figure { name: run.figure(), measure: measured.await?, bar: BAR }])
}

async fn cycles(locker: &Locker, key: &str, lap: Lap) -> Result<u64, Error> {
    let mut cycles = 0;
    while lap.goes_on() {
        locker.lock(key).await?.release().await?;
        cycles += 1;
    }
    Ok(cycles)
}

/// A locker through Sentinels, a direct one to the master, and our keys there.
pub(crate) struct Site {
    through: Locker,
    direct: Locker,
    bare: Bare,
    prefix: String,
}

impl Site {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let prefix = prefix()?;
        let locker = async |url: &str| -> Result<Locker, Error> {
            Ok(Locker::new(Redis::builder(url).prefix(&prefix).connect().await?))
        };
        let through = locker(url).await?;
        let master = master(&Parts::of(url)?).await?;
        let (direct, bare) = (locker(&master).await?, Bare::connect(&master).await?);
        Ok(Site { through, direct, bare, prefix })
    }

    /// Shuts both sides down and removes every key of this run.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        self.through.shutdown(DRAIN).await;
        self.direct.shutdown(DRAIN).await;
        clear(&self.bare, &self.prefix).await
    }
}

/// The URL of the master that the first Sentinel names.
async fn master(parts: &Parts<'_>) -> Result<String, Error> {
    let mut sentinel = bare_client(&parts.sentinel())?.get_multiplexed_async_connection().await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(parts.service);
    let named: Option<(String, u16)> = ask.query_async(&mut sentinel).await?;
    let (host, port) = named.ok_or_else(|| Error::surprise("the Sentinel names no master"))?;
    Ok(parts.server(&host, port))
}

/// The parts of a Sentinel URL that matter here.
struct Parts<'a> {
    /// Such as `redis`, or `rediss` with TLS.
    scheme: &'a str,
    /// The login at the master, with the `@`.
    user: &'a str,
    first: &'a str,
    service: &'a str,
    /// The database, with the `/`.
    db: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, Error> {
        let flaw = || Error::Usage("the url names no Sentinel and service".into());
        let (scheme, rest) = url.split_once("://").ok_or_else(flaw)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').ok_or_else(flaw)?;
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let (service, db) = path.split_at(path.find('/').unwrap_or(path.len()));
        let first = hosts.split(',').next().unwrap_or_default();
        let scheme = scheme.trim_end_matches("sentinel").trim_end_matches(['+', '-']);
        Ok(Parts { scheme, user, first, service, db, query })
    }

    /// The URL of the first Sentinel, with its login.
    fn sentinel(&self) -> String {
        let said = |name: &str| {
            let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
        };
        let login = said("sentinel_password")
            .map(|password| format!("{}:{password}@", said("sentinel_user").unwrap_or_default()));
        let port = if self.first.rsplit(']').next().is_some_and(|end| end.contains(':')) {
            ""
        } else {
            ":26379"
        };
        format!("{}://{}{}{port}", self.scheme, login.unwrap_or_default(), self.first)
    }

    fn server(&self, host: &str, port: u16) -> String {
        let Parts { scheme, user, db, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.into() };
        format!("{scheme}://{user}{host}:{port}{db}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first Sentinel and the master, each with its own login.
    #[test]
    fn parts() {
        let url = "redis+sentinel://u:p@a,b:1/locks/3?replicas=1&sentinel_password=s";
        let parts = Parts::of(url).unwrap();
        assert_eq!((parts.service, parts.sentinel().as_str()), ("locks", "redis://:s@a:26379"));
        assert_eq!(parts.server("::1", 7), "redis://u:p@[::1]:7/3");
        let parts = Parts::of("rediss-sentinel://b:1/locks").unwrap();
        assert_eq!(parts.sentinel(), "rediss://b:1");
        assert!(Parts::of("redis+sentinel://a").is_err());
    }
}

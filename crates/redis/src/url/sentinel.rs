//! Parses a URL with several hosts: the Sentinels, and the service to ask them for.
//!
//! ```text
//! redis+sentinel://[user][:password@]host[:port][,host[:port]…]/service[/db][?sentinel_user=U&sentinel_password=P]
//! ```
//!
//! `redis-sentinel://` is the same, `rediss+sentinel://` uses TLS to the Sentinels and to the master, and
//! `valkey` may replace `redis` in each. User and password are those of the master. As in
//! `url/mod.rs`, error messages repeat no part of the URL.

use std::fmt;

use tenure_core::Error;
use url::Url;

use super::{Address, Endpoint, Login, addresses, decoded, invalid_as, split_hosts};

/// The default port of a Sentinel.
const PORT_DEFAULT: u16 = 26_379;
const FORM: &str =
    "expected `redis+sentinel://[user:password@]host[:port][,host[:port]]/service[/db]`";

/// A service, and the Sentinels that know its master.
#[derive(Clone)]
pub(crate) struct Service {
    name: String,
    sentinels: Vec<Address>,
    user: Option<String>,
    password: Option<String>,
}

impl Service {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn sentinels(&self) -> &[Address] {
        &self.sentinels
    }

    /// The credentials for the Sentinels.
    pub(crate) fn login(&self) -> Login<'_> {
        Login { user: self.user.as_deref(), password: self.password.as_deref(), db: 0 }
    }
}

/// A URL in two parts: the Sentinels, and an ordinary URL for the rest.
pub(crate) struct Split {
    sentinels: Vec<Address>,
    url: Url,
}

/// Splits a Sentinel URL; `None` if `text` has another scheme.
pub(crate) fn split(text: &str) -> Option<Result<Split, Error>> {
    let (scheme, rest) = text.split_once(':')?;
    let plain = scheme.strip_suffix("sentinel")?.strip_suffix(['+', '-'])?;
    Some(split_as(plain, rest))
}

fn split_as(scheme: &str, rest: &str) -> Result<Split, Error> {
    let rest = rest.strip_prefix("//").ok_or_else(|| invalid("it names no host"))?;
    let (before, hosts, tail) = split_hosts(rest);
    let sentinels = addresses(hosts, PORT_DEFAULT, FORM)?;
    // A placeholder host: the real hosts are in `sentinels`.
    let url = Url::parse(&format!("{scheme}://{before}sentinel{tail}"));
    Ok(Split { sentinels, url: url.map_err(invalid)? })
}

impl Split {
    pub(crate) fn endpoint(mut self) -> Result<Endpoint, Error> {
        let (name, db) = self.path()?;
        let (user, password) = (self.take("sentinel_user"), self.take("sentinel_password"));
        if user.is_some() && password.is_none() {
            return Err(invalid("it has a `sentinel_user` and no `sentinel_password`"));
        }
        self.url.set_path(&db);
        let service = Service { name, sentinels: self.sentinels, user, password };
        Ok(Endpoint::of_one(self.url.as_str())?.of_service(service))
    }

    /// The service and the database.
    fn path(&self) -> Result<(String, String), Error> {
        let mut parts = self.url.path().trim_matches('/').split('/');
        let name = decoded(parts.next().unwrap_or_default())?.unwrap_or_default();
        let db = parts.next().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(invalid("it names no service"));
        }
        match parts.next() {
            None => Ok((name, db)),
            Some(_) => Err(invalid("something follows its database")),
        }
    }

    /// Takes a parameter out of the query.
    fn take(&mut self, wanted: &str) -> Option<String> {
        let owned = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            (name.into_owned(), value.into_owned())
        };
        let (found, rest): (Vec<_>, Vec<_>) =
            self.url.query_pairs().map(owned).partition(|(name, _)| name == wanted);
        self.url.set_query(None);
        if !rest.is_empty() {
            self.url.query_pairs_mut().extend_pairs(rest);
        }
        found.into_iter().map(|(_, value)| value).next_back().filter(|value| !value.is_empty())
    }
}

fn invalid(flaw: impl fmt::Display) -> Error {
    invalid_as(FORM, flaw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        Endpoint::parse(url).unwrap()
    }

    fn refused(url: &str) -> String {
        let error = Endpoint::parse(url).unwrap_err();
        assert!(error.is_invalid());
        error.to_string()
    }

    /// Hosts, ports, service and database, in both spellings.
    #[test]
    fn the_parts() {
        for scheme in ["redis+sentinel", "redis-sentinel", "valkey+sentinel", "rediss-sentinel"] {
            let found = endpoint(&format!("{scheme}://a,b:7,[::1]:8/my%20locks/3?replicas=2"));
            let service = found.service().unwrap();
            let shown: Vec<_> = service.sentinels().iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["a:26379", "b:7", "[::1]:8"]);
            assert_eq!((service.name(), found.db()), ("my locks", 3));
            assert_eq!(found.replicas(), Some(2));
            assert_eq!(found.has_tls(), scheme.starts_with("rediss"));
        }
    }

    /// The password of the master is before the host, that of the Sentinels in the query.
    #[test]
    fn t66_two_passwords() {
        let url = "redis+sentinel://u:p%40@a,b/s?sentinel_user=su&sentinel_password=s%26p";
        let found = endpoint(url);
        assert_eq!((found.user(), found.password()), (Some("u"), Some("p@")));
        let login = found.service().unwrap().login();
        assert_eq!((login.user, login.password), (Some("su"), Some("s&p")));
        assert!(!format!("{found:?}").contains("s&p"));
    }

    /// An invalid URL is rejected, and the message repeats no text that may be a password.
    #[test]
    fn t66_refusals_keep_secrets() {
        for url in [
            "redis+sentinel:hunter2",
            "redis+sentinel://:hunter2@a",
            "redis+sentinel://:hunter2@/s",
            "redis+sentinel://:hunter2@a,,b/s",
            "redis+sentinel://:hunter2@a:x/s",
            "redis+sentinel://:hunter2@a/s/hunter2",
            "redis+sentinel://:hunter2@a/s/0/hunter2",
            "redis+sentinel://a/s?sentinel_user=hunter2",
            "redis+sentinel://a/s?sentinel_pass=hunter2",
            "redis+sentinel://a/s?replicas=hunter2",
            "zoo+sentinel://:hunter2@a/s",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert_eq!(
            refused("redis+sentinel://a"),
            "invalid redis url: it names no service; expected \
             `redis+sentinel://[user:password@]host[:port][,host[:port]]/service[/db]`"
        );
    }
}

//! From a URL to an address and credentials.
//!
//! ```text
//! redis://[user][:password@]host[:port][/db]      valkey:// is the same
//! rediss://…[#insecure]                           with TLS; valkeys:// is the same
//! redis+unix://[user][:password@]/path/to/socket[?db=N]
//! redis+sentinel://…                              see `url/sentinel.rs`
//! redis-cluster://…                               see `url/cluster.rs`
//! ```
//!
//! With `?replicas=N` a grant waits until so many replicas have it. `?lock_key=distributed_lock:{key}` is a
//! template for the key of a lock on the server, see `wire/lock_key.rs`.
//!
//! User and password are percent-decoded. Messages about a URL never contain it: it may have a password.

pub(crate) mod cluster;
mod sentinel;

use std::fmt;

use percent_encoding::percent_decode_str;
use tenure_core::Error;
use url::Url;

use sentinel::Service;

const PORT_DEFAULT: u16 = 6379;
const FORM: &str = "expected `redis://[user:password@]host[:port][/db]` or `redis+unix:///path`";

/// A server, and our login.
#[derive(Clone)]
pub(crate) struct Endpoint {
    address: Address,
    db: i64,
    user: Option<String>,
    password: Option<String>,
    tls: bool,
    insecure: bool,
    replicas: Option<usize>,
    lock_key: Option<String>,
    service: Option<Service>,
}

/// Our login at a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    pub(crate) db: i64,
}

/// The address of a server. Shown in messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(String),
}

impl Address {
    /// An address that the server at this address reports: without a host, it is the same host.
    pub(crate) fn beside(&self, host: &str, port: u16) -> Address {
        match self {
            Address::Tcp(here, _) if host.is_empty() => Address::Tcp(here.clone(), port),
            _ => Address::Tcp(host.into(), port),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => f.write_str(path),
        }
    }
}

/// The password is not shown.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Endpoint");
        shown.field("address", &self.address).field("db", &self.db).field("user", &self.user);
        shown.finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        if cluster::plain(scheme).is_some() {
            return Err(invalid(
                "it is a cluster's, where locks can be (`Builder::cluster`) and values of a client cannot",
            ));
        }
        match sentinel::split(text) {
            Some(split) => split?.endpoint(),
            None => Self::of_one(text),
        }
    }

    /// The same server, found by the Sentinels of `service`.
    pub(crate) fn of_service(self, service: Service) -> Self {
        let address = service.sentinels().first().cloned().unwrap_or(self.address);
        Endpoint { address, service: Some(service), ..self }
    }

    pub(crate) fn of_one(text: &str) -> Result<Self, Error> {
        // The parser's own error names the part that is wrong, and quotes none.
        let url = Url::parse(text).map_err(|error| invalid(error.to_string()))?;
        let address = address(&url)?;
        let user = decoded(url.username())?.filter(|user| !user.is_empty());
        let password = decoded(url.password().unwrap_or_default())?;
        let password = password.filter(|password| !password.is_empty());
        if user.is_some() && password.is_none() {
            return Err(invalid("it has a user and no password"));
        }
        let (db, tls) = (db(&url, &address)?, matches!(url.scheme(), "rediss" | "valkeys"));
        let (insecure, replicas, service) = (insecure(&url, tls)?, replicas(&url)?, None);
        let lock_key = parameter(&url, "lock_key");
        Ok(Endpoint { db, address, user, password, tls, insecure, replicas, lock_key, service })
    }

    /// The service by which Sentinels know the server, if the URL names one.
    pub(crate) fn service(&self) -> Option<&Service> {
        self.service.as_ref()
    }

    /// How many replicas must have a grant.
    pub(crate) fn replicas(&self) -> Option<usize> {
        self.replicas
    }

    /// The template for the keys of locks.
    pub(crate) fn lock_key(&self) -> Option<&str> {
        self.lock_key.as_deref()
    }

    /// Whether the connection uses TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls
    }

    /// Whether the server's certificate is not checked.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn login(&self) -> Login<'_> {
        Login { user: self.user.as_deref(), password: self.password.as_deref(), db: self.db }
    }

    pub(crate) fn db(&self) -> i64 {
        self.db
    }

    #[cfg(test)]
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

fn invalid(flaw: impl fmt::Display) -> Error {
    invalid_as(FORM, flaw)
}

fn invalid_as(form: &str, flaw: impl fmt::Display) -> Error {
    Error::invalid(format!("invalid redis url: {flaw}; {form}"))
}

/// Splits what follows the `//` of a URL with several hosts, which URL parsers reject: user and password with
/// the `@`, the hosts, and everything after them.
pub(crate) fn split_hosts(rest: &str) -> (&str, &str, &str) {
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    (login, hosts, tail)
}

/// The addresses of several hosts; `port` for those that have none.
fn addresses(hosts: &str, port: u16, form: &str) -> Result<Vec<Address>, Error> {
    let address = |host| {
        let url = Url::parse(&format!("redis://{host}")).map_err(|e| invalid_as(form, e))?;
        match url.host_str().is_none_or(str::is_empty) {
            true => Err(invalid_as(form, "it names no host")),
            false => tcp_or(&url, port),
        }
    };
    hosts.split(',').map(address).collect()
}

fn address(url: &Url) -> Result<Address, Error> {
    match url.scheme() {
        "redis" | "rediss" | "valkey" | "valkeys" => tcp_or(url, PORT_DEFAULT),
        "redis+unix" | "valkey+unix" | "unix" => unix(url),
        scheme => Err(invalid(format_args!("unknown scheme `{scheme}`"))),
    }
}

/// Host and port; `port` if the URL has none.
fn tcp_or(url: &Url, port: u16) -> Result<Address, Error> {
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = decoded(host.ok_or_else(|| invalid("it names no host"))?)?.unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    Ok(Address::Tcp(bare.into(), url.port().unwrap_or(port)))
}

fn unix(url: &Url) -> Result<Address, Error> {
    match decoded(url.path())? {
        Some(path) if path.len() > 1 => Ok(Address::Unix(path)),
        _ => Err(invalid("it names no socket")),
    }
}

fn db(url: &Url, address: &Address) -> Result<i64, Error> {
    let query = parameter(url, "db");
    let known = |name: &str| matches!(name, "db" | "replicas" | "lock_key");
    if let Some((name, _)) = url.query_pairs().find(|(name, _)| !known(name)) {
        return Err(invalid(format_args!("unknown parameter `{}`", name.escape_debug())));
    }
    let path = match address {
        Address::Tcp(..) => url.path().trim_matches('/'),
        Address::Unix(_) => "",
    };
    let text = query.unwrap_or_else(|| path.into());
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| invalid("its database is not a number"))
}

fn replicas(url: &Url) -> Result<Option<usize>, Error> {
    let count = parameter(url, "replicas").map(|count| count.parse());
    count.transpose().map_err(|_| invalid("its `replicas` is not a number"))
}

/// The value of a parameter.
fn parameter(url: &Url, wanted: &str) -> Option<String> {
    let mut pairs = url.query_pairs().filter(|(name, _)| name == wanted);
    pairs.next().map(|(_, value)| value.into_owned())
}

fn insecure(url: &Url, tls: bool) -> Result<bool, Error> {
    match url.fragment() {
        None => Ok(false),
        Some("insecure") if tls => Ok(true),
        Some("insecure") => Err(invalid("`#insecure` is about TLS, which it does not ask for")),
        Some(_) => Err(invalid("what follows `#` can only be `insecure`")),
    }
}

pub(crate) fn decoded(part: &str) -> Result<Option<String>, Error> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(|text| Some(text.into_owned())).map_err(|_| invalid("it is not UTF-8"))
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

    /// Every form of address.
    #[test]
    fn addresses() {
        assert_eq!(endpoint("redis://h").address().to_string(), "h:6379");
        assert_eq!(endpoint("valkey://h:1/3").address().to_string(), "h:1");
        assert_eq!(endpoint("redis://[::1]:7/").address(), &Address::Tcp("::1".into(), 7));
        assert_eq!(endpoint("redis://[::1]:7/").address().to_string(), "[::1]:7");
        assert_eq!(
            endpoint("redis+unix:///run/r.sock?db=2").address(),
            &Address::Unix("/run/r.sock".into())
        );
        assert_eq!((endpoint("valkey://h/3").db(), endpoint("redis+unix:///s?db=2").db()), (3, 2));
    }

    /// TLS by the scheme; trust without a check only if it is written out.
    #[test]
    fn t65_tls() {
        let said = |url| (endpoint(url).has_tls(), endpoint(url).is_insecure());
        assert_eq!(said("redis://h"), (false, false));
        assert_eq!((said("rediss://h"), said("valkeys://h:1/2")), ((true, false), (true, false)));
        assert_eq!(said("rediss://h#insecure"), (true, true));
        assert_eq!(endpoint("rediss://h").address().to_string(), "h:6379");
    }

    /// t66: a password may contain anything, percent-encoded.
    #[test]
    fn t66_passwords_are_decoded() {
        let found = endpoint("redis://us%40er:p%40%3A%2F%25@h/1");
        assert_eq!((found.user(), found.password()), (Some("us@er"), Some("p@:/%")));
        assert_eq!(
            (endpoint("redis://:pw@h").user(), endpoint("redis://:pw@h").password()),
            (None, Some("pw"))
        );
    }

    /// t66: a URL that makes no sense is refused without quoting what may be a password.
    #[test]
    fn t66_refusals_keep_secrets() {
        for url in [
            "redis://:hunter2@",
            "redis://:hunter2@h:99999",
            "redis://:hunter2@h/hunter2",
            "rediss://:hunter2@",
            "rediss://:hunter2@h#hunter2",
            "redis://:hunter2@h#insecure",
            "zoo://:hunter2@h",
            "redis://:hunter2@h/-1",
            "redis://hunter2@h",
            "redis://u:%ffhunter2@h",
            "redis+unix://:hunter2@",
            "redis://:hunter2@h?pass=hunter2",
            "redis:// :hunter2@",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    /// A cluster is not a single server.
    #[test]
    fn a_cluster_is_refused() {
        let refused = refused("redis-cluster://:hunter2@a,b");
        assert!(
            refused.contains("(`Builder::cluster`) and values of a client cannot"),
            "{refused}"
        );
        assert!(!refused.contains("hunter2"), "{refused}");
    }

    /// The full text of a refusal.
    #[test]
    fn the_text_of_a_refusal() {
        assert_eq!(
            refused("redis:///1"),
            "invalid redis url: it names no host; expected \
             `redis://[user:password@]host[:port][/db]` or `redis+unix:///path`"
        );
    }

    /// t66: the debug output shows the address, not the password.
    #[test]
    fn t66_debug_hides_the_password() {
        let shown = format!("{:?}", endpoint("redis://u:hunter2@h"));
        assert!(shown.contains("\"h\"") && !shown.contains("hunter2"), "{shown}");
    }
}

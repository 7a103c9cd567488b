//! Parses a URL into addresses and credentials.
//!
//! ```text
//! etcd://[user:password@]host[:port][,host[:port]…]
//! etcds://…[#insecure]                                with TLS
//! etcd://                                             what `ETCDCTL_ENDPOINTS` names
//! ```
//!
//! User and password are percent-decoded. Messages about a URL never repeat it: it may contain a password.

use std::fmt;

use percent_encoding::percent_decode_str;
use tenure_core::Error;

const PORT_DEFAULT: u16 = 2379;
const FORM: &str = "expected `etcd://[user:password@]host[:port][,host[:port]…]`";

/// The members of a cluster, and our login.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) addresses: Vec<Address>,
    pub(crate) login: Option<Login>,
    pub(crate) tls: bool,
    pub(crate) insecure: bool,
}

/// The address of a member. Shown in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A user and its password. `Debug` does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Endpoints");
        shown.field("addresses", &self.addresses).field("login", &self.login);
        shown.finish_non_exhaustive()
    }
}

impl Endpoints {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it has no `://`"))?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(invalid("unknown scheme")),
        };
        let (rest, insecure) = match rest.split_once('#') {
            None => (rest, false),
            Some((rest, "insecure")) if tls => (rest, true),
            Some((_, "insecure")) => {
                return Err(invalid("`#insecure` is about TLS, which it does not ask for"));
            }
            Some(_) => return Err(invalid("what follows `#` can only be `insecure`")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login_of(login)?), hosts),
            None => (None, rest),
        };
        Ok(Endpoints { addresses: addresses(hosts)?, login, tls, insecure })
    }

    /// Parses the form of `ETCDCTL_ENDPOINTS`: `https://h1:2379,h2:2379`. TLS is used if one of them asks for
    /// it.
    pub(crate) fn parse_endpoints(text: &str, name: &str) -> Result<(Vec<Address>, bool), Error> {
        let bad_endpoints =
            || Error::invalid(format!("invalid `{name}`: expected `http[s]://host:port[,…]`"));
        let mut tls = false;
        let mut hosts = Vec::new();
        for endpoint in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (scheme, host) = endpoint.split_once("://").unwrap_or(("http", endpoint));
            tls |= match scheme {
                "http" => false,
                "https" => true,
                _ => return Err(bad_endpoints()),
            };
            hosts.push(host.trim_end_matches('/'));
        }
        let addresses = addresses(&hosts.join(",")).map_err(|_| bad_endpoints())?;
        Ok((addresses, tls))
    }
}

fn invalid(flaw: impl fmt::Display) -> Error {
    Error::invalid(format!("invalid etcd url: {flaw}; {FORM}"))
}

fn login_of(text: &str) -> Result<Login, Error> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let (user, password) = (decoded(user)?, decoded(password)?);
    match (user.is_empty(), password.is_empty()) {
        (false, false) => Ok(Login { user, password }),
        (true, _) => Err(invalid("it has a password and no user")),
        (_, true) => Err(invalid("it has a user and no password")),
    }
}

/// An empty list is allowed: the environment may name hosts.
fn addresses(hosts: &str) -> Result<Vec<Address>, Error> {
    if hosts.is_empty() {
        return Ok(vec![]);
    }
    hosts.split(',').map(address).collect()
}

fn address(text: &str) -> Result<Address, Error> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| invalid("`]` is missing"))?;
            (host, port.strip_prefix(':').or((port.is_empty()).then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port {
        Some("") if !text.ends_with(':') => Some(PORT_DEFAULT),
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None => None,
    };
    let host_is_odd =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '@' | '%' | '\\');
    if host.is_empty() || host.contains(host_is_odd) {
        return Err(invalid("a host is missing or makes no sense"));
    }
    let port = port.ok_or_else(|| invalid("a port is not a number from 1 to 65535"))?;
    Ok(Address { host: host.into(), port })
}

fn decoded(part: &str) -> Result<String, Error> {
    let text = percent_decode_str(part).decode_utf8();
    text.map(|text| text.into_owned()).map_err(|_| invalid("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(url: &str) -> Endpoints {
        Endpoints::parse(url).unwrap()
    }

    fn hosts(url: &str) -> Vec<String> {
        endpoints(url).addresses.iter().map(ToString::to_string).collect()
    }

    fn refused(url: &str) -> String {
        let error = Endpoints::parse(url).unwrap_err();
        assert!(error.is_invalid());
        error.to_string()
    }

    /// Every form of address.
    #[test]
    fn addresses() {
        assert_eq!(hosts("etcd://h"), ["h:2379"]);
        assert_eq!(
            hosts("etcd://h1:1,h2,[::1]:7,[::2]/"),
            ["h1:1", "h2:2379", "[::1]:7", "[::2]:2379"]
        );
        assert!(hosts("etcd://").is_empty());
        assert_eq!(endpoints("etcd://u:p@h").login.unwrap().user, "u");
    }

    /// The scheme selects TLS. An unchecked certificate is accepted only with `#insecure`.
    #[test]
    fn t65_tls() {
        let tls_of = |url| (endpoints(url).tls, endpoints(url).insecure);
        assert_eq!((tls_of("etcd://h"), tls_of("etcds://h")), ((false, false), (true, false)));
        assert_eq!(tls_of("etcds://h#insecure"), (true, true));
    }

    /// t66: a password may contain any character, percent-encoded.
    #[test]
    fn t66_passwords_are_decoded() {
        let login = endpoints("etcd://us%40er:p%40%3A%2F%25@h,i").login.unwrap();
        assert_eq!((&*login.user, &*login.password), ("us@er", "p@:/%"));
    }

    /// t66: an invalid URL is refused without repeating a possible password.
    #[test]
    fn t66_refusals_keep_secrets() {
        for url in [
            "etcd://u:hunter2@h:99999",
            "etcd://u:hunter2@h:0",
            "etcd://u:hunter2@h:",
            "etcd://u:hunter2@h,,i",
            "etcd://u:hunter2@h/hunter2",
            "etcd://u:hunter2@h?hunter2",
            "etcds://u:hunter2@h#hunter2",
            "etcd://u:hunter2@h#insecure",
            "zoo://u:hunter2@h",
            "etcd://hunter2@h",
            "etcd://:hunter2@h",
            "etcd://u:%ffhunter2@h",
            "etcd://u:hunter2@[::1",
            "etcd:hunter2",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    /// The full text of a refusal.
    #[test]
    fn the_text_of_a_refusal() {
        assert_eq!(
            refused("etcd://h:x"),
            "invalid etcd url: a port is not a number from 1 to 65535; expected \
             `etcd://[user:password@]host[:port][,host[:port]…]`"
        );
    }

    /// The forms that `etcdctl` reads are read.
    #[test]
    fn endpoints_of_etcdctl() {
        let (addresses, tls) = Endpoints::parse_endpoints("https://h1:1, h2:2/", "E").unwrap();
        assert_eq!((addresses.len(), tls, addresses[1].port), (2, true, 2));
        assert!(!Endpoints::parse_endpoints("http://h", "E").unwrap().1);
        assert!(Endpoints::parse_endpoints("ftp://h", "E").is_err());
    }

    /// t66: `Debug` shows the host, not the password.
    #[test]
    fn t66_debug_hides_the_password() {
        let shown = format!("{:?}", endpoints("etcd://u:hunter2@h"));
        assert!(shown.contains("\"h\"") && !shown.contains("hunter2"), "{shown}");
    }
}

//! From a URL with several hosts to the nodes of a cluster that are asked first.
//!
//! ```text
//! redis-cluster://[user][:password@]host[:port][,host[:port]…]
//! ```
//!
//! `redis+cluster://` is the same, `rediss-cluster://` has TLS to every node, and `valkey` may stand for
//! `redis` in each. As in `url.rs`, messages repeat nothing.

use std::fmt;

use tenure_core::Error;
use url::Url;

use crate::url::{Address, Place, tcp_or};

const PORT_DEFAULT: u16 = 6379;
const FORM: &str = "expected `redis-cluster://[user:password@]host[:port][,host[:port]]`";

/// Whom to ask first, and who we are to every node.
pub(super) struct Hosts {
    pub(super) seeds: Vec<Address>,
    /// The first of them.
    pub(super) place: Place,
}

impl Hosts {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it names no host"))?;
        let plain = plain(scheme).ok_or_else(|| invalid("its scheme is not a cluster's"))?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (before, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let seeds = hosts.split(',').map(seed).collect::<Result<Vec<_>, _>>()?;
        let first = hosts.split(',').next().unwrap_or_default();
        let place = Place::of_one(&format!("{plain}://{before}{first}{tail}"))?;
        match place.db() {
            0 => Ok(Hosts { seeds, place }),
            _ => Err(invalid("a cluster has the database 0 and no other")),
        }
    }
}

/// The scheme of one server of the same kind, if it is a cluster's.
pub(crate) fn plain(scheme: &str) -> Option<&str> {
    scheme.strip_suffix("cluster")?.strip_suffix(['+', '-'])
}

fn seed(host: &str) -> Result<Address, Error> {
    let url = Url::parse(&format!("redis://{host}")).map_err(invalid)?;
    match url.host_str().is_none_or(str::is_empty) {
        true => Err(invalid("it names no host")),
        false => tcp_or(&url, PORT_DEFAULT),
    }
}

fn invalid(flaw: impl fmt::Display) -> Error {
    Error::invalid(format!("invalid redis url: {flaw}; {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match Hosts::parse(url) {
            Err(error) if error.is_invalid() => error.to_string(),
            Err(error) => panic!("{error:?}"),
            Ok(_) => panic!("{url} is accepted"),
        }
    }

    /// Hosts, ports and who we are, in every spelling.
    #[test]
    fn the_parts() {
        for scheme in ["redis-cluster", "redis+cluster", "valkey-cluster", "rediss-cluster"] {
            let found =
                Hosts::parse(&format!("{scheme}://u:p%40@a,b:7,[::1]:8?replicas=1")).unwrap();
            let shown: Vec<_> = found.seeds.iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["a:6379", "b:7", "[::1]:8"]);
            assert_eq!((found.place.user(), found.place.password()), (Some("u"), Some("p@")));
            assert_eq!(found.place.replicas(), Some(1));
            assert_eq!(found.place.has_tls(), scheme.starts_with("rediss"));
        }
        assert!(Hosts::parse("redis-cluster://a/0").is_ok());
    }

    /// t66: what makes no sense is refused, without repeating what may be a password.
    #[test]
    fn t66_refusals_keep_secrets() {
        for url in [
            "redis-cluster:hunter2",
            "redis-cluster://:hunter2@",
            "redis-cluster://:hunter2@a,,b",
            "redis-cluster://:hunter2@a:x",
            "redis-cluster://:hunter2@a,b:hunter2",
            "redis-cluster://:hunter2@a/hunter2",
            "redis-cluster://hunter2@a",
            "zoo-cluster://:hunter2@a",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert_eq!(
            refused("redis-cluster://a,b/3"),
            "invalid redis url: a cluster has the database 0 and no other; expected \
             `redis-cluster://[user:password@]host[:port][,host[:port]]`"
        );
    }
}

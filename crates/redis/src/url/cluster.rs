//! Parses a URL with several hosts: the nodes of a cluster to query first.
//!
//! ```text
//! redis-cluster://[user][:password@]host[:port][,host[:port]…]
//! ```
//!
//! `redis+cluster://` is the same, `rediss-cluster://` uses TLS to every node, and `valkey` may replace
//! `redis` in each. As in `url/mod.rs`, error messages repeat no part of the URL.

use std::fmt;

use tenure_core::Error;

use super::{Address, Endpoint, PORT_DEFAULT, addresses, invalid_as, split_hosts};

const FORM: &str = "expected `redis-cluster://[user:password@]host[:port][,host[:port]]`";

/// The nodes to query first, and the credentials and settings for every node.
pub(crate) struct Hosts {
    pub(crate) seeds: Vec<Address>,
    /// The endpoint of the first seed.
    pub(crate) endpoint: Endpoint,
}

impl Hosts {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("it names no host"))?;
        let plain = plain(scheme).ok_or_else(|| invalid("its scheme is not a cluster's"))?;
        let (before, hosts, tail) = split_hosts(rest);
        let seeds = addresses(hosts, PORT_DEFAULT, FORM)?;
        let first = hosts.split(',').next().unwrap_or_default();
        let endpoint = Endpoint::of_one(&format!("{plain}://{before}{first}{tail}"))?;
        match endpoint.db() {
            0 => Ok(Hosts { seeds, endpoint }),
            _ => Err(invalid("a cluster has the database 0 and no other")),
        }
    }
}

/// The scheme of a single server of the same kind, if `scheme` is one of a cluster.
pub(crate) fn plain(scheme: &str) -> Option<&str> {
    scheme.strip_suffix("cluster")?.strip_suffix(['+', '-'])
}

fn invalid(flaw: impl fmt::Display) -> Error {
    invalid_as(FORM, flaw)
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

    /// Hosts, ports and credentials, in every spelling.
    #[test]
    fn the_parts() {
        for scheme in ["redis-cluster", "redis+cluster", "valkey-cluster", "rediss-cluster"] {
            let found =
                Hosts::parse(&format!("{scheme}://u:p%40@a,b:7,[::1]:8?replicas=1")).unwrap();
            let shown: Vec<_> = found.seeds.iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["a:6379", "b:7", "[::1]:8"]);
            assert_eq!((found.endpoint.user(), found.endpoint.password()), (Some("u"), Some("p@")));
            assert_eq!(found.endpoint.replicas(), Some(1));
            assert_eq!(found.endpoint.has_tls(), scheme.starts_with("rediss"));
        }
        assert!(Hosts::parse("redis-cluster://a/0").is_ok());
    }

    /// t66: an invalid URL is rejected, and the message repeats no text that may be a password.
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

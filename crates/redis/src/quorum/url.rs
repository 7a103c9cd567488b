//! Parses a URL into the endpoints of a quorum's nodes.
//!
//! ```text
//! redis+quorum://[user][:password@]host[:port],host[:port],host[:port][/db][?restarted=trusted]
//! rediss+quorum://…[#insecure]       with TLS; valkey+quorum and valkeys+quorum are the same
//! ```
//!
//! Credentials and database are the same for all nodes. Error messages never repeat the URL.

use tenure_core::Error;

use crate::url::{Endpoint, split_hosts};

/// The largest number of nodes. Every lock asks all nodes; five survive two failures, seven survive three.
pub const NODES_MAX: usize = 15;
/// The smallest number of nodes that survives a failure.
const NODES_MIN: usize = 3;
const FORM: &str =
    "expected `redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]`";
const TRUSTED: &str = "restarted=trusted";

/// The endpoints of the nodes, and whether the vote of a node that has just started counts.
#[derive(Debug)]
pub(super) struct QuorumUrl {
    pub(super) nodes: Vec<Endpoint>,
    pub(super) trusts_restarted: bool,
}

impl QuorumUrl {
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let parts = Parts::of(url)?;
        let nodes = parts.hosts.split(',').map(|host| Endpoint::of_one(&parts.url_of(host)));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        count_is_right(nodes.len())?;
        all_differ(&nodes)?;
        Ok(QuorumUrl { nodes, trusts_restarted: parts.trusts_restarted })
    }
}

/// The parts of a URL with several hosts, which URL parsers reject.
struct Parts<'a> {
    scheme: &'a str,
    /// User and password, with the `@`.
    user: &'a str,
    hosts: &'a str,
    /// From the `/` on, without our own parameter.
    rest: String,
    trusts_restarted: bool,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it names no host"))?;
        let scheme = match scheme.strip_suffix("+quorum") {
            Some(scheme @ ("redis" | "rediss" | "valkey" | "valkeys")) => scheme,
            _ => return Err(invalid("its scheme is no quorum's")),
        };
        let (user, hosts, rest) = split_hosts(rest);
        let (rest, trusts_restarted) = without_trust(rest)?;
        Ok(Parts { scheme, user, hosts, rest, trusts_restarted })
    }

    fn url_of(&self, host: &str) -> String {
        let Parts { scheme, user, rest, .. } = self;
        format!("{scheme}://{user}{host}{rest}")
    }
}

/// The rest of a URL without our own parameter, and whether it was present.
fn without_trust(rest: &str) -> Result<(String, bool), Error> {
    let (before, fragment) = rest.find('#').map_or((rest, ""), |at| rest.split_at(at));
    let Some((path, query)) = before.split_once('?') else {
        return Ok((rest.into(), false));
    };
    let (ours, others): (Vec<_>, Vec<_>) = query.split('&').partition(|pair| *pair == TRUSTED);
    if others.iter().any(|pair| pair.split('=').next() == Some("restarted")) {
        return Err(invalid("its `restarted` can only be `trusted`"));
    }
    let mark = if others.is_empty() { "" } else { "?" };
    Ok((format!("{path}{mark}{}{fragment}", others.join("&")), !ours.is_empty()))
}

fn count_is_right(count: usize) -> Result<(), Error> {
    let flaw = match count {
        ..NODES_MIN => format!("it has {count} nodes, and only {NODES_MIN} or more outlive one"),
        count if count > NODES_MAX => format!("it has {count} nodes, at most {NODES_MAX} can be"),
        count if count % 2 == 0 => format!(
            "it has {count} nodes, which outlive no more failures than {}: take an odd number",
            count - 1
        ),
        _ => return Ok(()),
    };
    Err(invalid(flaw))
}

fn all_differ(nodes: &[Endpoint]) -> Result<(), Error> {
    let names: Vec<String> =
        nodes.iter().map(|node| node.address().to_string().to_ascii_lowercase()).collect();
    let twice = (1..names.len()).find(|at| names[..*at].contains(&names[*at]));
    match twice {
        Some(at) => Err(invalid(format!("it names the node `{}` twice", names[at]))),
        None => Ok(()),
    }
}

fn invalid(flaw: impl std::fmt::Display) -> Error {
    Error::invalid(format!("invalid quorum url: {flaw}; {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        let error = QuorumUrl::parse(url).unwrap_err();
        assert!(error.is_invalid());
        error.to_string()
    }

    /// Hosts with their ports, and the settings for all of them.
    #[test]
    fn url() {
        let found = QuorumUrl::parse("redis+quorum://u:p%40,x@a:1,[::1]:2,c/3?restarted=trusted");
        let found = found.unwrap();
        let shown: Vec<_> = found.nodes.iter().map(|node| node.address().to_string()).collect();
        assert_eq!(shown, ["a:1", "[::1]:2", "c:6379"]);
        assert!(found.trusts_restarted);
        for node in &found.nodes {
            assert_eq!((node.user(), node.password(), node.db()), (Some("u"), Some("p@,x"), 3));
        }
        let tls = QuorumUrl::parse("valkeys+quorum://a,b,c#insecure").unwrap();
        assert!(!tls.trusts_restarted);
        assert!(tls.nodes.iter().all(|node| node.has_tls() && node.is_insecure()));
    }

    /// t61: too few nodes, an even number, too many, the same node twice.
    #[test]
    fn t61_numbers_of_nodes() {
        let flaw = |flaw: &str| format!("invalid quorum url: {flaw}; {FORM}");
        let few = |count| flaw(&format!("it has {count} nodes, and only 3 or more outlive one"));
        assert_eq!(refused("redis+quorum://a"), few(1));
        assert_eq!(refused("redis+quorum://a,b"), few(2));
        assert_eq!(
            refused("redis+quorum://a,b,c,d"),
            flaw("it has 4 nodes, which outlive no more failures than 3: take an odd number")
        );
        let many: Vec<_> = (0..17).map(|number| format!("h{number}")).collect();
        let many = format!("redis+quorum://{}", many.join(","));
        assert_eq!(refused(&many), flaw("it has 17 nodes, at most 15 can be"));
        assert_eq!(refused("redis+quorum://a:6379,b,A"), flaw("it names the node `a:6379` twice"));
        for wrong in ["restarted=yes", "restarted", "restarted=", "replicas=0&restarted=no"] {
            let url = format!("redis+quorum://a,b,c?{wrong}");
            assert_eq!(refused(&url), flaw("its `restarted` can only be `trusted`"), "{wrong}");
        }
        for empty in ["redis+quorum://", "redis+quorum:///1", "redis+quorum://a,,c"] {
            assert!(refused(empty).starts_with("invalid redis url: "), "{}", refused(empty));
        }
    }

    /// t66: an invalid URL is rejected, and the message repeats no text that may be a password.
    #[test]
    fn t66_refusals_keep_secrets() {
        for url in [
            "redis+quorum://:hunter2@a,b",
            "redis+quorum://:hunter2@a,b,c:99999",
            "redis+quorum://:hunter2@a,b,c/hunter2",
            "redis+quorum://:hunter2@a,b,c?pass=hunter2",
            "redis+quorum://a,:hunter2@b,c/x",
            "zoo+quorum://:hunter2@a,b,c",
            "redis+quorum:hunter2",
        ] {
            let message = refused(url);
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

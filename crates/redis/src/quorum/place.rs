//! From a URL to the places of a quorum's nodes.
//!
//! ```text
//! redis+quorum://[user][:password@]host[:port],host[:port],host[:port][/db][?restarted=trusted]
//! rediss+quorum://…[#insecure]       with TLS; valkey+quorum and valkeys+quorum are the same
//! ```
//!
//! One set of credentials and one database for all. Messages never repeat the URL.

use tenure_core::Error;

use crate::url::Place;

/// The most nodes. Each is asked for every lock; five outlive two failures, seven outlive three.
pub const NODES_MAX: usize = 15;
/// The fewest that outlive a failure.
const NODES_MIN: usize = 3;
const FORM: &str =
    "expected `redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]`";
const TRUSTED: &str = "restarted=trusted";

/// Where the nodes are, and whether the vote of one that has just started counts.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) nodes: Vec<Place>,
    pub(super) trusts_restarted: bool,
}

impl Places {
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let parts = Parts::of(url)?;
        let nodes = parts.hosts.split(',').map(|host| Place::of_one(&parts.url_of(host)));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        count_is_right(nodes.len())?;
        all_differ(&nodes)?;
        Ok(Places { nodes, trusts_restarted: parts.trusts_restarted })
    }
}

/// The parts of a URL that names several hosts, which no parser of URLs would take.
struct Parts<'a> {
    scheme: &'a str,
    /// With the `@`.
    user: &'a str,
    hosts: &'a str,
    /// From the `/` on, without what is ours.
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
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let at = authority.rfind('@').map_or(0, |at| at + 1);
        let (user, hosts) = authority.split_at(at);
        let (rest, trusts_restarted) = without_trust(rest);
        Ok(Parts { scheme, user, hosts, rest, trusts_restarted })
    }

    fn url_of(&self, host: &str) -> String {
        let Parts { scheme, user, rest, .. } = self;
        format!("{scheme}://{user}{host}{rest}")
    }
}

/// The rest of a URL without the parameter that is ours, and whether it was there.
fn without_trust(rest: &str) -> (String, bool) {
    let (before, fragment) = rest.find('#').map_or((rest, ""), |at| rest.split_at(at));
    let Some((path, query)) = before.split_once('?') else { return (rest.into(), false) };
    let (ours, others): (Vec<_>, Vec<_>) = query.split('&').partition(|pair| *pair == TRUSTED);
    let mark = if others.is_empty() { "" } else { "?" };
    (format!("{path}{mark}{}{fragment}", others.join("&")), !ours.is_empty())
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

fn all_differ(nodes: &[Place]) -> Result<(), Error> {
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
        let error = Places::parse(url).unwrap_err();
        assert!(error.is_invalid());
        error.to_string()
    }

    /// Hosts with their ports, and what is said once for all.
    #[test]
    fn places() {
        let found = Places::parse("redis+quorum://u:p%40,x@a:1,[::1]:2,c/3?restarted=trusted");
        let found = found.unwrap();
        let shown: Vec<_> = found.nodes.iter().map(|node| node.address().to_string()).collect();
        assert_eq!(shown, ["a:1", "[::1]:2", "c:6379"]);
        assert!(found.trusts_restarted);
        for node in &found.nodes {
            assert_eq!((node.user(), node.password(), node.db()), (Some("u"), Some("p@,x"), 3));
        }
        let tls = Places::parse("valkeys+quorum://a,b,c#insecure").unwrap();
        assert!(!tls.trusts_restarted);
        assert!(tls.nodes.iter().all(|node| node.has_tls() && node.is_insecure()));
    }

    /// t61: too few, an even number, too many, the same twice.
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
        for empty in ["redis+quorum://", "redis+quorum:///1", "redis+quorum://a,,c"] {
            assert!(refused(empty).starts_with("invalid redis url: "), "{}", refused(empty));
        }
    }

    /// t66: a URL that makes no sense is refused without repeating what may be a password.
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

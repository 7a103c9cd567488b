//! A quorum of Redis servers: our locks against the bare commands sent to all servers, complete with a
//! majority of replies.
//!
//! All keys have a random prefix of the run, and are deleted at the end.

mod bare;

use tenure::Locker;
use tenure::redis::Quorum;

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::DRAIN;
use crate::redis::{Bare, clear, prefix};
use crate::report::Figure;
use crate::rounds::{Lap, interleave};
use bare::Majority;

const KEY: &str = "bench";
/// Addresses without a listener, which stand for dead nodes.
const DEAD: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];

/// The kind of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    AllAlive,
    /// Our side uses dead addresses instead of the last two nodes.
    TwoDead,
}

/// The bars are from the issue that introduced the quorum.
pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    Entry { names: &["quorum/1"], kind: Kind::AllAlive },
    Entry { names: &["quorum/two-dead"], kind: Kind::TwoDead },
];

/// Whether URLs with this scheme belong to this module.
pub(crate) fn is_quorum(scheme: &str) -> bool {
    ["redis+quorum", "rediss+quorum", "valkey+quorum", "valkeys+quorum"].contains(&scheme)
}

pub(crate) async fn measure(run: &Run<'_>, site: &Site, kind: Kind) -> Result<Vec<Figure>, Error> {
    let (url, bar) = match kind {
        Kind::AllAlive => (site.urls.all(), 1.45),
        Kind::TwoDead => (site.urls.with_dead()?, 1.6),
    };
    // The prefix is new, so a restarted node cannot have lost locks of it.
    let builder = Quorum::builder(&url).prefix(&site.prefix).trust_restarted();
    let locker = Locker::new(builder.quorum().await?);
    let mut majority = Majority::of(&site.nodes, &format!("{}:bare", site.prefix))?;
    let ours = async |lap| ours(&locker, lap).await;
    let measured = interleave(run, ours, async |lap| majority.run(lap).await).await;
    locker.shutdown(DRAIN).await;
    Ok(vec![Figure { name: run.figure(), measure: measured?, bar }])
}

async fn ours(locker: &Locker, lap: Lap) -> Result<u64, Error> {
    let mut cycles = 0;
    while lap.goes_on() {
        locker.lock(KEY).await?.release().await?;
        cycles += 1;
    }
    Ok(cycles)
}

/// The nodes, a bare connection to each, and our keys on them.
pub(crate) struct Site {
    urls: Urls,
    nodes: Vec<Bare>,
    prefix: String,
}

impl Site {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let (urls, mut nodes) = (Urls::of(url)?, Vec::new());
        for node in urls.nodes() {
            nodes.push(Bare::connect(&node).await?);
        }
        Ok(Site { urls, nodes, prefix: prefix()? })
    }

    /// Removes every key of this run.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        for node in &self.nodes {
            clear(node, &self.prefix).await?;
        }
        Ok(())
    }
}

/// The parts of a quorum's URL.
struct Urls {
    /// Such as `redis+quorum`.
    scheme: String,
    /// The login, with the `@`.
    user: String,
    hosts: Vec<String>,
    /// The database, with the `/`. Other parameters of the URL do not matter here.
    path: String,
}

impl Urls {
    fn of(url: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| Error::Usage("the url names no host".into()))?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let hosts = hosts.split(',').map(String::from).collect();
        Ok(Urls { scheme: scheme.into(), user: user.into(), hosts, path: path.into() })
    }

    /// The URL of each node.
    fn nodes(&self) -> impl Iterator<Item = String> {
        let Urls { scheme, user, hosts, path } = self;
        let scheme = scheme.trim_end_matches("+quorum");
        hosts.iter().map(move |host| format!("{scheme}://{user}{host}{path}"))
    }

    fn all(&self) -> String {
        self.of_hosts(&self.hosts.join(","))
    }

    fn of_hosts(&self, hosts: &str) -> String {
        let Urls { scheme, user, path, .. } = self;
        format!("{scheme}://{user}{hosts}{path}")
    }

    fn with_dead(&self) -> Result<String, Error> {
        if self.hosts.len() < 5 {
            return Err(Error::Usage("a quorum with two dead nodes has five or more".into()));
        }
        let alive = &self.hosts[..self.hosts.len() - DEAD.len()];
        Ok(self.of_hosts(&format!("{},{}", alive.join(","), DEAD.join(","))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes of a URL, and the URL with two dead nodes.
    #[test]
    fn urls() {
        let urls = Urls::of("valkey+quorum://u:p@a,b:1,c,d,e/3?restarted=trusted").unwrap();
        let nodes: Vec<_> = urls.nodes().collect();
        assert_eq!(nodes[..2], ["valkey://u:p@a/3", "valkey://u:p@b:1/3"]);
        assert_eq!(urls.all(), "valkey+quorum://u:p@a,b:1,c,d,e/3");
        let dead = "valkey+quorum://u:p@a,b:1,c,127.0.0.1:1,127.0.0.1:2/3";
        assert_eq!(urls.with_dead().unwrap(), dead);
        assert!(Urls::of("redis+quorum://a,b,c").unwrap().with_dead().is_err());
    }
}

//! A Redis Cluster: our locks against the bare commands, sent to the node that owns the slot.
//!
//! All keys have a random prefix of the run, are in two slots, and are deleted at the end.

use ::redis::RedisError;
use tenure::Locker;
use tenure::redis::Cluster;

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::{self, DRAIN, Fleet};
use crate::redis::bare::Bare;
use crate::redis::pingpong::{Channels, Hop, PingPong};
use crate::report::{Figure, Measure};
use crate::rounds::{Lap, interleave};

/// The kind of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Uncontended,
    Handover { lockers: usize },
}

/// The bars are from the design's table of figures.
pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    Entry { names: &["cluster/1"], kind: Kind::Uncontended },
    Entry { names: &["cluster/handover"], kind: Kind::Handover { lockers: 2 } },
];
const UNCONTENDED_BAR: f64 = 1.25;
const HANDOVER_BAR: f64 = 1.45;

/// The key of the lock without contention.
const KEY: &str = "bench:0";
/// How many redirections are followed before we assume a fault of the cluster.
const HOPS: usize = 5;
/// How many keys a scan asks for at once.
const KEYS_AT_ONCE: usize = 1_000;

pub(crate) async fn measure(run: &Run<'_>, site: &Site, kind: Kind) -> Result<Vec<Figure>, Error> {
    let (measure, bar) = match kind {
        Kind::Uncontended => (uncontended(run, site).await?, UNCONTENDED_BAR),
        Kind::Handover { lockers } => (handover(run, site, lockers).await?, HANDOVER_BAR),
    };
    Ok(vec![Figure { name: run.figure(), measure, bar }])
}

async fn uncontended(run: &Run<'_>, site: &Site) -> Result<Measure, Error> {
    let bare = Bare::connect(&site.node_of(KEY).await?).await?;
    let ours = async |lap: Lap| {
        let mut cycles = 0;
        while lap.goes_on() {
            site.locker.lock(KEY).await?.release().await?;
            cycles += 1;
        }
        Ok(cycles)
    };
    let theirs = async |lap: Lap| {
        let (mut lock, mut cycles) = (bare.lock(site.beside(KEY, "bare")), 0);
        while lap.goes_on() {
            lock.cycle().await?;
            cycles += 1;
        }
        Ok(cycles)
    };
    interleave(run, ours, theirs).await
}

async fn handover(run: &Run<'_>, site: &Site, lockers: usize) -> Result<Measure, Error> {
    let node = site.node_of(fleet::KEY).await?;
    let channels = ["0", "1"].map(|name| site.beside(fleet::KEY, name));
    let pingpong = PingPong::connect(&node, &channels, Channels::Sharded).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap| fleet.pass_round(lap).await;
    let measured = interleave(run, ours, async |lap| pingpong.play(lap, Hop::Message).await).await;
    fleet.close().await;
    measured
}

/// Whether URLs with this scheme belong to this module.
pub(crate) fn is_cluster(scheme: &str) -> bool {
    plain(scheme).is_some_and(|plain| ["redis", "rediss", "valkey", "valkeys"].contains(&plain))
}

/// The scheme of a single server.
fn plain(scheme: &str) -> Option<&str> {
    scheme.strip_suffix("cluster")?.strip_suffix(['-', '+'])
}

/// The cluster, and our keys on it.
pub(crate) struct Site {
    locker: Locker,
    url: String,
    prefix: String,
}

impl Site {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let random = getrandom::u64().map_err(|error| Error::surprise(error.to_string()))?;
        let prefix = format!("tenure-bench-{random:016x}");
        let cluster = Cluster::builder(url).prefix(&prefix).cluster().await?;
        Ok(Site { locker: Locker::new(cluster), url: url.into(), prefix })
    }

    /// Another locker with its own connections.
    fn another_locker(&self) -> impl Future<Output = Result<Locker, Error>> + Send + use<> {
        let cluster = Cluster::builder(&self.url).prefix(&self.prefix).cluster();
        async { Ok(Locker::new(cluster.await?)) }
    }

    /// A key of the bare side, in the slot of our lock `key`.
    fn beside(&self, key: &str, name: &str) -> String {
        format!("{{{}:lock:{key}}}:{name}", self.prefix)
    }

    /// The URL of the node that owns our lock `key`.
    async fn node_of(&self, key: &str) -> Result<String, Error> {
        let (start, host) = self.first();
        let (mut host, name) = (host.to_owned(), self.beside(key, "bare"));
        for _ in 0..HOPS {
            let url = format!("{start}{host}");
            let mut connection = Bare::connect(&url).await?.connection();
            let asked = ::redis::cmd("EXISTS").arg(&name).exec_async(&mut connection).await;
            match asked {
                Ok(()) => return Ok(url),
                Err(error) => host = sent_to(&error).ok_or(error)?,
            }
        }
        Err(Error::surprise("nodes of the cluster send us to and fro"))
    }

    /// The beginning of a node's URL, and the first host.
    fn first(&self) -> (String, &str) {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, hosts) =
            rest.rsplit_once('@').map_or(("", rest), |(login, hosts)| (login, hosts));
        let at = if login.is_empty() { "" } else { "@" };
        let host = hosts.split(',').next().unwrap_or_default();
        (format!("{}://{login}{at}", plain(scheme).unwrap_or("redis")), host)
    }

    /// Shuts our locker down and removes every key of this run.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        self.locker.shutdown(DRAIN).await;
        for key in [KEY, fleet::KEY] {
            let mut connection = Bare::connect(&self.node_of(key).await?).await?.connection();
            let (mut cursor, pattern) = (0_u64, format!("*{}*", self.prefix));
            loop {
                let mut scan = ::redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_AT_ONCE);
                let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
                for key in keys {
                    ::redis::cmd("UNLINK").arg(key).exec_async(&mut connection).await?;
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }
}

/// The host in a `MOVED` error, whose detail is `slot host:port`.
fn sent_to(error: &RedisError) -> Option<String> {
    let said = error.detail().filter(|_| error.code() == Some("MOVED"))?;
    said.split_once(' ').map(|(_, host)| host.into())
}

//! A Redis server: our locks beside the bare commands, with the same driver on the same server.
//!
//! All keys are under a prefix of the run's own, and gone when it ends.

pub(crate) mod bare;
mod uncontended;
pub(crate) mod pingpong;
mod handover;
mod requests;
mod crowd;
mod kept;
mod kv;
#[cfg(feature = "peers")]
mod peer;

use ::redis::AsyncCommands as _;
use tenure::Locker;
use tenure::redis::{Client, Redis};

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::DRAIN;
use crate::local;
use crate::report::{Figure, NO_BAR};
pub(crate) use bare::{Bare, client as bare_client};
use kv::Verb;
use uncontended::Fencing;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Uncontended {
        tasks: usize,
        fencing: Fencing,
        bar: f64,
    },
    Handover {
        lockers: usize,
    },
    LeastHandover {
        clients: usize,
    },
    Local,
    RequestsPerCycle,
    RequestsPerHandover,
    Crowd,
    Kept,
    Kv {
        tasks: usize,
        verb: Verb,
        bar: f64,
    },
    #[cfg(feature = "peers")]
    Peer,
}

/// Bars from the design's table of figures.
pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    uncontended(&["uncontended/1"], 1, Fencing::On, 1.15),
    uncontended(&["uncontended/64"], 64, Fencing::On, 1.5),
    uncontended(&["uncontended/512"], 512, Fencing::On, 2.0),
    uncontended(&["unfenced/64"], 64, Fencing::Off, 1.15),
    uncontended(&["unfenced/512"], 512, Fencing::Off, 1.15),
    Entry { names: &["handover/2"], kind: Kind::Handover { lockers: 2 } },
    Entry { names: &["handover/8"], kind: Kind::Handover { lockers: 8 } },
    Entry { names: &["handover/64"], kind: Kind::Handover { lockers: 64 } },
    Entry { names: &["handover/least"], kind: Kind::LeastHandover { clients: 2 } },
    Entry { names: &["handover/least-64"], kind: Kind::LeastHandover { clients: 64 } },
    Entry { names: &[local::NAME], kind: Kind::Local },
    Entry { names: &[requests::CYCLE], kind: Kind::RequestsPerCycle },
    Entry { names: &[requests::HANDOVER], kind: Kind::RequestsPerHandover },
    Entry { names: &[crowd::CLAIMS, crowd::CONNECTIONS], kind: Kind::Crowd },
    Entry { names: &[kept::HELD, kept::SOCKETS], kind: Kind::Kept },
    kv(&["get/64"], 64, Verb::Get, 1.1),
    kv(&["set/64"], 64, Verb::Set, 1.1),
    kv(&["pipeline/100"], 1, Verb::Pipeline, 1.1),
    kv(&["remember/64"], 64, Verb::Remember, 1.15),
    #[cfg(feature = "peers")]
    Entry { names: &[peer::P50, peer::P99, peer::WORST], kind: Kind::Peer },
];

const fn uncontended(
    names: &'static [&'static str],
    tasks: usize,
    fencing: Fencing,
    bar: f64,
) -> Entry<Kind> {
    Entry { names, kind: Kind::Uncontended { tasks, fencing, bar } }
}

const fn kv(names: &'static [&'static str], tasks: usize, verb: Verb, bar: f64) -> Entry<Kind> {
    Entry { names, kind: Kind::Kv { tasks, verb, bar } }
}

pub(crate) async fn measure(run: &Run<'_>, site: &Site, kind: Kind) -> Result<Vec<Figure>, Error> {
    match kind {
        Kind::Uncontended { tasks, fencing, bar } => {
            let measure = uncontended::measure(run, site, tasks, fencing).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::Handover { lockers } => {
            let measure = handover::measure(run, site, lockers).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar: handover::BAR }])
        }
        Kind::LeastHandover { clients } => {
            let measure = handover::least(run, site, clients).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar: NO_BAR }])
        }
        Kind::Local => Ok(vec![local::measure(run, &site.locker).await?]),
        Kind::RequestsPerCycle => Ok(vec![requests::per_cycle(run, site).await?]),
        Kind::RequestsPerHandover => Ok(vec![requests::per_handover(run, site).await?]),
        Kind::Crowd => crowd::measure(run, site).await,
        Kind::Kept => kept::measure(run, site).await,
        Kind::Kv { tasks, verb, bar } => {
            let measure = kv::measure(run, site, tasks, verb).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        #[cfg(feature = "peers")]
        Kind::Peer => peer::measure(run, site).await,
    }
}

/// Whether a URL of this scheme leads here.
pub(crate) fn is_redis(scheme: &str) -> bool {
    ["redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix"].contains(&scheme)
}

/// How many keys are looked for, and removed, at once.
const KEYS_AT_ONCE: usize = 1_000;

/// The server, both ways to it, and the keys that are ours there.
pub(crate) struct Site {
    pub(crate) locker: Locker,
    pub(crate) bare: Bare,
    url: String,
    prefix: String,
}

impl Site {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let prefix = prefix()?;
        let redis = Redis::builder(url).prefix(&prefix).connect().await?;
        let bare = Bare::connect(url).await?;
        Ok(Site { locker: Locker::new(redis), bare, url: url.into(), prefix })
    }

    /// One more of our side, with connections of its own.
    pub(crate) fn another_locker(
        &self,
    ) -> impl Future<Output = Result<Locker, Error>> + Send + use<> {
        let redis = Redis::builder(&self.url).prefix(&self.prefix).connect();
        async { Ok(Locker::new(redis.await?)) }
    }

    /// A client for values, under the same prefix.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        Ok(Client::builder(&self.url).prefix(&self.prefix).client().await?)
    }

    /// The name of a key or channel of the bare side.
    pub(crate) fn bare_key(&self, number: usize) -> String {
        format!("{}:bare:{number}", self.prefix)
    }

    /// The name of a key of another library.
    #[cfg(feature = "peers")]
    pub(crate) fn peer_key(&self) -> String {
        format!("{}:peer", self.prefix)
    }

    /// The names of what the server keeps of a lock of ours: itself, and who waits for it.
    pub(crate) fn keys_of(&self, key: &str) -> (String, String) {
        (format!("{}:lock:{key}", self.prefix), format!("{}:queue:{key}", self.prefix))
    }

    /// Ends our side and removes every key of this run.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        self.locker.shutdown(DRAIN).await;
        clear(&self.bare, &self.prefix).await
    }
}

/// What the keys of one run start with.
pub(crate) fn prefix() -> Result<String, Error> {
    let random = getrandom::u64().map_err(|error| Error::surprise(error.to_string()))?;
    Ok(format!("tenure-bench-{random:016x}"))
}

/// Removes every key of a run from a server.
pub(crate) async fn clear(server: &Bare, prefix: &str) -> Result<(), Error> {
    let mut connection = server.connection();
    let (mut cursor, pattern) = (0_u64, format!("{prefix}:*"));
    loop {
        let mut scan = ::redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_AT_ONCE);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
        if !keys.is_empty() {
            connection.unlink::<_, ()>(keys).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

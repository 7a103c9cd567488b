//! A Redis server: our locks against the bare commands, with the same driver on the same server.
//!
//! All keys have a random prefix of the run, and are deleted at the end.

pub(crate) mod bare;
mod uncontended;
pub(crate) mod pingpong;
mod handover;
mod phases;
mod many_readers;
mod requests;
mod many_tasks;
mod kept;
mod kv;
#[cfg(feature = "peers")]
mod peer;

use std::time::{Duration, Instant};

use ::redis::AsyncCommands as _;
use tenure::Locker;
use tenure::redis::{Client, Redis};

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::{DRAIN, Turn};
use crate::local;
use crate::report::{Figure, NO_BAR};
pub(crate) use bare::{Bare, client as bare_client};
use kv::Verb;
use uncontended::What;

/// The kind of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Uncontended {
        tasks: usize,
        what: What,
        bar: f64,
    },
    Handover {
        lockers: usize,
        bar: f64,
    },
    Permits {
        lockers: usize,
        bar: f64,
    },
    Resign {
        bar: f64,
    },
    ThreeKeys {
        bar: f64,
    },
    Phases,
    ManyReaders,
    LeastHandover {
        clients: usize,
    },
    Local,
    LocalRead,
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

/// The bars are from the design's table of figures.
pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    uncontended(&["uncontended/1"], 1, What::Lock, 1.2),
    uncontended(&["uncontended/64"], 64, What::Lock, 1.5),
    uncontended(&["uncontended/512"], 512, What::Lock, 2.0),
    uncontended(&["unfenced/64"], 64, What::LockWithoutFence, 1.15),
    uncontended(&["unfenced/512"], 512, What::LockWithoutFence, 1.3),
    uncontended(&["read/1"], 1, What::Read, 1.3),
    uncontended(&["permit/1"], 1, What::Permit, 1.35),
    Entry { names: &["lock-all/3"], kind: Kind::ThreeKeys { bar: 1.4 } },
    Entry { names: &["handover/2"], kind: Kind::Handover { lockers: 2, bar: 1.35 } },
    Entry { names: &["handover/8"], kind: Kind::Handover { lockers: 8, bar: 1.5 } },
    Entry { names: &["handover/64"], kind: Kind::Handover { lockers: 64, bar: 1.65 } },
    Entry { names: &["election/resign"], kind: Kind::Resign { bar: 1.6 } },
    Entry { names: &[phases::WRITER, phases::NOTIFIED], kind: Kind::Phases },
    Entry { names: &["handover/16-on-4-permits"], kind: Kind::Permits { lockers: 16, bar: 1.6 } },
    Entry { names: &[many_readers::LONGEST, many_readers::ALL], kind: Kind::ManyReaders },
    Entry { names: &["handover/least"], kind: Kind::LeastHandover { clients: 2 } },
    Entry { names: &["handover/least-64"], kind: Kind::LeastHandover { clients: 64 } },
    Entry { names: &[local::NAME], kind: Kind::Local },
    Entry { names: &[local::READ], kind: Kind::LocalRead },
    Entry { names: &[requests::CYCLE], kind: Kind::RequestsPerCycle },
    Entry { names: &[requests::HANDOVER], kind: Kind::RequestsPerHandover },
    Entry { names: &[many_tasks::CLAIMS, many_tasks::CONNECTIONS], kind: Kind::Crowd },
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
    what: What,
    bar: f64,
) -> Entry<Kind> {
    Entry { names, kind: Kind::Uncontended { tasks, what, bar } }
}

const fn kv(names: &'static [&'static str], tasks: usize, verb: Verb, bar: f64) -> Entry<Kind> {
    Entry { names, kind: Kind::Kv { tasks, verb, bar } }
}

pub(crate) async fn measure(run: &Run<'_>, site: &Site, kind: Kind) -> Result<Vec<Figure>, Error> {
    match kind {
        Kind::Uncontended { tasks, what, bar } => {
            let measure = uncontended::measure(run, site, tasks, what).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::Handover { lockers, bar } => {
            let measure = handover::measure(run, site, lockers, Turn::Lock).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::Resign { bar } => {
            let measure = handover::measure(run, site, 2, Turn::Lead).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::ThreeKeys { bar } => {
            let measure = uncontended::three_keys(run, site).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::Permits { lockers, bar } => {
            let measure = handover::permits(run, site, lockers).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        Kind::Phases => phases::measure(run, site).await,
        Kind::ManyReaders => many_readers::measure(run, site).await,
        Kind::LeastHandover { clients } => {
            let measure = handover::least(run, site, clients).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar: NO_BAR }])
        }
        Kind::Local => Ok(vec![local::measure(run, &site.locker).await?]),
        Kind::LocalRead => Ok(vec![local::measure_read(run, &site.locker).await?]),
        Kind::RequestsPerCycle => Ok(vec![requests::per_cycle(run, site).await?]),
        Kind::RequestsPerHandover => Ok(vec![requests::per_handover(run, site).await?]),
        Kind::Crowd => many_tasks::measure(run, site).await,
        Kind::Kept => kept::measure(run, site).await,
        Kind::Kv { tasks, verb, bar } => {
            let measure = kv::measure(run, site, tasks, verb).await?;
            Ok(vec![Figure { name: run.figure(), measure, bar }])
        }
        #[cfg(feature = "peers")]
        Kind::Peer => peer::measure(run, site).await,
    }
}

/// Whether URLs with this scheme belong to this module.
pub(crate) fn is_redis(scheme: &str) -> bool {
    ["redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix"].contains(&scheme)
}

/// How long claims may take to enter a queue: a hundred times longer than usual.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many keys are scanned and removed at once.
const KEYS_AT_ONCE: usize = 1_000;

/// The server, a connection of each side, and our keys on it.
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

    /// Another locker with its own connections.
    pub(crate) fn another_locker(
        &self,
    ) -> impl Future<Output = Result<Locker, Error>> + Send + use<> {
        let redis = Redis::builder(&self.url).prefix(&self.prefix).connect();
        async { Ok(Locker::new(redis.await?)) }
    }

    /// A key-value client with the same prefix.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        Ok(Client::builder(&self.url).prefix(&self.prefix).client().await?)
    }

    /// A key or channel of the bare side.
    pub(crate) fn bare_key(&self, number: usize) -> String {
        format!("{}:bare:{number}", self.prefix)
    }

    /// A key of another library.
    #[cfg(feature = "peers")]
    pub(crate) fn peer_key(&self) -> String {
        format!("{}:peer", self.prefix)
    }

    /// The keys of a lock of ours on the server: the lock itself, and its queue.
    pub(crate) fn keys_of(&self, key: &str) -> (String, String) {
        (format!("{}:lock:{key}", self.prefix), format!("{}:queue:{key}", self.prefix))
    }

    /// Waits until so many claims are in the queue of `key`. Asks without a pause: neither side falls asleep.
    pub(crate) async fn until_queued(&self, key: &str, count: usize) -> Result<(), Error> {
        let (queue, started) = (self.keys_of(key).1, Instant::now());
        let mut connection = self.bare.connection();
        while connection.zcard::<_, usize>(&queue).await? != count {
            if started.elapsed() > PATIENCE {
                return Err(Error::surprise("some lockers did not come to wait"));
            }
        }
        Ok(())
    }

    /// Shuts our locker down and removes every key of this run.
    pub(crate) async fn clear(&self) -> Result<(), Error> {
        self.locker.shutdown(DRAIN).await;
        clear(&self.bare, &self.prefix).await
    }
}

/// The prefix of all keys of one run.
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

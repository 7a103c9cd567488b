//! An etcd cluster: our locks against the bare transactions, with the same driver on the same cluster.
//!
//! All keys have a random prefix of the run, and are deleted at the end.

mod handover;
mod uncontended;
#[cfg(feature = "peers")]
mod peer;

use tenure::Locker;
use tenure::etcd::Etcd;
use tenure_etcd::bench_client::BenchClient;

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::fleet::DRAIN;
use crate::local;
use crate::report::Figure;

/// The kind of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Uncontended {
        tasks: usize,
        bar: f64,
    },
    Read,
    Handover {
        lockers: usize,
    },
    Local,
    #[cfg(feature = "peers")]
    Command,
    #[cfg(feature = "peers")]
    Mutex,
}

/// The bars are from the design's table of figures, where it has one. At 64 tasks the server is the
/// bottleneck: for us it also reads the queue, for the bare side it does not.
pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    Entry { names: &["uncontended/1"], kind: Kind::Uncontended { tasks: 1, bar: 1.15 } },
    Entry { names: &["uncontended/64"], kind: Kind::Uncontended { tasks: 64, bar: 1.5 } },
    Entry { names: &["read/1"], kind: Kind::Read },
    Entry { names: &["handover/2"], kind: Kind::Handover { lockers: 2 } },
    Entry { names: &["handover/8"], kind: Kind::Handover { lockers: 8 } },
    Entry { names: &[local::NAME], kind: Kind::Local },
    #[cfg(feature = "peers")]
    Entry { names: &[peer::COMMAND], kind: Kind::Command },
    #[cfg(feature = "peers")]
    Entry { names: &[peer::CYCLE, peer::HANDOVER], kind: Kind::Mutex },
];

pub(crate) async fn measure(run: &Run<'_>, site: &Site, kind: Kind) -> Result<Vec<Figure>, Error> {
    let (measure, bar) = match kind {
        Kind::Uncontended { tasks, bar } => (uncontended::measure(run, site, tasks).await?, bar),
        Kind::Read => (uncontended::read(run, site).await?, 1.2),
        Kind::Handover { lockers } => (handover::measure(run, site, lockers).await?, handover::BAR),
        Kind::Local => return Ok(vec![local::measure(run, &site.locker).await?]),
        #[cfg(feature = "peers")]
        Kind::Command => return peer::command(run, site).await,
        #[cfg(feature = "peers")]
        Kind::Mutex => return peer::mutex(run, site).await,
    };
    Ok(vec![Figure { name: run.figure(), measure, bar }])
}

/// Whether URLs with this scheme belong to this module.
pub(crate) fn is_etcd(scheme: &str) -> bool {
    matches!(scheme, "etcd" | "etcds")
}

/// The cluster, our locker, and our keys on it.
pub(crate) struct Site {
    locker: Locker,
    url: String,
    prefix: String,
}

impl Site {
    pub(crate) async fn connect(url: &str) -> Result<Self, Error> {
        let random = getrandom::u64().map_err(|error| Error::surprise(error.to_string()))?;
        let prefix = format!("tenure-bench-{random:016x}");
        let etcd = Etcd::builder(url).environment()?.prefix(&prefix).connect().await?;
        Ok(Site { locker: Locker::new(etcd), url: url.into(), prefix })
    }

    /// Another locker with its own connections and session.
    fn another_locker(&self) -> impl Future<Output = Result<Locker, Error>> + Send + use<> {
        let builder = Etcd::builder(&self.url).environment();
        let builder = builder.map(|builder| builder.prefix(&self.prefix));
        async { Ok(Locker::new(builder?.connect().await?)) }
    }

    /// Another bare client; its keys are deleted with its lease.
    fn another_bare(&self) -> impl Future<Output = Result<BenchClient, Error>> + Send + use<> {
        let builder = Etcd::builder(&self.url).environment();
        async { Ok(builder?.bench_client().await?) }
    }

    /// A key of the bare side.
    fn bare_key(&self, number: usize) -> String {
        format!("{}/bare/{number}/", self.prefix)
    }

    /// The first host, as other clients write it.
    #[cfg(feature = "peers")]
    fn endpoint(&self) -> String {
        let hosts = self.url.split_once("://").map_or("", |(_, hosts)| hosts);
        hosts.split(',').next().unwrap_or_default().into()
    }

    /// Shuts our locker down; its key is deleted with its session.
    pub(crate) async fn clear(&self) {
        self.locker.shutdown(DRAIN).await;
    }
}

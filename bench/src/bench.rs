//! The parameters of a bench: which figures, on which server, how often and for how long.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::report::{Figure, Report};
use crate::usage::leave_a_processor;
use crate::{cluster, embedded, etcd, quorum, redis, sentinel};

/// Fewer rounds do not yield a reliable median.
const ROUNDS_DEFAULT: u32 = 20;
/// How often progress is reported during a sleep.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// Enough for repeatable figures: a quarter of a second per side and round, and three renewal periods for
    /// held locks.
    #[default]
    Full,
    /// For a quick look: the same tasks and locks for a tenth of the time or less.
    Quick,
}

impl Size {
    /// How long one side runs in one round.
    pub(crate) fn lap(self) -> Duration {
        match self {
            Size::Full => Duration::from_millis(250),
            Size::Quick => Duration::from_millis(20),
        }
    }

    /// How long locks are held: three renewals of a ttl of 30 s.
    pub(crate) fn hold(self) -> Duration {
        match self {
            Size::Full => Duration::from_secs(30),
            Size::Quick => Duration::from_secs(1),
        }
    }

    /// How long processes wait, and then compete.
    pub(crate) fn fight(self) -> Duration {
        match self {
            Size::Full => Duration::from_secs(10),
            Size::Quick => Duration::from_millis(500),
        }
    }
}

/// What to measure, where and how often.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_bench::Error> {
/// use tenure_bench::{Bench, observe};
///
/// observe()?;
/// let bench = Bench::new(Some("redis://localhost"))?.only("uncontended").rounds(10);
/// println!("{}", bench.run(&Default::default(), &|_| ()).await?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a bench does nothing until it is run"]
pub struct Bench {
    place: Place,
    only: String,
    rounds: u32,
    size: Size,
    all_processors: bool,
}

#[derive(Clone)]
enum Place {
    Embedded,
    Redis(String),
    Sentinel(String),
    Quorum(String),
    Cluster(String),
    Etcd(String),
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The figure that is being measured.
    pub figure: &'static str,
    /// The completed part of the whole run, from 0 to 1.
    pub done: f64,
}

impl Bench {
    /// A bench on the server at `url`, or on the embedded engines in a separate space.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for a scheme without a bench.
    pub fn new(url: Option<&str>) -> Result<Self, Error> {
        let scheme = url.and_then(|url| url.split_once(':')).map(|(scheme, _)| scheme);
        let place = match (scheme, url) {
            (None | Some("memory" | "file"), _) => Place::Embedded,
            (Some(scheme), Some(url)) if redis::is_redis(scheme) => Place::Redis(url.into()),
            (Some(scheme), Some(url)) if sentinel::is_sentinel(scheme) => {
                Place::Sentinel(url.into())
            }
            (Some(scheme), Some(url)) if quorum::is_quorum(scheme) => Place::Quorum(url.into()),
            (Some(scheme), Some(url)) if cluster::is_cluster(scheme) => Place::Cluster(url.into()),
            (Some(scheme), Some(url)) if etcd::is_etcd(scheme) => Place::Etcd(url.into()),
            (Some(scheme), _) => {
                return Err(Error::Usage(format!("`{scheme}:` has no bench yet")));
            }
        };
        let (only, all_processors) = Default::default();
        Ok(Bench { place, only, rounds: ROUNDS_DEFAULT, size: Size::Full, all_processors })
    }

    /// Measures only figures whose name contains this.
    pub fn only(mut self, part: impl Into<String>) -> Self {
        self.only = part.into();
        self
    }

    /// Sets the number of rounds for a median.
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// Sets how much is measured in each round.
    pub fn size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// Whether to use all processors, also the one that is otherwise left to the server.
    pub fn all_processors(mut self, all: bool) -> Self {
        self.all_processors = all;
        self
    }

    /// Whether the embedded engines are measured.
    pub fn is_embedded(&self) -> bool {
        matches!(self.place, Place::Embedded)
    }

    /// Measures until it is done or `stop` is cancelled, and leaves no keys behind either way. With a server,
    /// this process does not use one of the processors from then on, unless
    /// [`all_processors`](Self::all_processors) is set.
    ///
    /// # Errors
    ///
    /// The error that ended it; [`Error::Stopped`] if `stop` was cancelled; [`Error::Usage`] if no figure has
    /// such a name.
    pub async fn run(
        &self,
        stop: &CancellationToken,
        progress: &dyn Fn(Progress),
    ) -> Result<Report, Error> {
        if !self.is_embedded() && !self.all_processors {
            leave_a_processor()?;
        }
        match &self.place {
            Place::Embedded => {
                let entries = self.wanted(embedded::ENTRIES)?;
                let measure = async |run: &Run<'_>, kind| embedded::measure(run, kind).await;
                self.run_all("embedded", &entries, (stop, progress), measure).await
            }
            Place::Redis(url) => {
                let entries = self.wanted(redis::ENTRIES)?;
                let site = redis::Site::connect(url).await?;
                let measure = async |run: &Run<'_>, kind| redis::measure(run, &site, kind).await;
                let report = self.run_all("redis", &entries, (stop, progress), measure).await;
                // Clear in any case; the first error is the one to report.
                let cleared = site.clear().await;
                report.and_then(|report| cleared.map(|()| report))
            }
            Place::Sentinel(url) => {
                let entries = self.wanted(sentinel::ENTRIES)?;
                let site = sentinel::Site::connect(url).await?;
                let measure = async |run: &Run<'_>, ()| sentinel::measure(run, &site).await;
                let report = self.run_all("sentinel", &entries, (stop, progress), measure).await;
                let cleared = site.clear().await;
                report.and_then(|report| cleared.map(|()| report))
            }
            Place::Quorum(url) => {
                let entries = self.wanted(quorum::ENTRIES)?;
                let site = quorum::Site::connect(url).await?;
                let measure = async |run: &Run<'_>, kind| quorum::measure(run, &site, kind).await;
                let report = self.run_all("quorum", &entries, (stop, progress), measure).await;
                let cleared = site.clear().await;
                report.and_then(|report| cleared.map(|()| report))
            }
            Place::Cluster(url) => {
                let entries = self.wanted(cluster::ENTRIES)?;
                let site = cluster::Site::connect(url).await?;
                let measure = async |run: &Run<'_>, kind| cluster::measure(run, &site, kind).await;
                let report = self.run_all("cluster", &entries, (stop, progress), measure).await;
                let cleared = site.clear().await;
                report.and_then(|report| cleared.map(|()| report))
            }
            Place::Etcd(url) => {
                let entries = self.wanted(etcd::ENTRIES)?;
                let site = etcd::Site::connect(url).await?;
                let measure = async |run: &Run<'_>, kind| etcd::measure(run, &site, kind).await;
                let report = self.run_all("etcd", &entries, (stop, progress), measure).await;
                site.clear().await;
                report
            }
        }
    }

    async fn run_all<K: Copy>(
        &self,
        backend: &'static str,
        entries: &[Entry<K>],
        (stop, progress): (&CancellationToken, &dyn Fn(Progress)),
        measure: impl AsyncFn(&Run<'_>, K) -> Result<Vec<Figure>, Error>,
    ) -> Result<Report, Error> {
        let mut report = Report::new(backend);
        for (index, entry) in entries.iter().enumerate() {
            let place = (index, entries.len());
            let run = Run { bench: self, stop, progress, figure: entry.names[0], place };
            run.must_go_on()?;
            run.tell(0.0);
            let figures = measure(&run, entry.kind).await?;
            report.add(figures.into_iter().filter(|figure| self.wants(figure.name)));
        }
        Ok(report)
    }

    /// Whether a figure is selected, by a part of its name.
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    fn wanted<K: Copy>(&self, entries: &[Entry<K>]) -> Result<Vec<Entry<K>>, Error> {
        let wanted = |entry: &&Entry<K>| entry.names.iter().any(|name| self.wants(name));
        let found: Vec<_> = entries.iter().filter(wanted).copied().collect();
        if found.is_empty() {
            let names: Vec<&str> = entries.iter().flat_map(|entry| entry.names).copied().collect();
            let (only, names) = (&self.only, names.join(", "));
            return Err(Error::Usage(format!("no figure is called `{only}`; there are {names}")));
        }
        Ok(found)
    }
}

/// Figures that are measured together: their names and their kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<K> {
    pub(crate) names: &'static [&'static str],
    pub(crate) kind: K,
}

/// The measurement of one entry.
pub(crate) struct Run<'a> {
    bench: &'a Bench,
    stop: &'a CancellationToken,
    progress: &'a dyn Fn(Progress),
    figure: &'static str,
    /// The index of the entry, and the number of entries.
    place: (usize, usize),
}

impl Run<'_> {
    pub(crate) fn rounds(&self) -> u32 {
        self.bench.rounds
    }

    pub(crate) fn size(&self) -> Size {
        self.bench.size
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        self.stop
    }

    pub(crate) fn figure(&self) -> &'static str {
        self.figure
    }

    pub(crate) fn must_go_on(&self) -> Result<(), Error> {
        if self.stop.is_cancelled() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Reports how much of this entry is done.
    pub(crate) fn tell(&self, part: f64) {
        let (index, count) = self.place;
        let done = (index as f64 + part) / count as f64;
        (self.progress)(Progress { figure: self.figure, done });
    }

    /// Sleeps for `span`, or until `stop` is cancelled.
    pub(crate) async fn sleep(&self, span: Duration) -> Result<(), Error> {
        let started = std::time::Instant::now();
        while let Some(left) = span.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
            self.tell(started.elapsed().as_secs_f64() / span.as_secs_f64());
            tokio::select! {
                () = self.stop.cancelled() => return Err(Error::Stopped),
                () = tokio::time::sleep(left.min(TELL_EVERY)) => {}
            }
        }
        Ok(())
    }
}

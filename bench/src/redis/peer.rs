//! Comparison with the crate `rslock`, which polls: 8 clients that each hold the lock for a moment.
//!
//! The figures are the time until the lock has another holder, and the longest wait of a client. The number
//! of acquisitions does not count, because a greedy client wins by acquiring its own lock again.

use std::time::{Duration, Instant};

use rslock::LockManager;
use tenure::Locker;
use tokio::task::JoinSet;

use crate::bench::Run;
use crate::client_thread::Home;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::{Site, bare};
use crate::report::{Figure, Measure};
use crate::rounds::{Lap, micros, quantiles};

pub(crate) const P50: &str = "rslock/gap/p50";
pub(crate) const P99: &str = "rslock/gap/p99";
pub(crate) const WORST: &str = "rslock/worst-wait";
const CLIENTS: usize = 8;
const HOLD: Duration = Duration::from_millis(1);
const KEY: &str = "peers";
/// Our default ttl.
const TTL: Duration = Duration::from_secs(30);
/// A time-out, because `rslock` would retry for ever.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often both sides are measured in turn.
const STRETCHES: u32 = 5;
/// We may not be slower than the other side.
const BAR: f64 = 1.0;

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let fleet = Fleet::connect(CLIENTS, || site.another_locker()).await?;
    let stories = stretches(run, site, &fleet).await;
    fleet.close().await;
    let (ours, theirs) = stories?;
    let ([p50, p99], [their_p50, their_p99]) = (gaps(&ours), gaps(&theirs));
    let span = |ours, theirs| Measure::Span { ours, bare: Some(theirs) };
    let worst = Measure::Count { ours: worst_wait(&ours), bare: worst_wait(&theirs) };
    Ok(vec![
        Figure { name: P50, measure: span(p50, their_p50), bar: BAR },
        Figure { name: P99, measure: span(p99, their_p99), bar: BAR },
        Figure { name: WORST, measure: worst, bar: BAR },
    ])
}

/// The times at which one client requested, acquired and released the lock.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    client: usize,
    asked: Instant,
    acquired: Instant,
    released: Instant,
}

/// The tenures of one stretch, in order.
type Story = Vec<Tenure>;

async fn stretches(
    run: &Run<'_>,
    site: &Site,
    fleet: &Fleet,
) -> Result<(Vec<Story>, Vec<Story>), Error> {
    let client = bare::client(&site.url)?;
    let peers: Vec<_> =
        (0..CLIENTS).map(|_| LockManager::from_clients(vec![client.clone()])).collect();
    let (key, homes) = (site.peer_key(), fleet.homes());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first stretch establishes connections and loads scripts, and does not count.
    for stretch in 0..=STRETCHES {
        let our = story(run, homes, |client| Client::Ours(fleet.lockers()[client].clone())).await?;
        let their =
            story(run, homes, |client| Client::Theirs(peers[client].clone(), key.clone())).await?;
        if stretch > 0 {
            ours.push(our);
            theirs.push(their);
        }
        run.tell(f64::from(stretch) / f64::from(STRETCHES));
    }
    Ok((ours, theirs))
}

async fn story(
    run: &Run<'_>,
    homes: &[Home],
    client: impl Fn(usize) -> Client,
) -> Result<Story, Error> {
    let lap = Lap::lasting(run, run.size().fight() / STRETCHES);
    let mut tasks = JoinSet::new();
    for (number, home) in homes.iter().enumerate() {
        tasks.spawn_on(client(number).tenures(number, lap.clone()), home.runtime());
    }
    let mut story = Story::new();
    for tenures in tasks.join_all().await {
        story.extend(tenures?);
    }
    run.must_go_on()?;
    story.sort_by_key(|tenure| tenure.acquired);
    Ok(story)
}

/// A client of either side.
enum Client {
    Ours(Locker),
    Theirs(LockManager, String),
}

impl Client {
    async fn tenures(self, client: usize, lap: Lap) -> Result<Story, Error> {
        let mut tenures = Story::new();
        loop {
            let asked = Instant::now();
            let (acquired, released) = self.tenure().await?;
            tenures.push(Tenure { client, asked, acquired, released });
            if !lap.goes_on() {
                return Ok(tenures);
            }
        }
    }

    /// The time of the acquisition, and the time at which the release began.
    async fn tenure(&self) -> Result<(Instant, Instant), Error> {
        match self {
            Client::Ours(locker) => {
                let guard = locker.lock(KEY).await?;
                let held = hold().await;
                guard.release().await?;
                Ok(held)
            }
            Client::Theirs(manager, key) => {
                let guard = tokio::time::timeout(PATIENCE, manager.acquire(key.as_bytes(), TTL));
                let late = |_| Error::surprise("`rslock` did not get its lock");
                let failed = |error: rslock::LockError| Error::surprise(error.to_string());
                let guard = guard.await.map_err(late)?.map_err(failed)?;
                let held = hold().await;
                guard.release().await;
                Ok(held)
            }
        }
    }
}

async fn hold() -> (Instant, Instant) {
    let acquired = Instant::now();
    tokio::time::sleep(HOLD).await;
    (acquired, Instant::now())
}

/// The median and the 99th percentile of the time from one client's release to another's acquire.
fn gaps(stories: &[Story]) -> [f64; 2] {
    let gaps = stories.iter().flat_map(gaps_of).map(micros).collect();
    quantiles(gaps, [0.5, 0.99])
}

/// For every release the time until *another* client has the lock. A client that acquires its own lock again
/// makes the others wait longer.
fn gaps_of(story: &Story) -> impl Iterator<Item = Duration> {
    story.iter().enumerate().filter_map(|(at, gone)| {
        let next = story[at + 1..].iter().find(|next| next.client != gone.client)?;
        Some(next.acquired - gone.released)
    })
}

/// The longest wait divided by the mean wait.
fn worst_wait(stories: &[Story]) -> f64 {
    let waits = stories.iter().flatten().map(|tenure| tenure.acquired - tenure.asked);
    let waits: Vec<f64> = waits.map(micros).collect();
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    waits.iter().copied().fold(0.0, f64::max) / mean
}

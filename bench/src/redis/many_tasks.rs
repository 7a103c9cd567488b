//! 1,000 tasks of 10 lockers on one key: the claims and connections that the server sees.
//!
//! All tasks wait before the first one gets the lock. It is an error if a task does not get it in time. Other
//! clients of the same server can only add connections, so the minimum of all rounds is taken; of the claims
//! the maximum is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::bench::Run;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::Site;
use crate::report::{Figure, Measure};

pub(crate) const CLAIMS: &str = "claims/1000";
pub(crate) const CONNECTIONS: &str = "connections/1000";
const TASKS: usize = 1_000;
const LOCKERS: usize = 10;
/// For each locker: commands, renewals, the inbox.
const CONNECTIONS_EACH: f64 = 3.0;
const KEY: &str = "crowded";
/// How long a task may wait: a hundred times longer than usual.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the server is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let before = connections(site).await?;
    let fleet = Fleet::connect(LOCKERS, || site.another_locker()).await?;
    let seen = rounds(run, site, &fleet).await;
    fleet.close().await;
    let seen = seen?;
    let each = (seen.connections - before as f64) / LOCKERS as f64;
    let claims = Measure::Count { ours: seen.claims as f64, bare: LOCKERS as f64 };
    let connections = Measure::Count { ours: each, bare: CONNECTIONS_EACH };
    Ok(vec![
        Figure { name: CLAIMS, measure: claims, bar: 1.0 },
        Figure { name: CONNECTIONS, measure: connections, bar: 1.0 },
    ])
}

/// Our claims and connections on the server.
#[derive(Clone, Copy)]
struct Seen {
    claims: usize,
    connections: f64,
}

impl Seen {
    /// Polls the number of claims, and updates the maximum.
    async fn look(&mut self, site: &Site) -> Result<usize, Error> {
        let now = claims(site).await?;
        self.claims = self.claims.max(now);
        Ok(now)
    }
}

async fn rounds(run: &Run<'_>, site: &Site, fleet: &Fleet) -> Result<Seen, Error> {
    let mut seen = Seen { claims: 0, connections: f64::INFINITY };
    for locker in fleet.lockers() {
        // Renew the lock, so that the connection for renewals exists.
        let guard = locker.lock("one").await?;
        guard.renew().await?;
        guard.release().await?;
    }
    for round in 1..=run.rounds() {
        run.must_go_on()?;
        serve_all(site, fleet, &mut seen).await?;
        run.tell(f64::from(round) / f64::from(run.rounds()));
    }
    Ok(seen)
}

/// Lets all tasks wait for one release, and then get the lock one after another.
async fn serve_all(site: &Site, fleet: &Fleet, seen: &mut Seen) -> Result<(), Error> {
    let first = fleet.lockers()[0].lock(KEY).await?;
    let asking = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let home = fleet.homes()[number % LOCKERS].runtime();
        tasks.spawn_on(one(fleet, number, &asking), home);
    }
    let started = Instant::now();
    while asking.load(Ordering::Relaxed) < TASKS || seen.look(site).await? < LOCKERS {
        if started.elapsed() > PATIENCE {
            return Err(Error::surprise("some lockers did not come to wait"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    seen.connections = seen.connections.min(connections(site).await? as f64);
    first.release().await?;
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep(POLL_INTERVAL) => { seen.look(site).await?; }
            done = tasks.join_next() => match done {
                Some(Ok(done)) => done?,
                Some(Err(panicked)) => return Err(Error::surprise(panicked.to_string())),
                None => return Ok(()),
            }
        }
    }
}

fn one(
    fleet: &Fleet,
    number: usize,
    asking: &Arc<AtomicUsize>,
) -> impl Future<Output = Result<(), Error>> + use<> {
    let (locker, asking) = (fleet.lockers()[number % LOCKERS].clone(), asking.clone());
    async move {
        asking.fetch_add(1, Ordering::Relaxed);
        locker.lock(KEY).wait(PATIENCE).await?.release().await?;
        Ok(())
    }
}

/// The number of claims on the server: the waiters and the holder.
async fn claims(site: &Site) -> Result<usize, Error> {
    let (lock, queue) = site.keys_of(KEY);
    let mut both = redis::pipe();
    both.atomic().exists(lock).zcard(queue);
    let (held, waiting): (usize, usize) = both.query_async(&mut site.bare.connection()).await?;
    Ok(held + waiting)
}

/// The number of connections of the server, from all clients.
async fn connections(site: &Site) -> Result<usize, Error> {
    let mut info = redis::cmd("INFO");
    let said: String = info.arg("clients").query_async(&mut site.bare.connection()).await?;
    let count = said.lines().find_map(|line| line.strip_prefix("connected_clients:"));
    let count = count.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| Error::surprise("the server does not count its clients"))
}

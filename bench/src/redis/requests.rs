//! The number of requests for one uncontended cycle and for one hand-over, from the server's own counters.
//!
//! Other clients of the same server can only add requests, so the minimum of all rounds is taken.

use crate::bench::Run;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::Site;
use crate::report::{Figure, Measure};
use crate::rounds::Lap;

pub(crate) const CYCLE: &str = "requests/cycle";
pub(crate) const HANDOVER: &str = "requests/handover";
const CYCLES: u32 = 100;
/// One request acquires, one releases.
const BARE: f64 = 2.0;

/// At most three requests for one hand-over: one releases, one asks, and one more allows for heartbeats.
const HANDOVER_BAR: f64 = 1.5;
/// The number of lockers.
const LOCKERS: usize = 8;

pub(crate) async fn per_handover(run: &Run<'_>, site: &Site) -> Result<Figure, Error> {
    let fleet = Fleet::connect(LOCKERS, || site.another_locker()).await?;
    let least = least_per_handover(run, site, &fleet).await;
    fleet.close().await;
    let measure = Measure::Count { ours: least?, bare: BARE };
    Ok(Figure { name: HANDOVER, measure, bar: HANDOVER_BAR })
}

async fn least_per_handover(run: &Run<'_>, site: &Site, fleet: &Fleet) -> Result<f64, Error> {
    fleet.pass_round(Lap::new(run)).await?;
    let mut least = f64::INFINITY;
    for _ in 0..run.rounds() {
        run.must_go_on()?;
        let before = requests(site).await?;
        let handovers = fleet.pass_round(Lap::new(run)).await?;
        let made = requests(site).await? - before;
        least = least.min(made as f64 / handovers as f64);
    }
    Ok(least)
}

pub(crate) async fn per_cycle(run: &Run<'_>, site: &Site) -> Result<Figure, Error> {
    cycle(site).await?;
    let mut least = f64::INFINITY;
    for _ in 0..run.rounds() {
        run.must_go_on()?;
        let before = requests(site).await?;
        for _ in 0..CYCLES {
            cycle(site).await?;
        }
        let made = requests(site).await? - before;
        least = least.min(made as f64 / f64::from(CYCLES));
    }
    Ok(Figure { name: CYCLE, measure: Measure::Count { ours: least, bare: BARE }, bar: 1.0 })
}

async fn cycle(site: &Site) -> Result<(), Error> {
    site.locker.lock("requests").await?.release().await?;
    Ok(())
}

/// The number of script calls: fenced locks use nothing else. Commands inside a script are counted under
/// their own names, such as `SET`.
async fn requests(site: &Site) -> Result<u64, Error> {
    let mut info = redis::cmd("INFO");
    let stats: String = info.arg("commandstats").query_async(&mut site.bare.connection()).await?;
    Ok(["evalsha", "eval"].iter().filter_map(|name| calls(&stats, name)).sum())
}

fn calls(stats: &str, command: &str) -> Option<u64> {
    let mut lines = stats.lines();
    let rest = lines.find_map(|line| {
        line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")
    })?;
    rest.split(',').next()?.parse().ok()
}

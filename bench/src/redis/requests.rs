//! How many requests one uncontended cycle is, by the server's own count.
//!
//! Others on the same server can only add to it, so the least of all rounds is taken.

use crate::bench::Run;
use crate::error::Error;
use crate::redis::Site;
use crate::report::{Figure, Measure};

pub(crate) const NAME: &str = "requests/cycle";
const CYCLES: u32 = 100;
/// Take it, give it back.
const BARE: f64 = 2.0;

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Figure, Error> {
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
    Ok(Figure { name: NAME, measure: Measure::Count { ours: least, bare: BARE }, bar: 1.0 })
}

async fn cycle(site: &Site) -> Result<(), Error> {
    site.locker.lock("requests").await?.release().await?;
    Ok(())
}

/// The scripts that were asked for: a cycle of ours is made of nothing else. What a script does
/// inside is counted under other names.
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

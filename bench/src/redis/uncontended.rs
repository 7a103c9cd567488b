//! Lock and release, each task its own key: ours against the two bare commands.

use crate::bench::Run;
use crate::error::Error;
use crate::redis::Site;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together};

/// Whether our grants carry a fence. The bare side has none either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fencing {
    On,
    Off,
}

pub(crate) async fn measure(
    run: &Run<'_>,
    site: &Site,
    tasks: usize,
    fencing: Fencing,
) -> Result<Measure, Error> {
    let ours = async |lap| ours(site, tasks, fencing, lap).await;
    interleave(run, ours, async |lap| bare(site, tasks, lap).await).await
}

/// So many tasks at once, until the lap is over. How many cycles that were.
pub(crate) async fn ours(
    site: &Site,
    tasks: usize,
    fencing: Fencing,
    lap: Lap,
) -> Result<u64, Error> {
    together(tasks, |number| {
        let (locker, lap, key) = (site.locker.clone(), lap.clone(), format!("bench:{number}"));
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                let guard = locker.lock(&key).fencing(fencing == Fencing::On).await?;
                guard.release().await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

async fn bare(site: &Site, tasks: usize, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (mut lock, lap) = (site.bare.lock(site.bare_key(number)), lap.clone());
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                lock.cycle().await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

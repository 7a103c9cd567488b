//! Acquire and release, each task with its own key: ours against the two bare commands. Several keys at once are
//! measured against one lock of ours.

use tenure::{Error as LockError, Locker, Released};

use crate::bench::Run;
use crate::error::Error;
use crate::redis::Site;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together};

/// The capacity of a semaphore whose only user is one task.
const CAPACITY: u32 = 4;

/// What our tasks acquire. The bare side always acquires the lock, and never has a fence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Lock,
    LockWithoutFence,
    Read,
    Permit,
    ThreeKeys,
}

impl What {
    async fn cycle(self, locker: &Locker, key: &str) -> Result<Released, LockError> {
        match self {
            What::Lock => locker.lock(key).await?.release().await,
            What::LockWithoutFence => locker.lock(key).fencing(false).await?.release().await,
            What::Read => locker.read(key).await?.release().await,
            What::Permit => locker.semaphore(key, CAPACITY).acquire().await?.release().await,
            What::ThreeKeys => {
                let all = locker.lock_all([key, "bench:second", "bench:third"]).await?;
                all.release().await.map(|()| Released::Freed)
            }
        }
    }
}

pub(crate) async fn measure(
    run: &Run<'_>,
    site: &Site,
    tasks: usize,
    what: What,
) -> Result<Measure, Error> {
    let ours = async |lap| ours(site, tasks, what, lap).await;
    interleave(run, ours, async |lap| bare(site, tasks, lap).await).await
}

/// One request for three keys beside a lock of one.
pub(crate) async fn three_keys(run: &Run<'_>, site: &Site) -> Result<Measure, Error> {
    let all = async |lap| ours(site, 1, What::ThreeKeys, lap).await;
    interleave(run, all, async |lap| ours(site, 1, What::Lock, lap).await).await
}

/// Runs `tasks` tasks until the lap is over. Returns the number of cycles.
pub(crate) async fn ours(site: &Site, tasks: usize, what: What, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (locker, lap, key) = (site.locker.clone(), lap.clone(), format!("bench:{number}"));
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                what.cycle(&locker, &key).await?;
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

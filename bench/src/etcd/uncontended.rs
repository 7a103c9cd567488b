//! Lock and release, or read and release, each task with its own key: ours against two bare transactions.

use std::sync::Arc;

use tenure_etcd::bench_client::BenchClient;

use crate::bench::Run;
use crate::error::Error;
use crate::etcd::Site;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together};

pub(crate) async fn measure(run: &Run<'_>, site: &Site, tasks: usize) -> Result<Measure, Error> {
    beside_bare(run, site, tasks, async |lap| ours(site, tasks, lap).await).await
}

/// The same for one reader.
pub(crate) async fn read(run: &Run<'_>, site: &Site) -> Result<Measure, Error> {
    let ours = async |lap: Lap| {
        let mut done = 0;
        while lap.goes_on() {
            site.locker.read("bench:read").await?.release().await?;
            done += 1;
        }
        Ok(done)
    };
    beside_bare(run, site, 1, ours).await
}

async fn beside_bare(
    run: &Run<'_>,
    site: &Site,
    tasks: usize,
    ours: impl AsyncFnMut(Lap) -> Result<u64, Error>,
) -> Result<Measure, Error> {
    let bare_side = Arc::new(site.another_bare().await?);
    let bare = async |lap| bare(site, &bare_side, tasks, lap).await;
    let measured = interleave(run, ours, bare).await;
    bare_side.clear().await?;
    measured
}

async fn bare(site: &Site, bare: &Arc<BenchClient>, tasks: usize, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (bare, key, lap) = (bare.clone(), site.bare_key(number), lap.clone());
        async move {
            let mut done = 0;
            while lap.goes_on() {
                if !bare.cycle(&key).await? {
                    return Err(Error::surprise("a bare lock was not ours"));
                }
                done += 1;
            }
            Ok(done)
        }
    })
    .await
}

pub(super) async fn ours(site: &Site, tasks: usize, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (locker, lap, key) = (site.locker.clone(), lap.clone(), format!("bench:{number}"));
        async move {
            let mut done = 0;
            while lap.goes_on() {
                locker.lock(&key).await?.release().await?;
                done += 1;
            }
            Ok(done)
        }
    })
    .await
}

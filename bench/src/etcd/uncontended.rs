//! Lock and release, each task its own key: ours against two bare transactions.

use std::sync::Arc;

use tenure_etcd::bare::Bare;

use crate::bench::Run;
use crate::error::Error;
use crate::etcd::Site;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together};

pub(crate) async fn measure(run: &Run<'_>, site: &Site, tasks: usize) -> Result<Measure, Error> {
    let bare_side = Arc::new(site.another_bare().await?);
    let bare = async |lap| bare(site, &bare_side, tasks, lap).await;
    let measured = interleave(run, async |lap| ours(site, tasks, lap).await, bare).await;
    bare_side.clear().await?;
    measured
}

async fn bare(site: &Site, bare: &Arc<Bare>, tasks: usize, lap: Lap) -> Result<u64, Error> {
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

//! One key, 64 tasks, one process: against `tokio::sync::Mutex` under the same contention.
//!
//! Whichever engine the locker is on: all but the first grant are handed on in memory.

use std::sync::Arc;

use tenure::Locker;
use tokio::sync::Mutex;

use crate::bench::Run;
use crate::error::Error;
use crate::report::Figure;
use crate::rounds::{Lap, interleave, together};

pub(crate) const NAME: &str = "local/64";
const TASKS: usize = 64;
const BAR: f64 = 10.0;

pub(crate) async fn measure(run: &Run<'_>, locker: &Locker) -> Result<Figure, Error> {
    let measure = interleave(run, async |lap| ours(locker, lap).await, bare).await?;
    Ok(Figure { name: NAME, measure, bar: BAR })
}

async fn ours(locker: &Locker, lap: Lap) -> Result<u64, Error> {
    together(TASKS, |_| {
        let (locker, lap) = (locker.clone(), lap.clone());
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                locker.lock("hot").await?.release().await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

async fn bare(lap: Lap) -> Result<u64, Error> {
    let mutex = Arc::new(Mutex::new(0_u64));
    together(TASKS, |_| {
        let (mutex, lap) = (mutex.clone(), lap.clone());
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                *mutex.lock().await += 1;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

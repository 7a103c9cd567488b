//! One key, 64 tasks, one process: against `tokio::sync::Mutex` under the same contention; and tasks that read,
//! against `tokio::sync::RwLock`.
//!
//! The engine matters little: nearly all grants are local.

use std::sync::Arc;

use tenure::Locker;
use tokio::sync::{Mutex, RwLock};

use crate::bench::Run;
use crate::error::Error;
use crate::report::Figure;
use crate::rounds::{Lap, interleave, together};

pub(crate) const NAME: &str = "local/64";
pub(crate) const READ: &str = "local-read/64";
const TASKS: usize = 64;
const BAR: f64 = 10.0;

pub(crate) async fn measure(run: &Run<'_>, locker: &Locker) -> Result<Figure, Error> {
    let measure = interleave(run, async |lap| ours(locker, lap).await, bare).await?;
    Ok(Figure { name: NAME, measure, bar: BAR })
}

/// The same with tasks that read.
pub(crate) async fn measure_read(run: &Run<'_>, locker: &Locker) -> Result<Figure, Error> {
    let measure = interleave(run, async |lap| ours_read(locker, lap).await, bare_read).await?;
    Ok(Figure { name: READ, measure, bar: BAR })
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

async fn ours_read(locker: &Locker, lap: Lap) -> Result<u64, Error> {
    together(TASKS, |_| {
        let (locker, lap) = (locker.clone(), lap.clone());
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                locker.read("read").await?.release().await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

async fn bare_read(lap: Lap) -> Result<u64, Error> {
    let lock = Arc::new(RwLock::new(0_u64));
    together(TASKS, |_| {
        let (lock, lap) = (lock.clone(), lap.clone());
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                std::hint::black_box(*lock.read().await);
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

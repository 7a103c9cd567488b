//! Several lockers, each with connections, a thread and a runtime of its own, as so many processes
//! have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Locker;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::home::Home;
use crate::rounds::{Lap, together_at};

/// How long the end of a run waits for locks that are still held.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// What is passed round.
pub(crate) const KEY: &str = "passed-round";
/// Stands for the holder before the first one.
const NOBODY: usize = usize::MAX;

pub(crate) struct Fleet {
    lockers: Vec<Locker>,
    homes: Vec<Home>,
}

impl Fleet {
    /// So many, each made by `another` where it is to live.
    pub(crate) async fn connect<F>(size: usize, another: impl Fn() -> F) -> Result<Self, Error>
    where
        F: Future<Output = Result<Locker, Error>> + Send + 'static,
    {
        let (mut lockers, mut homes) = (Vec::new(), Vec::new());
        for _ in 0..size {
            let home = Home::new()?;
            lockers.push(home.run(another()).await?);
            homes.push(home);
        }
        Ok(Fleet { lockers, homes })
    }

    pub(crate) fn lockers(&self) -> &[Locker] {
        &self.lockers
    }

    /// Where each of them lives.
    pub(crate) fn homes(&self) -> &[Home] {
        &self.homes
    }

    /// Each takes the same key and gives it back, again and again. How often it had another holder
    /// than before: a locker that gets it twice in a row has not handed it over.
    pub(crate) async fn pass_round(&self, lap: Lap) -> Result<u64, Error> {
        let last = Arc::new(AtomicUsize::new(NOBODY));
        together_at(self.homes.iter().map(Home::runtime), |number| {
            let (locker, last, lap) = (self.lockers[number].clone(), last.clone(), lap.clone());
            async move {
                let mut handovers = 0;
                loop {
                    let guard = locker.lock(KEY).await?;
                    let before = last.swap(number, Ordering::Relaxed);
                    handovers += u64::from(before != number && before != NOBODY);
                    guard.release().await?;
                    if !lap.goes_on() {
                        return Ok(handovers);
                    }
                }
            }
        })
        .await
    }

    /// Ends them all, with their threads and connections.
    pub(crate) async fn close(self) {
        let close = async |locker: Locker| drop(locker.shutdown(DRAIN).await);
        self.lockers.into_iter().map(close).collect::<JoinSet<_>>().join_all().await;
    }
}

//! Several lockers, each with its own connections, thread and runtime, like separate processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Locker;
use tokio::task::JoinSet;

use crate::client_thread::Home;
use crate::error::Error;
use crate::rounds::{Lap, together_at};

/// How long a shutdown waits for locks that are still held.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);
/// The key that the lockers hand over.
pub(crate) const KEY: &str = "passed-round";
/// The number of the previous holder before there is one.
const NOBODY: usize = usize::MAX;

/// How a locker gets the key, and lets the next one have it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// It locks and releases.
    Lock,
    /// It is elected and resigns.
    Lead,
}

impl Turn {
    async fn take(self, locker: &Locker, begins: impl FnOnce()) -> Result<(), Error> {
        match self {
            Turn::Lock => {
                let guard = locker.lock(KEY).await?;
                begins();
                guard.release().await?;
            }
            Turn::Lead => {
                let leader = locker.election(KEY).campaign("a candidate").await?;
                begins();
                leader.resign().await?;
            }
        }
        Ok(())
    }
}

pub(crate) struct Fleet {
    lockers: Vec<Locker>,
    homes: Vec<Home>,
}

impl Fleet {
    /// Creates `size` lockers by `another`, each on its own thread.
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

    /// The thread of each locker.
    pub(crate) fn homes(&self) -> &[Home] {
        &self.homes
    }

    /// All lockers lock and release the same key in a loop. Returns how often the holder changed.
    pub(crate) async fn pass_round(&self, lap: Lap) -> Result<u64, Error> {
        self.take_turns(lap, Turn::Lock).await
    }

    /// All lockers take turns with the same key in a loop. Returns how often the holder changed: if one locker gets the
    /// key twice in a row, that is not a hand-over.
    pub(crate) async fn take_turns(&self, lap: Lap, turn: Turn) -> Result<u64, Error> {
        let last = Arc::new(AtomicUsize::new(NOBODY));
        together_at(self.homes.iter().map(Home::runtime), |number| {
            let (locker, last, lap) = (self.lockers[number].clone(), last.clone(), lap.clone());
            async move {
                let mut handovers = 0;
                loop {
                    turn.take(&locker, || {
                        let before = last.swap(number, Ordering::Relaxed);
                        handovers += u64::from(before != number && before != NOBODY);
                    })
                    .await?;
                    if !lap.goes_on() {
                        return Ok(handovers);
                    }
                }
            }
        })
        .await
    }

    /// Shuts all lockers down, with their threads and connections.
    pub(crate) async fn close(self) {
        let close = async |locker: Locker| drop(locker.shutdown(DRAIN).await);
        self.lockers.into_iter().map(close).collect::<JoinSet<_>>().join_all().await;
    }
}

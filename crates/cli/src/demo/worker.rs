//! One process of `tenure demo`: it competes for locks until its parent is gone.
//!
//! In: the directory of the locks, and a stdin that ends with the parent. Out: locks that are held and waited for.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Error, Locker, Process};
use tokio::time::sleep;

use super::open;
use crate::error::CliError;
use crate::target::runtime;

/// What is locked, and why.
const SCENES: [(&str, &str); 5] = [
    ("db-migrate", "release 41"),
    ("order:42", "payment"),
    ("order:43", "refund"),
    ("report:nightly", "month end"),
    ("order:42", "address changed"),
];
/// Read by many and written by few.
const SHARED: &str = "catalog";
const LEADER: &str = "leader:scheduler";
/// How often the removal of the directory is tried: other processes may still write to it.
const REMOVE_TRIES: u32 = 50;

/// Works until stdin ends.
pub(super) fn work(dir: &Path) -> Result<u8, CliError> {
    let place = dir.to_owned();
    std::thread::spawn(move || end_with_parent(place));
    runtime()?.block_on(async {
        let locker = open(dir).await?;
        let mut dice = Dice(u64::from(std::process::id()) | 1 << 40);
        loop {
            play(&locker, &mut dice).await.map_err(|error| CliError::engine(&error))?;
            sleep(dice.time(100, 900)).await;
        }
    })
}

/// Waits until the parent is gone, removes what it could not remove, and ends this process. The parent kills its
/// processes before it ends by itself, so that none of them gets here.
fn end_with_parent(dir: PathBuf) {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    for _ in 0..REMOVE_TRIES {
        if std::fs::remove_dir_all(&dir).is_ok() || !dir.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::exit(0);
}

/// One lock, from the wait to the release.
async fn play(locker: &Locker, dice: &mut Dice) -> Result<(), Error> {
    match dice.roll(10) {
        0..5 => {
            let (key, reason) = SCENES[dice.roll(SCENES.len() as u64) as usize];
            let guard = locker.lock(key).reason(reason).await?;
            sleep(dice.time(500, 4_000)).await;
            guard.release().await.map(drop)
        }
        5..8 => {
            let guard = locker.read(SHARED).reason("a page of the shop").await?;
            sleep(dice.time(500, 3_000)).await;
            guard.release().await.map(drop)
        }
        8 => {
            let guard = locker.write(SHARED).reason("new prices").await?;
            sleep(dice.time(300, 1_500)).await;
            guard.release().await.map(drop)
        }
        _ => {
            let leader =
                locker.election(LEADER).campaign(Process::this_process().to_string()).await?;
            sleep(dice.time(3_000, 9_000)).await;
            leader.resign().await.map(drop)
        }
    }
}

/// Numbers that look random (xorshift): nothing depends on them.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        for shift in [13, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        self.0 % sides
    }

    fn time(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.roll(most - least))
    }
}

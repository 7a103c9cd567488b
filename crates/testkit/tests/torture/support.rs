//! Stores to torture: in memory and in a directory.

use std::path::PathBuf;

use tenure_core::{FileLocks, Locker, Memory};
use tenure_testkit::wait::eventually;

/// A store with as many processes as wanted.
pub(crate) trait Store {
    fn locker(&self) -> Locker;
}

impl Store for Memory {
    fn locker(&self) -> Locker {
        Locker::new(self.clone())
    }
}

/// A directory of locks that goes with the test.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn fresh() -> Self {
        Dir(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The URL of the locks in it.
    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.path("locks").display())
    }
}

impl Store for Dir {
    fn locker(&self) -> Locker {
        Locker::new(FileLocks::open(self.path("locks")).unwrap())
    }
}

/// Waits until nobody holds `key` or waits for it, and it can be had.
pub(crate) async fn nothing_is_left(locker: &Locker, key: &str) {
    let none = || async { locker.inspect(key).await.unwrap().is_none() };
    eventually("nobody to hold it or wait for it", none).await;
    let had = || async {
        match locker.try_lock(key).await.unwrap() {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    };
    eventually("the lock to be had", had).await;
}

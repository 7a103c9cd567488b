//! A directory of locks for these tests.

use std::path::PathBuf;

use tenure_core::{FileLocks, Locker};

/// A directory of locks that is deleted after the test.
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

    pub(crate) fn locker(&self) -> Locker {
        Locker::new(FileLocks::open(self.path("locks")).unwrap())
    }
}

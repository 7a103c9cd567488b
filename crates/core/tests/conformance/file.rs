//! `file:` passes the conformance suite of all engines.

use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::backend::Backend;
use tenure_core::{FileLocks, Locker};
use tenure_testkit::conformance::Fixture;

/// A directory that no other test uses; it is deleted when this is dropped.
struct Dir(TempDir);

impl Dir {
    fn fresh() -> Self {
        Dir(tempfile::tempdir().expect("a temporary directory"))
    }

    fn open(&self) -> FileLocks {
        FileLocks::open(self.0.path()).expect("the directory can be used")
    }
}

impl Fixture for Dir {
    async fn locker(&self) -> Locker {
        Locker::new(self.open())
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.open())
    }
}

tenure_testkit::conformance!(Dir::fresh());

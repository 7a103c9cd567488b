//! `memory:` passes the conformance suite of all engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::backend::Backend;
use tenure_core::{Locker, Memory};
use tenure_testkit::conformance::Fixture;

/// A space that no other test uses.
struct Space(String);

impl Space {
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Space(format!("conformance-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Fixture for Space {
    async fn locker(&self) -> Locker {
        Locker::new(Memory::space(&self.0))
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(Memory::space(&self.0))
    }
}

tenure_testkit::conformance!(Space::fresh());

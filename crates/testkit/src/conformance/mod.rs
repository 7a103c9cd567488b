//! The requirements for every engine: one function per case, one test per case and engine.
//!
//! An engine implements [`Fixture`] and calls [`conformance!`](crate::conformance!). Each case then runs as a
//! separate test with its own store, under a name such as `memory::mutex::busy_is_none`. A case is not
//! skipped if an engine lacks a capability: it then checks for the documented error.
//!
//! "Process" in the description of a case means a separate `Locker` on the same store: to the engine this is
//! another client.

#[macro_use]
mod list;
mod support;

pub mod blocking;
pub mod cancel;
pub mod contract;
pub mod detach;
pub mod elections;
pub mod error;
pub mod fence;
pub mod force;
pub mod input;
pub mod inspect;
pub mod lease;
pub mod log;
pub mod loss;
pub mod multi;
pub mod mutex;
pub mod permits;
pub mod readers;
pub mod reentry;
pub mod release;
pub mod run;
pub mod shared;
pub mod shutdown;
pub mod waiting;
pub mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Locker;
use tenure_core::backend::{Backend, Capabilities};

pub use support::{Started, start};

/// An engine under test. It creates processes that share one store, which no other test uses.
pub trait Fixture: Send + Sync {
    /// A new process on the store.
    fn locker(&self) -> impl Future<Output = Locker> + Send;

    /// A new client of the store, without a `Locker`.
    fn backend(&self) -> impl Future<Output = Arc<dyn Backend>> + Send;

    /// The prefix of this test's keys. It contains no glob characters.
    fn namespace(&self) -> &str {
        "case"
    }

    /// A key of this test.
    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.namespace())
    }

    /// A ttl that is short for this engine. Cases that wait for its expiry wait this long; cases that renew
    /// it must survive a delay of two thirds of it.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    /// The capabilities of the engine.
    fn capabilities(&self) -> impl Future<Output = Capabilities> + Send {
        async { self.backend().await.capabilities() }
    }
}

/// Runs one case, for at most a minute. [`conformance!`](crate::conformance!) calls it.
///
/// # Panics
///
/// If the case fails or does not end.
#[doc(hidden)]
pub async fn run_case(name: &str, case: impl Future<Output = ()>) {
    let limit = Duration::from_secs(60);
    assert!(tokio::time::timeout(limit, case).await.is_ok(), "`{name}` did not end in {limit:?}");
}

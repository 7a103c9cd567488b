//! What every engine must do: one function per case, one test per case and engine.
//!
//! An engine brings a [`Fixture`] and says [`conformance!`](crate::conformance!); each case then
//! runs as a test of its own, on a store of its own, so that a name reads
//! `memory::mutex::busy_is_none`. A capability that an engine lacks is no reason to skip a case: the
//! case then asserts the refusal that is documented.
//!
//! "Process" in a case's claim means a `Locker` of its own on the same store: to the engine, that is
//! another client.

#[macro_use]
mod list;
mod support;

pub mod blocking;
pub mod cancel;
pub mod contract;
pub mod detach;
pub mod error;
pub mod fence;
pub mod force;
pub mod input;
pub mod inspect;
pub mod lease;
pub mod log;
pub mod loss;
pub mod mutex;
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

/// An engine under test: makes processes that share one store, which nobody else uses.
pub trait Fixture: Send + Sync {
    /// A new process on the store.
    fn locker(&self) -> impl Future<Output = Locker> + Send;

    /// A new client of the store, below any `Locker`.
    fn backend(&self) -> impl Future<Output = Arc<dyn Backend>> + Send;

    /// What this test's keys start with. Without characters that mean something in a glob.
    fn namespace(&self) -> &str {
        "case"
    }

    /// A key of this test's own.
    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.namespace())
    }

    /// A ttl that is short for this engine: cases that wait for its end wait this long, and those
    /// that renew it must survive a hiccup of two thirds of it.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    /// What the engine can do.
    fn capabilities(&self) -> impl Future<Output = Capabilities> + Send {
        async { self.backend().await.capabilities() }
    }
}

/// Runs one case, for at most a minute. What [`conformance!`](crate::conformance!) calls.
///
/// # Panics
///
/// If the case fails or does not end.
#[doc(hidden)]
pub async fn run_case(name: &str, case: impl Future<Output = ()>) {
    let limit = Duration::from_secs(60);
    assert!(tokio::time::timeout(limit, case).await.is_ok(), "`{name}` did not end in {limit:?}");
}

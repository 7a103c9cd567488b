//! Distributed locks that are safe, fast and pleasant.
//!
//! A lock is a **lease**: an engine stores who holds a key until when, the holder renews the lease, and a
//! number that only rises, the **fence**, lets the protected resource reject a stale holder. tenure has safe
//! defaults for the usual failures of such systems: a release hands the lock to the next waiter instead of
//! starting a race, the code that holds a lock is notified of its loss, every grant has a fence, and a
//! request without a reply counts as neither success nor failure until it is resolved.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let locker = tenure::connect("memory:").await?;
//!
//! let guard = locker.lock("order:42").wait(Duration::from_secs(5)).await?; // waits its turn
//! println!("saving with fence {}", guard.fence()); // the resource refuses older fences
//! guard.release().await?; // or drop it: released in the background
//!
//! let Some(guard) = locker.try_lock("order:42").await? else { return Ok(()) };
//! # drop(guard);
//! # Ok(()) }
//! ```
//!
//! # Where to look
//!
//! [`connect`] returns a [`Locker`]: `memory:` inside this process, `file:DIR` across one user's processes on
//! this machine, `redis://HOST`, `redis+sentinel://`, `redis-cluster://`, `redis+quorum://` and `etcd://HOST`
//! across machines. [`Locker::lock`] and [`Locker::try_lock`] return requests that are awaited for a
//! [`Guard`]. [`LockRequest::run`] runs a future under the lock, and drops the future if the lock is lost.
//! `#[tenure::lock]` puts a whole function under a lock. [`from_config`] connects as a file and the
//! environment configure it. [`Owner`] is for re-entry, [`FenceCheck`] for the resource, [`blocking`] for
//! code without a runtime, [`Memory`] for your tests (see the guide `docs/guide/testing-your-code.md`), and
//! [`backend`] for engines of your own.
//!
//! # Cargo features
//!
//! | feature | by default | what it adds |
//! |---|---|---|
//! | `macros` | yes | the attribute `#[tenure::lock]` |
//! | `redis` | yes | all URLs of Redis, and the module `redis` |
//! | `kv` | no | typed values on the same Redis client: the module `redis::kv` |
//! | `etcd` | no | `etcd://`, and the module `etcd` |
//! | `axum` | no | the module `axum`: layers, owners, fences and error responses for axum 0.8 |
//! | `tower` | no | the module `tower`: a lock around each request of any tower service |
//!
//! The URLs of Redis are `redis://`, `redis+sentinel://`, `redis-cluster://` and `redis+quorum://`. `memory:` and
//! `file:` are always available. A URL of an engine whose feature is off causes an error that names the feature.
//!
//! # Runtime
//!
//! tenure runs on tokio with timers enabled (`enable_time`, or any `#[tokio::main]`).
//!
//! # What a lock cannot promise
//!
//! A lease ends by the clock. If a process is paused for longer than its lease, between a call of
//! [`Guard::is_held`] and a write, it writes without the lock. No lock service can prevent that. The resource
//! can, with the fence.

#[doc(inline)]
pub use tenure_core::*;

mod connect;
mod engines;
mod settings;

pub use connect::connect;
pub use engines::url_forms;
pub use settings::{Config, Driver, from_config};

#[cfg(feature = "macros")]
pub use tenure_macros::lock;

/// Locks in an axum application: layers, and errors as responses.
#[cfg(feature = "axum")]
#[doc(inline)]
pub use tenure_axum as axum;

/// A lock around a tower service: hyper, tonic and others.
#[cfg(feature = "tower")]
#[doc(inline)]
pub use tenure_tower as tower;

/// Locks on a Redis server, with options that a URL does not have; and the [client](redis::KvExt) for values
/// there.
#[cfg(feature = "redis")]
#[doc(inline)]
pub use tenure_redis as redis;

/// Locks on an etcd cluster, with options that a URL does not have.
#[cfg(feature = "etcd")]
#[doc(inline)]
pub use tenure_etcd as etcd;

/// The API for threads. On a worker thread of an async runtime these calls are errors; in `spawn_blocking`
/// they block.
pub mod blocking {
    pub use crate::connect::connect_blocking as connect;
    pub use crate::settings::from_config_blocking as from_config;
    pub use tenure_core::blocking::*;
}

/// The examples of the READMEs and guides, as tests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../../docs/guide/quickstart.md")]
    struct Quickstart;
    #[doc = include_str!("../../../docs/engines/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/guide/sharing-locks.md")]
    struct SharingLocks;
    #[doc = include_str!("../../../docs/engines/quorum.md")]
    struct Quorum;
    #[doc = include_str!("../../../docs/engines/etcd.md")]
    struct Etcd;
    #[doc = include_str!("../../../docs/ops/doctor.md")]
    struct Doctor;
    #[doc = include_str!("../../../docs/guide/client.md")]
    struct Client;
    #[cfg(feature = "macros")]
    #[doc = include_str!("../../../docs/guide/macro.md")]
    struct Macro;
    #[doc = include_str!("../../../docs/guide/configuration.md")]
    struct Configuration;
    #[doc = include_str!("../../../docs/guide/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/guide/moving.md")]
    struct Moving;
    #[doc = include_str!("../../../docs/guide/readers-and-permits.md")]
    struct ReadersAndPermits;
    #[doc = include_str!("../../../docs/guide/web.md")]
    struct Web;
    #[doc = include_str!("../../../docs/guide/several-keys.md")]
    struct SeveralKeys;
    #[doc = include_str!("../../../docs/guide/elections.md")]
    struct Elections;
    #[doc = include_str!("../../../docs/guide/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../../docs/ops/observing.md")]
    struct Observing;
    #[doc = include_str!("../../../docs/guide/testing-your-code.md")]
    struct Testing;
    #[doc = include_str!("../../../README.md")]
    struct English;
    #[doc = include_str!("../../../README.zh-CN.md")]
    struct Chinese;
}

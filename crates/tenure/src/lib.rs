//! Distributed locks that are safe, fast and pleasant.
//!
//! A lock is a **lease**: somebody says who holds a key until when, the holder keeps it alive, and a
//! number that only rises, the **fence**, lets the protected resource refuse a stale holder. tenure
//! makes right by default what goes wrong in such systems: the lock is handed to the next waiter
//! instead of fought over, its loss reaches the code that holds it, every grant carries a fence,
//! and an answer that never came is neither yes nor no until it is resolved.
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
//! [`connect`] gives a [`Locker`]: `memory:` inside this process, `file:DIR` across one user's processes
//! on this machine, `redis://HOST`, `redis+sentinel://`, `redis-cluster://`, `redis+quorum://` and `etcd://HOST` across machines. [`Locker::lock`] and [`Locker::try_lock`] are builders to be awaited for a [`Guard`];
//! [`Lock::run`] runs a future under the lock, and drops the future if the lock is lost.
//! `#[tenure::lock]` puts a whole function under one. [`from_config`] is [`connect`] by a file and the environment.
//! [`Owner`] is about re-entry, [`FenceCheck`] about the resource, [`blocking`] about code without a
//! runtime, [`Memory`] about your tests, and [`backend`] about engines of your own.
//!
//! The runtime is tokio's, with timers enabled (`enable_time`, or any `#[tokio::main]`).
//!
//! # What a lock cannot promise
//!
//! A lease ends by the clock. A process that is paused for longer than its lease, between asking
//! [`Guard::is_held`] and writing, writes without the lock. No lock service can prevent that; the
//! resource can, with the fence.

pub use tenure_core::*;

mod connect;
mod configured;

pub use configured::{Config, Driver, from_config};
pub use connect::connect;

#[cfg(feature = "macros")]
pub use tenure_macros::lock;

/// Locks in an axum application: layers, and errors as answers.
#[cfg(feature = "axum")]
pub use tenure_axum as axum;

/// Locks on a Redis server, for what a URL cannot say; and the [client](redis::KvExt) for values there.
#[cfg(feature = "redis")]
pub use tenure_redis as redis;

/// Locks on an etcd cluster, for what a URL cannot say.
#[cfg(feature = "etcd")]
pub use tenure_etcd as etcd;

/// The same for threads without an async runtime; inside one these calls err instead of blocking it.
pub mod blocking {
    pub use crate::configured::from_config_blocking as from_config;
    pub use crate::connect::connect_blocking as connect;
    pub use tenure_core::blocking::*;
}

/// The examples of the READMEs, as tests.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../../docs/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/quorum.md")]
    struct Quorum;
    #[doc = include_str!("../../../docs/etcd.md")]
    struct Etcd;
    #[doc = include_str!("../../../docs/doctor.md")]
    struct Doctor;
    #[doc = include_str!("../../../docs/client.md")]
    struct Client;
    #[cfg(feature = "macros")]
    #[doc = include_str!("../../../docs/macro.md")]
    struct Macro;
    #[doc = include_str!("../../../docs/configuration.md")]
    struct Configuration;
    #[doc = include_str!("../../../docs/web.md")]
    struct Web;
    #[doc = include_str!("../../../docs/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../../docs/observing.md")]
    struct Observing;
    #[doc = include_str!("../../../README.md")]
    struct English;
    #[doc = include_str!("../../../README.zh-CN.md")]
    struct Chinese;
}

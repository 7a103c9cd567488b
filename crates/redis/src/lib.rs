//! Locks on one Redis or Valkey server, 6.2 or later, on the master that Sentinels name, or on a
//! [`Cluster`] or a [`Quorum`] of servers; and a client for values on one server.
//!
//! Applications use the crate `tenure` and call `tenure::connect("redis://host")`. This crate is for options
//! that a URL does not have: [`Redis::builder`]. The verbs of a [`Client`] are in [`KvExt`].
//!
//! The modules, lowest first. Each uses only modules of the lines before its own:
//!
//! 1. `error`; `url` (addresses and logins); `wire` (requests, keys and values as bytes)
//! 2. `link`: connections, and the server that they lead to
//! 3. `scripts`: a typed function for each request about a lock
//! 4. `inbox` (notifications); `replication` (waits for replicas); `sentinel` (a route to the master)
//! 5. `client`: what the lockers on one server share
//! 6. `doctor` (what makes locks unsafe); `kv` (typed values on a server)
//! 7. `single`: the contract on one server
//! 8. `builder`: from a URL to a client or a locker
//! 9. `cluster`, which chooses among servers; `quorum`, which asks many at a time; `config`, the fields of a file
//!
//! A request passes through them from `single` down to `link`, and its errors come back as `error`.

mod error;
mod url;
mod wire;
mod link;
mod scripts;
mod inbox;
mod replication;
mod sentinel;
mod client;
mod doctor;
#[cfg(feature = "kv")]
pub mod kv;
mod single;
mod builder;
mod cluster;
mod quorum;
mod config;

pub use builder::{Builder, POOL_SIZE_DEFAULT, POOL_SIZE_MAX, PREFIX_DEFAULT, QUARANTINE_DEFAULT};
pub use client::Client;
pub use cluster::Cluster;
pub use config::Config;
#[cfg(feature = "kv")]
pub use kv::{Kv, KvExt};
pub use quorum::{NODES_MAX, Quorum};
pub use single::Redis;
pub use tenure_net::{CONNECT_TIMEOUT_DEFAULT, RESPONSE_TIMEOUT_DEFAULT};
pub use wire::lock_key::PREFIX_MAX;

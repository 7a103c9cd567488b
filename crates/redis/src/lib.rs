//! Locks on one Redis or Valkey server, 6.2 or later, on the master that Sentinels name, or on a
//! [`Cluster`] or a [`Quorum`] of servers; and a client for values on one server.
//!
//! Applications use the crate `tenure` and say `tenure::connect("redis://host")`; this crate is for
//! what a URL cannot say: [`Redis::builder`]. The verbs of a [`Client`] are those of [`KvExt`].
//!
//! The modules in the order in which a request passes through them:
//! `url` → `tls` → `builder` → `client` → `backend` → `wait` → `witness` → `calm`, `pace` → `scripts` (with `keys` and `value`) → `link` (with `sentinel`) → the
//! server, and back up: `trouble` says what went wrong. `renew`, `again`, `look`, `watch`, `doctor` and [`kv`], for values, are
//! the other ways down. `cluster` chooses among many such servers, `quorum` asks many at a time.

mod url;
mod tls;
mod builder;
mod client;
pub mod kv;
mod backend;
mod cluster;
mod wait;
mod calm;
mod pace;
mod witness;
mod renew;
mod again;
mod look;
mod watch;
mod scripts;
mod keys;
mod value;
mod inbox;
mod link;
mod sentinel;
mod quorum;
mod doctor;
mod trouble;
mod jitter;

pub use backend::Redis;
pub use builder::{
    Builder, CONNECT_TIMEOUT_DEFAULT, POOL_SIZE_DEFAULT, POOL_SIZE_MAX, PREFIX_DEFAULT, PREFIX_MAX,
    QUARANTINE_DEFAULT, RESPONSE_TIMEOUT_DEFAULT,
};
pub use client::Client;
pub use cluster::Cluster;
pub use kv::{Kv, KvExt};
pub use quorum::{NODES_MAX, Quorum};

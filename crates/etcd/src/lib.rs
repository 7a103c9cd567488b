//! Locks on etcd, 3.4 or later, for programs that need consensus behind the lock.
//!
//! Applications use the crate `tenure` and `tenure::connect("etcd://host")`. This crate is for options that a
//! URL does not have: [`Etcd::builder`].
//!
//! A request passes through these modules: `builder` → `backend` → `acquire` (with `wait`) → `queue` → `sessions` →
//! `claim_key` → `link` → the server. The other ways down are `renew`, `release`, `transfer`, `force`, `inspect`,
//! `watch`, `doctor`, and `background`, which runs by itself.
//!
//! A module uses only modules that stand before it in this list, the lowest first:
//! `proto`, `error`, `version`, `url`, `link`, `modes`, `keys`, `value`, `client`, `session`, `epoch`, `claim_key`,
//! `position`, `cleanup`, `contention`, `watch_cache`, `sessions`, `queue`, `wait`, `release`, `acquire`, `transfer`,
//! `renew`, `force`, `inspect`, `watch`, `background`, `doctor`, `backend`, `builder`, `bench_client`. In `link`:
//! `cluster`, `codec`, `connection`, `probe`, `bench_connection`.

mod proto;
mod error;
mod version;
mod url;
mod link;
mod modes;
mod keys;
mod value;
mod client;
mod session;
mod epoch;
mod claim_key;
mod position;
mod cleanup;
mod contention;
mod watch_cache;
mod sessions;
mod queue;
mod wait;
mod release;
mod acquire;
mod transfer;
mod renew;
mod force;
mod inspect;
mod watch;
mod background;
mod doctor;
mod backend;
mod builder;
#[cfg(feature = "bare")]
#[doc(hidden)]
pub mod bench_client;

pub use backend::Etcd;
pub use builder::{Builder, PREFIX_DEFAULT, PREFIX_MAX};
pub use client::Client;
pub use tenure_net::{CONNECT_TIMEOUT_DEFAULT, RESPONSE_TIMEOUT_DEFAULT};

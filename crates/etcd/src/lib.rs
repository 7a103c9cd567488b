//! Locks on etcd, 3.4 or later: for those who need consensus behind the lock.
//!
//! Applications use the crate `tenure` and say `tenure::connect("etcd://host")`; this crate is for
//! what a URL cannot say: [`Etcd::builder`].
//!
//! The modules in the order in which a request passes through them:
//! `url` → `tls` → `builder` → `backend` → `wait` (with `ears`) → `sessions` (with `session` and `epoch`) → `seat` (with `keys` and
//! `value`) → `proto` → `link` → the server, and back up: `trouble` says what went wrong, `version` which
//! servers to trust. `renew`, `give`, `force`, `look`, `watch`, `doctor` and `tend`, which runs by itself, are the other
//! ways down.

mod url;
mod tls;
mod builder;
mod backend;
mod wait;
mod ears;
mod sessions;
mod session;
mod epoch;
mod seat;
mod renew;
mod give;
mod force;
mod look;
mod watch;
mod tend;
mod doctor;
mod keys;
mod value;
mod proto;
mod link;
mod version;
mod trouble;
mod jitter;
#[cfg(feature = "bare")]
#[doc(hidden)]
pub mod bare;

pub use backend::Etcd;
pub use builder::{
    Builder, CONNECT_TIMEOUT_DEFAULT, PREFIX_DEFAULT, PREFIX_MAX, RESPONSE_TIMEOUT_DEFAULT,
};

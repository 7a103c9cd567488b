//! The cost of tenure against the cost of the bare commands, in the same run.
//!
//! In: a [`Bench`], which defines the figures, the server and the number of rounds. Out: a [`Report`], as a
//! table for people or as JSON. Run it with `cargo xtask bench`.
//!
//! Figures are medians of interleaved rounds, so that a busy machine affects both sides alike. A metrics
//! recorder and a log subscriber are installed ([`observe`]), as in a real service.
//!
//! The modules in reading order: `bench` (parameters), `embedded/`, `redis/`, `sentinel`, `quorum/`,
//! `cluster/` and `etcd/` (the figures of each engine), `fleet` and `client_thread` (clients as in separate
//! processes), `rounds`, `local` and `renewal_cost` (how they are measured), `usage` (resources of a
//! process), `observe`, `report`, `error`.

mod bench;
mod cluster;
mod embedded;
mod redis;
mod sentinel;
mod quorum;
mod etcd;
mod fleet;
mod client_thread;
mod rounds;
mod local;
mod renewal_cost;
mod usage;
mod observe;
mod report;
mod error;

pub use bench::{Bench, Progress, Size};
pub use embedded::contend;
pub use error::Error;
pub use observe::observe;
pub use report::Report;

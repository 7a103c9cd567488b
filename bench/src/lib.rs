//! What tenure costs, beside what the bare thing costs, in the same run.
//!
//! In: a [`Bench`], which says what to measure, where and how often. Out: a [`Report`], as a table for
//! people or as JSON. `cargo xtask bench` is the way to run it.
//!
//! Medians of interleaved rounds, so that a busy machine hits both sides alike. A metrics recorder and
//! a log subscriber are installed ([`observe`]), as in a real service.
//!
//! The modules in reading order: `bench` (what is asked), `embedded/`, `redis/`, `sentinel`, `quorum/` and `etcd/` (a module per
//! kind of figure), `fleet` and `home` (clients as in processes of their own), `rounds`, `local` and `held`
//! (how they are measured), `usage` (what a process uses), `report`.

mod bench;
mod cluster;
mod embedded;
mod redis;
mod sentinel;
mod quorum;
mod etcd;
mod fleet;
mod home;
mod rounds;
mod local;
mod held;
mod usage;
mod observe;
mod report;
mod error;

pub use bench::{Bench, Progress, Size};
pub use embedded::contend;
pub use error::Error;
pub use observe::observe;
pub use report::Report;

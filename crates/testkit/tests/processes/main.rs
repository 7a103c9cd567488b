//! Locks of whole processes: stopped, killed, forked, ended, counted by their threads.
//!
//! These tests start the programs of this crate, and cargo tells only the tests of the same crate where its programs
//! are. So they are here and not with their engines.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions; the figures are worth reading"
)]

mod support;
mod file;
mod file_history;
mod wall_clock;
mod redis;
mod shared_owner;
mod etcd;
mod fork;
mod exit;
mod threads;

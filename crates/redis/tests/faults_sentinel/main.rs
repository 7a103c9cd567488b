//! Faults of a master that Sentinels name: manual failovers and failovers after a death, with real processes. Numbers
//! are rows of `docs/testing/faults.md`.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions; the figures are worth reading"
)]

mod support;
mod failover;
mod trust;
mod login;
mod tls;
mod replicas;
mod elections;
mod unavailable;

//! Faults of a Redis Cluster: slots that move, manual failovers and failovers after a death, with real processes.
//! Numbers are rows of `docs/testing/faults.md`.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions; the figures are worth reading"
)]

mod support;
mod names;
mod moving;
mod failover;
mod steps;
mod storm;
mod inbox;
mod together;
mod elections;
mod unavailable;

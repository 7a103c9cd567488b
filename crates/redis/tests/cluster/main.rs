//! A Redis Cluster: slots that move, failovers by hand and by death, with real processes. Rows of the
//! torture table by their number.

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

//! Faults of a quorum of five real servers: the rows of `docs/testing/faults.md` that are about quorums. Tests of a
//! single server are in `tests/faults`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions"
)]

mod support;
mod nodes;
mod dead_nodes;
mod worker;
mod fence;
mod short;
mod waiting;
mod readers;
mod elections;
mod unavailable;

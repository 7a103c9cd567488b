//! A quorum of five real servers: the conformance suite, and the rows of the torture table that are
//! about quorums. Tests of one server are in `tests/torture`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions"
)]

mod support;
mod conformance;
mod nodes;
mod faults;
mod home;
mod fence;
mod short;
mod waiting;

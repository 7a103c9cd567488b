//! The four engines of this crate pass the conformance suite of all engines: one test per case of
//! `tenure_testkit::conformance`.

#![allow(clippy::expect_used, reason = "test code, also outside of `#[test]` functions")]

mod cluster;
mod quorum;
mod sentinel;
mod single;

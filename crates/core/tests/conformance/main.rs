//! `memory:` and `file:` pass the conformance suite of all engines: one test per case of `tenure_testkit::conformance`.

#![allow(clippy::expect_used, reason = "test code, also outside of `#[test]` functions")]

mod file;
mod memory;

//! The rows of the torture table that need no server, each with its number in the test's name.
//!
//! Rows 55–59 and what else every engine must survive are in the conformance suite.

#![allow(clippy::unwrap_used, reason = "test code, also outside of `#[test]` functions")]

mod cancel;
mod clock;
mod hang;
mod input;
mod overload;
mod process;
mod renewal;
mod runtime;
mod support;
mod unknown;

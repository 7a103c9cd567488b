//! The client's verbs on a real server, with real faults.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions"
)]

mod support;
mod verbs;
mod more;
mod scan;
mod types;
mod replaced;
mod remember;
mod pipeline;
mod fenced;
mod faults;
mod cancel;
mod observe;
mod config;

//! The rows of `docs/testing/faults.md` that apply to etcd, on real servers and with real faults.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions"
)]

mod support;
mod safety;
mod fence;
mod session;
mod queue;
mod together;
mod storm;
mod late;
mod network;
mod operator;
mod elections;
mod watch;
mod cluster;
mod rounds;
mod input;
mod rights;
mod tls;
mod version;
mod lost_replies;
mod unavailable;
mod shared_client;

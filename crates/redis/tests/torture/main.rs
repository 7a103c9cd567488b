//! The rows of the torture table that one Redis server can show, with real faults. `README.md` beside
//! this file says which row is where.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions"
)]

mod support;
mod relay;
mod safety;
mod server;
mod silence;
mod foreign;
mod rights;
mod tls;
mod pool;
mod queue;
mod shared_client;
mod identity;
mod traps;
mod fake;
mod network;
mod cancel;
mod clock;
mod many;
mod storm;
mod watch;
mod regress;
mod log;

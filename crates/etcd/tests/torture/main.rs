//! The rows of the torture table that etcd can show, on real servers and with real faults. `README.md`
//! beside this file says which row is where.

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
mod late;
mod network;
mod operator;
mod watch;
mod cluster;
mod rounds;
mod input;
mod rights;
mod tls;
mod version;
mod regress;

//! The rows of `docs/testing/faults.md` that one Redis server can show, with real faults. Sentinel, cluster and quorum
//! have their own: `faults_sentinel`, `faults_cluster` and `faults_quorum`.

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
mod lock_key;
mod inspect;
mod handover;
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
mod together;
mod starvation;
mod permits;
mod elections;
mod watch;
mod waiters;
mod unavailable;
mod log;

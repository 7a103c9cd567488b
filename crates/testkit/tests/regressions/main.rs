//! What an attack on the engine broke once, and must hold for good.
//!
//! Two more are in `crates/core/tests`, since each needs a process of its own: a log that panics, and
//! contention as the metrics show it. The race for a lease's ttl is in `crates/core/src/memory/tests.rs`.

#![allow(clippy::unwrap_used, reason = "test code, also outside of `#[test]` functions")]

mod fork;
mod gate;
mod handoff;
mod input;
mod paper;
mod release;
mod renewal;
mod shutdown;
mod start;
mod support;

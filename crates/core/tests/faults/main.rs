//! Faults that need no server: the rows of `docs/testing/faults.md` that `memory:`, `file:` and the engine itself can
//! show. A test has the number of its row in its name.
//!
//! The conformance suite covers rows 55–59 on every engine. Two more tests are beside this directory, because each
//! needs a process of its own: a log that panics, and contention as the metrics show it.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test code, also outside of `#[test]` functions; the figures are worth reading"
)]

mod support;
mod input;
mod cancel;
mod gate;
mod handover;
mod release;
mod unknown;
mod unavailable;
mod hang;
mod renewal;
mod late_renewal;
mod overload;
mod export;
mod elections;
mod clock;
mod runtime;
mod start;
mod shutdown;
mod storm;

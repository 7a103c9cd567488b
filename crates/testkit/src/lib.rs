//! The shared test code of tenure: one suite for every engine, faults, histories and their judge.
//!
//! - [`mod@conformance`]: the requirements for every engine, one test per case: [`conformance!`].
//! - [`intercept`]: a wrapper around a backend that counts, delays or breaks its calls.
//! - [`process`]: programs that can be stopped, continued and killed, such as `holder`.
//! - [`elections`]: what an observer of an election saw, checked.
//! - [`history`], [`register`] → [`judge`]: the events of a run, and whether it kept the promises.
//! - [`campaign`]: processes that compete for locks under random faults, and the verdict on them.
//! - [`servers`]: real servers that can be stopped, killed and restarted, and a proxy in front of them.
//! - [`mod@unavailable`]: what every engine must do while its server cannot be reached.
//! - [`clock`]: a program with its own wall clock.
//! - [`wait`], [`rng`]: waiting for a state with a deadline, and repeatable random numbers.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: what is unexpected ends the test, and says where"
)]

pub mod campaign;
pub mod clock;
pub mod conformance;
pub mod elections;
pub mod history;
pub mod intercept;
pub mod judge;
pub mod process;
pub mod register;
pub mod rng;
pub mod servers;
pub mod unavailable;
pub mod wait;

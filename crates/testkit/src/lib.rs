//! What the tests of tenure share: one suite for every engine, faults, histories and their judge.
//!
//! - [`mod@conformance`]: what every engine must do, one test per case: [`conformance!`].
//! - [`meddle`]: a backend in the middle, to count, hold back, break.
//! - [`process`]: programs that can be stopped, continued and killed; `holder` is the one to run.
//! - [`history`], [`register`] → [`judge`]: what a run did, and whether it kept the promises.
//! - [`campaign`]: processes that fight under random faults, and the verdict on them.
//! - [`seeded`]: bugs made on purpose, each of which the judge must find.
//! - [`servers`]: real servers, to be stopped, killed and started again, and a proxy in front of them.
//! - [`clock`]: a program with a wall clock of its own.
//! - [`wait`], [`dice`]: waiting for a state with a deadline, chance that can be repeated.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: what is unexpected ends the test, and says where"
)]

pub mod campaign;
pub mod clock;
pub mod conformance;
pub mod dice;
pub mod history;
pub mod judge;
pub mod meddle;
pub mod process;
pub mod register;
pub mod seeded;
pub mod servers;
pub mod wait;

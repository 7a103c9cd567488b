//! The tool from outside: what it says, how it ends, what it leaves behind.
//!
//! Each test has a directory of locks of its own, waits for states with a deadline, and asserts on
//! full texts; patterns stand only for what varies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod child;
mod common;
mod keys;
mod look;
mod lost;
mod signals;
mod status;
mod terminal;
mod waiting;

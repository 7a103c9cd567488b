//! `#[tenure::lock]`: every shape of function, every outcome, owners, keys, a real server.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;
mod modes;
mod shapes;
mod outcomes;
mod nesting;
mod keys;
mod options;
mod redis;

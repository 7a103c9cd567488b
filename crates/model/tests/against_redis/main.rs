//! The models of the queue and the real scripts agree: the same random steps on both, compared after each step.
//!
//! The steps go through the public `Backend` of `tenure-redis` on a real server, with one client per process. So the
//! fast scripts, the full ones and the notifications of waiters are all in it.

#![allow(clippy::unwrap_used, reason = "test code, also outside of `#[test]` functions")]

mod exclusive;
mod together;

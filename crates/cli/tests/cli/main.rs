//! The tool from outside: what it says, how it ends, what it leaves behind.
//!
//! Each test has a directory of locks or a server of its own, waits for states with a deadline, and asserts on
//! full texts; patterns stand only for what varies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acquire;
mod child;
mod common;
mod config;
mod doctor;
mod etcd;
mod keys;
mod look;
mod lost;
mod passwords;
mod redis;
mod redis_lost;
mod release;
mod screen;
mod signals;
mod status;
mod terminal;
mod unread;
mod waiting;
mod watch;

//! The tool from outside: its messages, its exit status, and what it leaves behind.
//!
//! Each test has its own lock directory or server, waits for states with a deadline, and compares full texts;
//! patterns are used only for parts that vary.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acquire;
mod child;
mod common;
mod config;
mod bench;
mod demo;
mod doctor;
mod elect;
mod etcd;
mod keys;
mod modes;
mod http;
mod inspect;
mod lost;
mod passwords;
mod redis;
mod redis_lost;
mod release;
mod screen;
mod serve;
mod signals;
mod status;
mod terminal;
mod unread;
mod waiting;
mod watch;

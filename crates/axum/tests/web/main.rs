//! The crate as an application sees it: requests and responses, mostly on `memory:`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;
mod lock;
mod limit;
mod owner;
mod problem;
mod fence;
mod gone;
mod server;

//! What an application sees: requests in, answers out, mostly on `memory:`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;
mod lock;
mod owner;
mod problem;
mod fence;
mod gone;
mod server;

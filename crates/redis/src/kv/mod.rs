//! The typed verbs of `tenure-kv`, on a server.
//!
//! [`Client`](crate::Client) is the [`Kv`] of a server: `client` → `wire` → the links of the locks. `health` checks
//! the server.
//!
//! Absent on purpose: connections, the protocol and the driver are not visible above `wire`.

mod client;
mod wire;
mod health;
mod error;

pub use health::Health;
pub use tenure_kv::*;

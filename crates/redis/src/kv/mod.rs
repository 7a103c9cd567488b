//! The client's verbs: get, set, remember, pipeline.
//!
//! In reading order: business code calls the typed verbs of [`KvExt`] (`ext`, with `set`, `remember` and
//! `flight`, `pipeline`), which are commands with a reader each (`ask`, `codec`) for any [`Kv`]
//! (`command`). [`Client`](crate::Client) is the one on a server: `send` → `wire` → the links that the
//! locks use. `meter` counts, `health` looks, `config` reads `[redis]`.
//!
//! Absent on purpose: connections, the protocol and the driver, which nobody above `wire` sees.

mod ext;
mod set;
mod remember;
mod flight;
mod pipeline;
mod ask;
mod codec;
mod command;
mod send;
mod wire;
mod meter;
mod health;
mod config;
mod error;

pub use ask::TTL_MAX;
pub use codec::{Bytes, Json};
pub use command::{Answer, Answers, Batch, Command, Kv, Verb};
pub use config::Config;
pub use error::{Error, ErrorKind};
pub use ext::KvExt;
pub use flight::Flights;
pub use health::Health;
pub(crate) use meter::Meters;
pub use pipeline::{Pipeline, Queue, QueuedSet, Results, Slot, Slots};
pub use remember::Remember;
pub use set::Set;

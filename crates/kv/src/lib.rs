//! Typed values on a key-value server: get, set, remember, pipeline.
//!
//! In reading order: business code calls the typed verbs of [`KvExt`] (`typed`, with `set`, `scan`, `any`,
//! `remember` and `flight`, `pipeline`). Each verb is a command and a reader for its answer (`verbs`,
//! `codec`), for any [`Kv`] (`command`). `metrics` records durations and errors.
//!
//! Absent on purpose: servers. `tenure-redis` implements [`Kv`] for its client, with its feature `kv`; a test of your
//! code can implement it with a map.

mod typed;
mod set;
mod scan;
mod any;
mod remember;
mod flight;
mod pipeline;
mod verbs;
mod codec;
mod command;
mod metrics;
mod error;

pub use any::AnyCommand;
pub use codec::{Bytes, Json};
pub use command::{Answer, Answers, Batch, Command, Kv, Verb, Word};
pub use error::{Error, ErrorKind};
pub use flight::Flights;
pub use metrics::Meters;
pub use pipeline::{Pending, PendingResults, Pipeline, Queue, QueuedCommand, QueuedSet, Results};
pub use remember::Remember;
pub use scan::Scan;
pub use set::{Set, SetMany};
pub use typed::KvExt;
pub use verbs::TTL_MAX;

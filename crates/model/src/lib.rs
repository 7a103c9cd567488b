//! The queue protocol of Redis locks and the fence of a quorum as models, and stateright to look at
//! every state of them.
//!
//! In: bounds ([`Setup`]) and what is broken on purpose ([`Bug`]). Out: how many states there
//! are, and the steps that break a rule ([`rules`]), if any. What is modelled and what is not:
//! `docs/design/0004-model.md`.
//!
//! In reading order: the bounds, everything there is, the scripts, the processes, what can happen
//! next, what must hold.

mod setup;
mod state;
mod server;
mod client;
mod model;
pub mod rules;
mod symmetry;
pub mod shared;
pub mod quorum;
mod run;
pub mod runs;

pub use run::{Outcome, explore, explore_quorum, explore_shared, find, find_quorum};
pub use setup::{Bug, Fault, Setup};

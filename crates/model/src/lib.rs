//! Models of the queue protocol of Redis locks, of claims with a mode and of the fence of a quorum. Stateright
//! visits every state of them.
//!
//! In: bounds ([`Setup`]) and a seeded bug ([`Bug`]). Out: the number of states, and the steps that break a
//! rule ([`rules`]), if any. What is modelled and what is not: `docs/design/0004-model.md`.
//!
//! Reading order: the bounds, the state, the scripts, the processes, the possible steps, the rules.

mod setup;
mod state;
mod server;
mod client;
mod model;
pub mod rules;
mod symmetry;
pub mod shared;
pub mod together;
pub mod quorum;
mod run;
pub mod runs;
pub mod replay;

pub use run::{
    Outcome, explore, explore_quorum, explore_shared, explore_together, find, find_quorum,
    find_together,
};
pub use setup::{Bug, Fault, Setup};

//! The judge is judged: bugs made on purpose, each of which must make a run fail.
//!
//! [`backend`] breaks what the server or its client does, over the real `memory:` backend.
//! [`gate`] is a model of the hand-off between the tasks of a process: the real one is private, and
//! right, so the bugs that it must not have are shown on a copy that can have them.

pub mod backend;
pub mod gate;
mod gate_server;

//! What is written to a server and read from it, as bytes. Nothing here knows a connection.
//!
//! In reading order: `command` (the arguments of a request), `keys` with `lock_key` and `slot` (the names of
//! keys), `value` (the content of a lock's key), `timing` (the times that scripts and clients agree on).

pub(crate) mod command;
pub(crate) mod keys;
pub(crate) mod lock_key;
pub(crate) mod slot;
pub(crate) mod timing;
pub(crate) mod value;

//! Values as text that any other client can read.
//!
//! In: a value. Out: its bytes, and back.
//!
//! | type | as |
//! |---|---|
//! | strings, `char` | themselves |
//! | integers up to 128 bits, floats (also `NaN`, `inf`), booleans | plain text: `42`, `2.5`, `true` |
//! | a newtype of one of these | what it wraps |
//! | [`Bytes`], and what else serde calls bytes | themselves |
//! | everything else: structs, lists, maps, enums, `Option`, `()` | JSON |
//!
//! An `Option` is JSON, so that `None` and `Some("null")` differ. [`Json`] is JSON whatever is inside.

mod encode;
mod decode;
mod wrap;
#[cfg(test)]
mod tests;

pub(crate) use decode::decode;
pub(crate) use encode::encode;
pub use wrap::{Bytes, Json};

//! Encodes values as text that any other client can read.
//!
//! In: a value. Out: its bytes, and back.
//!
//! | type | encoded as |
//! |---|---|
//! | strings, `char` | themselves |
//! | integers up to 128 bits, floats (also `NaN`, `inf`), booleans | plain text: `42`, `2.5`, `true` |
//! | a newtype of one of these | the wrapped value |
//! | [`Bytes`], and other types that serde treats as bytes | themselves |
//! | everything else: structs, lists, maps, enums, `Option`, `()` | JSON |
//!
//! An `Option` is JSON, so that `None` and `Some("null")` differ. [`Json`] always encodes as JSON.

mod encode;
mod decode;
mod answer;
mod wrap;
#[cfg(test)]
mod tests;

pub(crate) use answer::{decode_answer, text};
pub(crate) use decode::decode;
pub(crate) use encode::encode;
pub use wrap::{Bytes, Json};

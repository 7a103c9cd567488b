//! Decodes an answer of any form into a value: the result of `command(..)`.
//!
//! The requested type decides. Bytes are decoded as a value (`decode.rs`); `Nothing` is `None`, a number is
//! an integer or a boolean, a list is a sequence, a tuple or, in pairs, a map. `()` accepts any answer.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};

use super::decode::{Flaw, Text};
use crate::command::Answer;

/// Decodes the value of `answer`.
pub(crate) fn decode_answer<T: DeserializeOwned>(answer: &Answer) -> Result<T, Flaw> {
    T::deserialize(Given(answer))
}

/// The answer as text for a message.
pub(crate) fn text(answer: &Answer) -> Vec<u8> {
    let list = |all: Vec<Vec<u8>>| [b"[", &all.join(&b", "[..])[..], b"]"].concat();
    match answer {
        Answer::Nothing => b"nothing".to_vec(),
        Answer::Done => b"OK".to_vec(),
        Answer::Number(number) => number.to_string().into_bytes(),
        Answer::Bytes(bytes) => bytes.clone(),
        Answer::Many(all) => list(all.clone()),
        Answer::List(all) => list(all.iter().map(text).collect()),
    }
}

#[derive(Clone, Copy)]
struct Given<'de>(&'de Answer);

impl<'de> Given<'de> {
    /// Visits the answer in its own form.
    fn visit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        match self.0 {
            Answer::Nothing => visitor.visit_unit(),
            Answer::Done => visitor.visit_borrowed_str("OK"),
            Answer::Number(number) => visitor.visit_i64(*number),
            Answer::Bytes(bytes) => Text(bytes).deserialize_any(visitor),
            Answer::Many(all) => sequence(all.iter().map(|bytes| Text(bytes)), visitor),
            Answer::List(all) => sequence(all.iter().map(Given), visitor),
        }
    }
}

/// Visits all elements: none may be left over.
fn sequence<'de, I, V>(all: impl Iterator<Item = I>, visitor: V) -> Result<V::Value, Flaw>
where
    I: IntoDeserializer<'de, Flaw>,
    V: Visitor<'de>,
{
    let mut all = SeqDeserializer::new(all);
    let value = visitor.visit_seq(&mut all)?;
    all.end().map(|()| value)
}

impl<'de> IntoDeserializer<'de, Flaw> for Given<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> IntoDeserializer<'de, Flaw> for Text<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Decodes bytes as the requested type, and any other answer in its own form.
macro_rules! by_type {
    ($($name:ident($($arg:ident: $type:ty),*)),* $(,)?) => {
        $(fn $name<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, Flaw> {
            match self.0 {
                Answer::Bytes(bytes) => Text(bytes).$name($($arg,)* visitor),
                _ => self.visit(visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Given<'de> {
    type Error = Flaw;

    by_type! {
        deserialize_i8(), deserialize_i16(), deserialize_i32(), deserialize_i64(), deserialize_i128(),
        deserialize_u8(), deserialize_u16(), deserialize_u32(), deserialize_u64(), deserialize_u128(),
        deserialize_f32(), deserialize_f64(), deserialize_char(), deserialize_str(),
        deserialize_string(), deserialize_bytes(), deserialize_byte_buf(), deserialize_seq(),
        deserialize_identifier(), deserialize_unit_struct(name: &'static str),
        deserialize_tuple(len: usize), deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
        deserialize_any(),
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        match self.0 {
            Answer::Number(number @ 0..=1) => visitor.visit_bool(*number == 1),
            Answer::Done => visitor.visit_bool(true),
            Answer::Bytes(bytes) => Text(bytes).deserialize_bool(visitor),
            _ => self.visit(visitor),
        }
    }

    /// `None` for an absent value; an `Option` inside the value is the value's own.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        match self.0 {
            Answer::Nothing => visitor.visit_none(),
            Answer::Bytes(bytes) => visitor.visit_some(Text(bytes)),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        let all = match self.0 {
            Answer::Bytes(bytes) => return Text(bytes).deserialize_map(visitor),
            Answer::List(all) if all.len() % 2 == 0 => all,
            Answer::List(_) => return Err(Flaw::custom("a list of odd length is no map")),
            _ => return self.visit(visitor),
        };
        let pairs = all.chunks_exact(2).map(|pair| (Given(&pair[0]), Given(&pair[1])));
        visitor.visit_map(MapDeserializer::new(pairs))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Flaw> {
        match self.0 {
            Answer::Bytes(bytes) => Text(bytes).deserialize_struct(name, fields, visitor),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Flaw> {
        match self.0 {
            Answer::Bytes(bytes) => Text(bytes).deserialize_newtype_struct(name, visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        visitor.visit_unit()
    }
}

//! Decodes bytes into a value: the requested type determines how they are read.

use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, Visitor};

use super::wrap::JSON;

pub(super) type Flaw = serde_json::Error;

/// Decodes the value of `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Flaw> {
    T::deserialize(Text(bytes))
}

/// The bytes to decode.
#[derive(Clone, Copy)]
pub(super) struct Text<'de>(pub(super) &'de [u8]);

impl<'de> Text<'de> {
    fn text(&self) -> Result<&'de str, Flaw> {
        std::str::from_utf8(self.0).map_err(|_| Flaw::custom("it is not UTF-8"))
    }

    fn is_json(&self) -> bool {
        serde_json::from_slice::<IgnoredAny>(self.0).is_ok()
    }
}

macro_rules! from_text {
    ($($name:ident $visit:ident $type:ty),* $(,)?) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
            visitor.$visit(self.text()?.parse::<$type>().map_err(Flaw::custom)?)
        })*
    };
}

/// Uses the JSON reader, and rejects trailing text.
macro_rules! from_json {
    ($($name:ident($($arg:ident: $type:ty),*)),* $(,)?) => {
        $(fn $name<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, Flaw> {
            let mut json = serde_json::Deserializer::from_slice(self.0);
            let value = json.$name($($arg,)* visitor)?;
            json.end().map(|()| value)
        })*
    };
}

impl<'de> Deserializer<'de> for Text<'de> {
    type Error = Flaw;

    from_text! {
        deserialize_bool visit_bool bool, deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64, deserialize_i128 visit_i128 i128,
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64, deserialize_u128 visit_u128 u128, deserialize_f32 visit_f32 f32,
        deserialize_f64 visit_f64 f64, deserialize_char visit_char char,
    }

    from_json! {
        deserialize_option(), deserialize_unit(), deserialize_seq(), deserialize_map(),
        deserialize_identifier(), deserialize_unit_struct(name: &'static str),
        deserialize_tuple(len: usize), deserialize_tuple_struct(name: &'static str, len: usize),
        deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        visitor.visit_borrowed_bytes(self.0)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Flaw> {
        if name != JSON {
            return visitor.visit_newtype_struct(self);
        }
        let mut json = serde_json::Deserializer::from_slice(self.0);
        let value = json.deserialize_newtype_struct(name, visitor)?;
        json.end().map(|()| value)
    }

    /// For types that choose by the input: JSON if it is valid JSON, else a string.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        match self.is_json() {
            true => serde_json::Deserializer::from_slice(self.0).deserialize_any(visitor),
            false => self.deserialize_str(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Flaw> {
        visitor.visit_unit()
    }
}

//! Encodes a value as bytes.

use std::fmt;

use serde::ser::{Impossible, Serialize, Serializer};

/// Plain text for a scalar, JSON for any other value.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    match value.serialize(Plain) {
        Ok(text) => Ok(text),
        // Not a scalar, which its first serializer call shows. Any other error appears again in JSON.
        Err(NotPlain) => serde_json::to_vec(value),
    }
}

/// Accepts only scalars.
struct Plain;

/// The value is not a scalar.
#[derive(Debug)]
struct NotPlain;

type No = Impossible<Vec<u8>, NotPlain>;
type Said = Result<Vec<u8>, NotPlain>;

impl fmt::Display for NotPlain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a scalar")
    }
}

impl std::error::Error for NotPlain {}

impl serde::ser::Error for NotPlain {
    fn custom<T: fmt::Display>(_: T) -> Self {
        NotPlain
    }
}

macro_rules! as_text {
    ($($name:ident $type:ty),* $(,)?) => {
        $(fn $name(self, value: $type) -> Said {
            Ok(value.to_string().into_bytes())
        })*
    };
}

/// Long floats get an exponent: `1e300`, not 301 digits.
macro_rules! as_float {
    ($($name:ident $type:ty),* $(,)?) => {
        $(fn $name(self, value: $type) -> Said {
            Ok(format!("{value:?}").into_bytes())
        })*
    };
}

impl Serializer for Plain {
    type Ok = Vec<u8>;
    type Error = NotPlain;
    type SerializeSeq = No;
    type SerializeTuple = No;
    type SerializeTupleStruct = No;
    type SerializeTupleVariant = No;
    type SerializeMap = No;
    type SerializeStruct = No;
    type SerializeStructVariant = No;

    as_text! {
        serialize_bool bool, serialize_char char, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32,
        serialize_i64 i64, serialize_i128 i128, serialize_u8 u8, serialize_u16 u16, serialize_u32 u32,
        serialize_u64 u64, serialize_u128 u128,
    }
    as_float! { serialize_f32 f32, serialize_f64 f64 }

    fn serialize_str(self, value: &str) -> Said {
        Ok(value.as_bytes().to_vec())
    }

    fn serialize_bytes(self, value: &[u8]) -> Said {
        Ok(value.to_vec())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Said {
        match name {
            super::wrap::JSON => Err(NotPlain),
            _ => value.serialize(self),
        }
    }

    fn serialize_none(self) -> Said {
        Err(NotPlain)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Said {
        Err(NotPlain)
    }

    fn serialize_unit(self) -> Said {
        Err(NotPlain)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Said {
        Err(NotPlain)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Said {
        Err(NotPlain)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Said {
        Err(NotPlain)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_tuple(self, _: usize) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<No, NotPlain> {
        Err(NotPlain)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<No, NotPlain> {
        Err(NotPlain)
    }
}

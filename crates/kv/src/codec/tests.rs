//! How types are encoded, and that decoding restores them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct User {
    id: u64,
    name: Option<String>,
    photo: Bytes,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Id(u64);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Name(String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Nothing;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(f64),
    Box { width: u8 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Loose {
    Number(i64),
    Text(String),
}

#[track_caller]
fn travels<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, text: &str) {
    let bytes = encode(&value).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
    assert_eq!(decode::<T>(&bytes).unwrap(), value);
}

/// D4: scalars are plain text.
#[test]
fn scalars_are_plain_text() {
    travels(String::from("a \"quoted\" ü\n"), "a \"quoted\" ü\n");
    travels(String::new(), "");
    travels(String::from("null"), "null");
    travels('ß', "ß");
    travels(true, "true");
    travels(-42_i64, "-42");
    travels(i8::MIN, "-128");
    travels(u64::MAX, "18446744073709551615");
    travels(u128::MAX, "340282366920938463463374607431768211455");
    travels(i128::MIN, "-170141183460469231731687303715884105728");
    travels(2.5_f64, "2.5");
    travels(0.1_f32, "0.1");
    travels(1e300_f64, "1e300");
    travels(f64::MIN_POSITIVE, "2.2250738585072014e-308");
    travels(f64::NEG_INFINITY, "-inf");
    assert!(decode::<f64>(&encode(&f64::NAN).unwrap()).unwrap().is_nan());
    assert!(decode::<f64>(&encode(&-0.0_f64).unwrap()).unwrap().is_sign_negative());
}

/// A newtype is encoded as the wrapped value, bytes as themselves.
#[test]
fn newtypes_and_bytes() {
    travels(Id(7), "7");
    travels(Name("x".into()), "x");
    travels(Bytes(b"any \0 thing".to_vec()), "any \0 thing");
    travels(Bytes(Vec::new()), "");
    let odd = Bytes(vec![0xff, 0x00, 0xfe]);
    assert_eq!(encode(&odd).unwrap(), odd.0);
    assert_eq!(decode::<Bytes>(&odd.0).unwrap(), odd);
}

/// Everything else is JSON.
#[test]
fn the_rest_is_json() {
    let user = User { id: 1, name: None, photo: Bytes(vec![1, 255]) };
    travels(user.clone(), r#"{"id":1,"name":null,"photo":[1,255]}"#);
    travels(vec![user], r#"[{"id":1,"name":null,"photo":[1,255]}]"#);
    travels(Vec::<u8>::from(*b"ab"), "[97,98]");
    travels((1, "a".to_owned()), r#"[1,"a"]"#);
    travels(
        BTreeMap::from([(1_u8, u128::MAX)]),
        r#"{"1":340282366920938463463374607431768211455}"#,
    );
    travels(Shape::Point, r#""Point""#);
    travels(Shape::Circle(1.5), r#"{"Circle":1.5}"#);
    travels(Shape::Box { width: 3 }, r#"{"Box":{"width":3}}"#);
    travels(Nothing, "null");
    travels((), "null");
}

/// An `Option` is JSON, so that no value inside it looks like `None`.
#[test]
fn options_keep_what_they_hold() {
    travels(None::<String>, "null");
    travels(Some(String::from("null")), r#""null""#);
    travels(Some(String::new()), r#""""#);
    travels(Some(5), "5");
    travels(Some(u128::MAX), "340282366920938463463374607431768211455");
    travels(Some(Bytes(vec![1])), "[1]");
}

/// Types that choose by the input: a bare string that looks like JSON needs the wrapper.
#[test]
fn loose_types() {
    travels(Loose::Number(5), "5");
    travels(Loose::Text("abc".into()), "abc");
    assert_eq!(
        decode::<Loose>(&encode(&Loose::Text("5".into())).unwrap()).unwrap(),
        Loose::Number(5)
    );
    travels(Json(Loose::Text("5".into())), r#""5""#);
    travels(Json(serde_json::json!("true")), r#""true""#);
    travels(Json(7), "7");
    travels(serde_json::json!({"a": [1, null]}), r#"{"a":[1,null]}"#);
}

/// Bytes of another type are rejected, even if only the end is wrong.
#[test]
fn refusals() {
    let flaw = |flaw: serde_json::Error| flaw.to_string();
    assert_eq!(flaw(decode::<u8>(b"256").unwrap_err()), "number too large to fit in target type");
    assert_eq!(flaw(decode::<i64>(b"").unwrap_err()), "cannot parse integer from empty string");
    assert_eq!(flaw(decode::<String>(b"\xff").unwrap_err()), "it is not UTF-8");
    assert!(decode::<bool>(b"1").is_err());
    assert!(decode::<Vec<u8>>(b"[1]x").is_err());
    assert!(decode::<Option<u8>>(b"1 2").is_err());
    assert!(decode::<Json<u8>>(b"1 2").is_err());
    assert!(decode::<User>(b"{}").is_err());
    assert!(encode(&BTreeMap::from([(vec![1], 1)])).is_err(), "JSON has no such keys");
}

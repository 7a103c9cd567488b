//! Values are stored as text that other clients can read, and come back unchanged (D4).

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_redis::kv::Bytes;
use tenure_redis::{Kv, KvExt};
use tenure_testkit::servers::RedisServer;

use crate::support::{User, ann, client, raw};

async fn round<T>(redis: &dyn Kv, value: T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug + Send,
{
    redis.set("k", &value).await.unwrap();
    assert_eq!(redis.get::<T>("k").await.unwrap().as_ref(), Some(&value));
    redis.delete("l").await.unwrap();
    redis.rpush("l", &value).await.unwrap();
    assert_eq!(redis.lpop::<T>("l").await.unwrap(), Some(value));
}

/// D4: every type comes back unchanged.
#[tokio::test]
async fn d4_round_trips() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    round(&redis, String::new()).await;
    round(&redis, String::from("\u{0} ü \r\n")).await;
    round(&redis, (i64::MIN, u64::MAX)).await;
    round(&redis, u128::MAX).await;
    round(&redis, i128::MIN).await;
    round(&redis, f64::MAX).await;
    round(&redis, f64::INFINITY).await;
    round(&redis, false).await;
    round(&redis, None::<String>).await;
    round(&redis, Some(String::from("null"))).await;
    round(&redis, Some(Some(ann()))).await;
    round(&redis, Bytes((0..=255).collect())).await;
    round(&redis, Bytes(Vec::new())).await;
    round(&redis, vec![ann()]).await;
    round(&redis, ()).await;
}

/// D4: another client can read our values, and we can read its values.
#[tokio::test]
async fn d4_others_read_it() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("s", "text").await.unwrap();
    redis.set("i", &-5).await.unwrap();
    redis.set("f", &0.5).await.unwrap();
    redis.set("b", &true).await.unwrap();
    let read = ["s", "i", "f", "b"].map(|key| raw(&server, &format!("tenure:{key}")).unwrap());
    assert_eq!(read, ["text", "-5", "0.5", "true"]);
    server.client().command(&["INCRBYFLOAT", "tenure:f", "1.25"]);
    server.client().command(&["INCR", "tenure:i"]);
    assert_eq!(redis.get("f").await.unwrap(), Some(1.75));
    assert_eq!(redis.get("i").await.unwrap(), Some(-4));
}

/// D4: a value of another type is an error that names the key, the type and the value found.
#[tokio::test]
async fn d4_what_does_not_decode_is_named() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("user:1", &format!("hello\n{}", "x".repeat(1000))).await.unwrap();
    let error = redis.get::<User>("user:1").await.unwrap_err();
    assert!(error.is_undecodable());
    assert_eq!(error.key(), Some(&b"user:1"[..]));
    let found = format!("hello\\n{}…", "x".repeat(54));
    assert_eq!(
        error.to_string(),
        format!(
            "get `user:1`: the value is not of type `kv::support::User`: expected value at line 1 column 1; \
             found `{found}`"
        )
    );
    redis.set("n", "many").await.unwrap();
    let error = redis.get::<u32>("n").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "get `n`: the value is not of type `u32`: invalid digit found in string; found `many`"
    );
}

/// D4: a value that JSON cannot express is refused before anything is sent.
#[tokio::test]
async fn d4_what_does_not_encode_is_refused() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let odd = std::collections::BTreeMap::from([(vec![1], 1)]);
    let error = redis.set("k", &odd).await.unwrap_err();
    assert!(error.is_invalid() && error.to_string().ends_with("key must be a string"), "{error}");
    assert!(!redis.exists("k").await.unwrap());
}

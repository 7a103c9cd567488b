//! The verbs, typed: what business code calls.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ask;
use super::command::Kv;
use super::error::Error;
use super::pipeline::{Pipeline, Queue, Slots};
use super::remember::Remember;
use super::set::Set;

/// The verbs of every [`Kv`].
///
/// A key is a `&str` or any bytes; the prefix is added below. Strings, numbers and booleans are kept
/// as plain text, [`Bytes`](super::Bytes) as they are, everything else as JSON.
///
/// # Errors
///
/// [`Error`] says what kind; each verb in its turn: unavailable, unknown, refused, wrong type, full,
/// denied; invalid for keys that belong to locks (`lock:…` and ours beside it); undecodable for a value
/// of another type than the one asked for.
///
/// # Cancel safety
///
/// Dropping a verb's future may leave it done or not done. No other call gets its answer.
///
/// ```no_run
/// # use serde::{Serialize, Deserialize};
/// # #[derive(Serialize, Deserialize)] struct User { name: String }
/// # async fn example(user: User) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tenure_redis::{Client, KvExt};
///
/// let redis = Client::connect("redis://localhost").await?;
/// redis.set("user:1", &user).ttl(Duration::from_secs(300)).await?;
/// let user: Option<User> = redis.get("user:1").await?;
/// let visits = redis.incr("visits").await?;
/// # let _ = (user, visits);
/// # Ok(()) }
/// ```
pub trait KvExt: Kv {
    /// The value, or `None` if there is none.
    fn get<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        ask::get(key.as_ref()).on(self)
    }

    /// Writes a value, whatever was there. `.ttl(..)` says for how long, `.fenced(..)` in whose name.
    fn set<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Set<'a, Self> {
        Set { kv: self, ask: ask::set(key.as_ref(), value) }
    }

    /// Removes a key of any type. Whether there was one.
    fn delete<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        ask::delete(key.as_ref()).on(self)
    }

    /// Whether there is such a key.
    fn exists<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        ask::exists(key.as_ref()).on(self)
    }

    /// Lets a key live for `ttl` from now on. Whether there is such a key.
    fn expire<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        ask::expire(key.as_ref(), ttl).on(self)
    }

    /// Adds one to a number, which is 0 if it is not there. What it is now.
    fn incr<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        ask::add(key.as_ref(), 1).on(self)
    }

    /// Takes one from a number, which is 0 if it is not there. What it is now.
    fn decr<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        ask::add(key.as_ref(), -1).on(self)
    }

    /// Writes a field of a hash. Whether the field is new.
    fn hset<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        field: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        ask::hset(key.as_ref(), field.as_ref(), value).on(self)
    }

    /// The value of a field, or `None` if there is none.
    fn hget<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        field: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        ask::hget(key.as_ref(), field.as_ref()).on(self)
    }

    /// All fields of a hash; none if there is no such key.
    fn hget_all<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<HashMap<String, T>, Error>> + Send {
        ask::hget_all(key.as_ref()).on(self)
    }

    /// Puts a value first in a list. How long the list is now.
    fn lpush<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        ask::lpush(key.as_ref(), value).on(self)
    }

    /// Puts a value last in a list. How long the list is now.
    fn rpush<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        ask::rpush(key.as_ref(), value).on(self)
    }

    /// Takes the first value out of a list; `None` if there is none.
    fn lpop<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        ask::lpop(key.as_ref()).on(self)
    }

    /// The values from `start` to `end`, both inclusive; negative numbers count from the end, so
    /// `0` to `-1` is all.
    fn lrange<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> impl Future<Output = Result<Vec<T>, Error>> + Send {
        ask::lrange(key.as_ref(), start, end).on(self)
    }

    /// Puts a member into a set. Whether it is new.
    fn sadd<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        ask::sadd(key.as_ref(), member).on(self)
    }

    /// The members of a set, in no order.
    fn smembers<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Vec<T>, Error>> + Send {
        ask::smembers(key.as_ref()).on(self)
    }

    /// Reads a value; if there is none, loads it, keeps it for `ttl` and returns it.
    ///
    /// Of the callers of this process that miss a key at the same time one loads, and the others get
    /// what came of it. If that one is cancelled or its loader panics, the next one loads. An error of
    /// the loader reaches all who wait and is not kept. A value that cannot be read as a `T` counts as
    /// none; a warning in the log says so. What was loaded is returned even if it could not be kept.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the load to the next caller. A future that is neither dropped nor
    /// polled keeps the others waiting.
    ///
    /// ```no_run
    /// # async fn load(id: u64) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn example(redis: &dyn tenure_redis::Kv) -> Result<(), tenure_redis::kv::Error> {
    /// use std::time::Duration;
    /// use tenure_redis::KvExt;
    ///
    /// let ttl = Duration::from_secs(300);
    /// let name: String = redis.remember("user:1", ttl, || load(1)).jitter(0.1).await?;
    /// # Ok(()) }
    /// ```
    fn remember<'a, F>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        ttl: Duration,
        load: F,
    ) -> Remember<'a, Self, F> {
        Remember::new(self, key.as_ref(), ttl, load)
    }

    /// Sends many commands in one round trip. `fill` queues them and returns the slots of the results
    /// that are wanted.
    ///
    /// If one fails, the error says [which](Error::place); those before and after it were carried out
    /// all the same.
    ///
    /// ```no_run
    /// # async fn example(redis: &dyn tenure_redis::Kv) -> Result<(), tenure_redis::kv::Error> {
    /// use tenure_redis::KvExt;
    ///
    /// let (visits, name) = redis
    ///     .pipeline(|p| {
    ///         p.set("seen:1", &true);
    ///         (p.incr("visits"), p.get::<String>("name:1"))
    ///     })
    ///     .atomic()
    ///     .await?;
    /// # let _ = (visits, name);
    /// # Ok(()) }
    /// ```
    fn pipeline<S: Slots>(&self, fill: impl FnOnce(&mut Queue) -> S) -> Pipeline<'_, Self, S> {
        Pipeline::new(self, fill)
    }
}

impl<K: Kv + ?Sized> KvExt for K {}

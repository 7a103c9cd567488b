//! The typed verbs that business code calls.

use std::collections::HashMap;
use std::future::{Future, IntoFuture};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::any::AnyCommand;
use super::command::Kv;
use super::error::Error;
use super::pipeline::{PendingResults, Pipeline, Queue};
use super::remember::Remember;
use super::scan::Scan;
use super::set::{Set, SetMany};
use super::verbs;

/// The verbs of every [`Kv`].
///
/// A key is a `&str` or any bytes; the client adds its prefix. Strings, numbers and booleans are stored as
/// plain text, [`Bytes`](super::Bytes) unchanged, everything else as JSON.
///
/// # Errors
///
/// Every verb can fail with an [`Error`] of these kinds: unavailable, unknown, refused, wrong type, full,
/// denied; invalid for keys that belong to the locks (`lock:…` and other reserved names); undecodable for a
/// value that is not of the requested type.
///
/// # Cancel safety
///
/// Dropping a verb's future may leave the command carried out or not. No other call gets its answer.
///
/// ```no_run
/// # use serde::{Serialize, Deserialize};
/// # #[derive(Serialize, Deserialize)] struct User { name: String }
/// # async fn example(user: User) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tenure_kv::KvExt;
/// use tenure_redis::Client;
///
/// let redis = Client::connect("redis://localhost").await?;
/// redis.set("user:1", &user).ttl(Duration::from_secs(300)).await?;
/// let user: Option<User> = redis.get("user:1").await?;
/// let visits = redis.incr("visits").await?;
/// # let _ = (user, visits);
/// # Ok(()) }
/// ```
pub trait KvExt: Kv {
    /// The value, or `None` if the key is absent.
    fn get<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        verbs::get(key.as_ref()).on(self)
    }

    /// Writes a value and replaces any existing one. `.ttl(..)` limits its lifetime, `.fenced(..)` checks a
    /// fence.
    fn set<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Set<'a, Self> {
        Set { kv: self, ask: verbs::set(key.as_ref(), value) }
    }

    /// Writes a value if the key is absent. Returns whether it was written. `.ttl(..)` limits its lifetime.
    ///
    /// One step on the server: of many concurrent callers one gets `true`. It is not a lock: it has no
    /// waiters, no renewal and no fence, and any client can delete it.
    fn set_if_absent<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Set<'a, Self, bool> {
        Set { kv: self, ask: verbs::set_if_absent(key.as_ref(), value) }
    }

    /// The values of many keys, in the order of the keys and read atomically; `None` for each absent key. One
    /// round trip.
    ///
    /// ```no_run
    /// # async fn example(redis: &dyn tenure_kv::Kv) -> Result<(), tenure_kv::Error> {
    /// use tenure_kv::KvExt;
    ///
    /// let names: Vec<Option<String>> = redis.get_many(["name:1", "name:2"]).await?;
    /// # drop(names);
    /// # Ok(()) }
    /// ```
    fn get_many<'a, T: DeserializeOwned + Send + 'a>(
        &'a self,
        keys: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> impl Future<Output = Result<Vec<Option<T>>, Error>> + Send {
        let reads = self.pipeline(|p| keys.into_iter().map(|key| p.get(&key)).collect::<Vec<_>>());
        reads.named("get_many").into_future()
    }

    /// Writes many values of one type atomically: no reader sees some of them without the others. `.ttl(..)`
    /// limits their lifetime. One round trip.
    fn set_many<V: Serialize>(
        &self,
        values: impl IntoIterator<Item = (impl AsRef<[u8]>, V)>,
    ) -> SetMany<'_, Self> {
        let writes = self.pipeline(|p| {
            for (key, value) in values {
                p.set(&key, &value);
            }
        });
        SetMany(writes.named("set_many"))
    }

    /// Deletes a key of any type. Returns whether it existed.
    fn delete<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::delete(key.as_ref()).on(self)
    }

    /// Whether the key exists.
    fn exists<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::exists(key.as_ref()).on(self)
    }

    /// Sets the lifetime of a key to `ttl` from now. Returns whether the key exists.
    fn expire<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::expire(key.as_ref(), ttl).on(self)
    }

    /// Adds one to a number; an absent key counts as 0. Returns the new value.
    fn incr<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        verbs::add(key.as_ref(), 1).on(self)
    }

    /// Subtracts one from a number; an absent key counts as 0. Returns the new value.
    fn decr<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        verbs::add(key.as_ref(), -1).on(self)
    }

    /// Adds `by`, which may be negative, to a number; an absent key counts as 0. Returns the new value.
    fn incr_by<'a>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        by: i64,
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        verbs::add(key.as_ref(), by).on(self)
    }

    /// Writes a field of a hash. Returns whether the field is new.
    fn hset<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        field: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::hset(key.as_ref(), field.as_ref(), value).on(self)
    }

    /// The value of a field, or `None` if it is absent.
    fn hget<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        field: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        verbs::hget(key.as_ref(), field.as_ref()).on(self)
    }

    /// All fields of a hash; empty if the key is absent.
    fn hget_all<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<HashMap<String, T>, Error>> + Send {
        verbs::hget_all(key.as_ref()).on(self)
    }

    /// Inserts a value at the start of a list. Returns the new length of the list.
    fn lpush<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        verbs::lpush(key.as_ref(), value).on(self)
    }

    /// Appends a value to a list. Returns the new length of the list.
    fn rpush<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> impl Future<Output = Result<i64, Error>> + Send {
        verbs::rpush(key.as_ref(), value).on(self)
    }

    /// Removes and returns the first value of a list; `None` if the list is empty.
    fn lpop<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send {
        verbs::lpop(key.as_ref()).on(self)
    }

    /// The values from `start` to `end`, both inclusive. Negative numbers count from the end, so `0` to `-1`
    /// is the whole list.
    fn lrange<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> impl Future<Output = Result<Vec<T>, Error>> + Send {
        verbs::lrange(key.as_ref(), start, end).on(self)
    }

    /// Adds a member to a set. Returns whether it is new.
    fn sadd<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::sadd(key.as_ref(), member).on(self)
    }

    /// The members of a set, in no order.
    fn smembers<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> impl Future<Output = Result<Vec<T>, Error>> + Send {
        verbs::smembers(key.as_ref()).on(self)
    }

    /// Adds a member to a sorted set, or changes its score. Returns whether it is new.
    fn zadd<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
        score: f64,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::zadd(key.as_ref(), member, score).on(self)
    }

    /// Adds `by`, which may be negative, to a member's score; an absent member counts as 0. Returns the new
    /// score.
    fn zincr_by<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
        by: f64,
    ) -> impl Future<Output = Result<f64, Error>> + Send {
        verbs::zincr_by(key.as_ref(), member, by).on(self)
    }

    /// The score of a member, or `None` if it is absent.
    fn zscore<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> impl Future<Output = Result<Option<f64>, Error>> + Send {
        verbs::zscore(key.as_ref(), member).on(self)
    }

    /// Removes a member from a sorted set. Returns whether it was present.
    fn zrem<'a, V: Serialize + ?Sized>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        verbs::zrem(key.as_ref(), member).on(self)
    }

    /// The members from `start` to `end` with their scores, the lowest score first. Both positions are
    /// inclusive; negative numbers count from the end, so `-3` to `-1` are the three highest.
    fn zrange<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> impl Future<Output = Result<Vec<(T, f64)>, Error>> + Send {
        verbs::zrange(key.as_ref(), start, end).on(self)
    }

    /// The members whose score is from `min` to `max`, both inclusive, with their scores, the lowest first.
    /// An infinite bound (`f64::INFINITY` or its negative) leaves that end open.
    fn zrange_by_score<'a, T: DeserializeOwned + Send>(
        &'a self,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        min: f64,
        max: f64,
    ) -> impl Future<Output = Result<Vec<(T, f64)>, Error>> + Send {
        verbs::zrange_by_score(key.as_ref(), min, max).on(self)
    }

    /// All keys that start with `prefix`, page by page; `""` selects every key of this client. Keys of the
    /// locks are left out.
    ///
    /// A key that exists from the first [`next`](Scan::next) to the last is returned, perhaps more than once.
    /// A key that is created or deleted in the meantime may be returned or not. The server visits every key
    /// of its database, however few match: use it for maintenance, not for every request.
    ///
    /// ```no_run
    /// # async fn example(redis: &dyn tenure_kv::Kv) -> Result<(), tenure_kv::Error> {
    /// use tenure_kv::KvExt;
    ///
    /// let mut users = redis.scan::<String>("user:");
    /// while let Some(key) = users.next().await? {
    ///     redis.delete(&key).await?;
    /// }
    /// # Ok(()) }
    /// ```
    fn scan<'a, T: DeserializeOwned>(
        &'a self,
        prefix: &'a (impl AsRef<[u8]> + ?Sized),
    ) -> Scan<'a, Self, T> {
        Scan::new(self, prefix.as_ref())
    }

    /// Any command that has no verb here, by its name. The requested type determines how the answer is read:
    /// `Option<T>` is `None` for nil, `()` accepts any answer.
    ///
    /// The connections are shared with all other calls and with the locks. So commands that block a
    /// connection (`BLPOP`), change it (`SELECT`, `SUBSCRIBE`, `MULTI`) or remove everything (`FLUSHALL`) are
    /// [rejected](Error::is_invalid).
    ///
    /// ```no_run
    /// # async fn example(redis: &dyn tenure_kv::Kv) -> Result<(), tenure_kv::Error> {
    /// use tenure_kv::KvExt;
    ///
    /// let left: i64 = redis.command("PTTL").key("user:1").await?;
    /// let rank: Option<u64> = redis.command("ZREVRANK").key("board").arg("ann").await?;
    /// # let _ = (left, rank);
    /// # Ok(()) }
    /// ```
    fn command<T: DeserializeOwned>(&self, name: &str) -> AnyCommand<'_, Self, T> {
        AnyCommand { kv: self, ask: verbs::any(name) }
    }

    /// Reads a value; if it is absent, loads it, stores it for `ttl` and returns it.
    ///
    /// If several callers of this process miss a key at the same time, one loads and the others get its
    /// outcome. If that caller is cancelled or its loader panics, the next one loads. An error of the loader
    /// reaches all waiters and is not stored. A value that cannot be decoded as a `T` counts as absent, with
    /// a warning in the log. A loaded value is returned even if it could not be stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the load to the next caller. A future that is neither dropped nor polled
    /// blocks the others.
    ///
    /// ```no_run
    /// # async fn load(id: u64) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn example(redis: &dyn tenure_kv::Kv) -> Result<(), tenure_kv::Error> {
    /// use std::time::Duration;
    /// use tenure_kv::KvExt;
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

    /// Sends many commands in one round trip. `fill` queues them and returns the [`Pending`](super::Pending)
    /// results that are needed.
    ///
    /// If a command fails, the error names [its position](Error::position); the commands before and after it
    /// were carried out all the same.
    ///
    /// ```no_run
    /// # async fn example(redis: &dyn tenure_kv::Kv) -> Result<(), tenure_kv::Error> {
    /// use tenure_kv::KvExt;
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
    fn pipeline<S: PendingResults>(
        &self,
        fill: impl FnOnce(&mut Queue) -> S,
    ) -> Pipeline<'_, Self, S> {
        Pipeline::new(self, fill)
    }
}

impl<K: Kv + ?Sized> KvExt for K {}

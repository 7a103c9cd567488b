//! `remember`: reads a value, or loads and stores it.
//!
//! In: a key, a ttl and a loader. Out: the value. `flight.rs` ensures that one caller of a process loads at a
//! time; a lock, if one is given, ensures that only one of many processes does.

use std::error::Error as StdError;
use std::future::{Future, IntoFuture};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::backend::BoxFuture;
use tenure_core::{Guard, KEY_MAX, Locker, OncePerSecond, WithinProcess};

use super::command::{Answer, Command, Kv, Verb};
use super::error::{Error, shown};
use super::flight::{Joined, Outcome};
use super::verbs::{self, checked_ttl};

/// A full server keeps no value, so every load fails to store its value: one log line a second is enough.
static NOT_KEPT: OncePerSecond = OncePerSecond::new();
const UNKEPT: &str = "what was loaded could not be kept";

/// A read that loads a missing value, made by [`KvExt::remember`](super::KvExt::remember). Await it.
#[must_use = "nothing is read until it is awaited"]
pub struct Remember<'a, K: ?Sized, F> {
    from: Recall<'a, K>,
    load: F,
}

/// All settings except the loader.
struct Recall<'a, K: ?Sized> {
    kv: &'a K,
    key: &'a [u8],
    ttl: Duration,
    jitter: f64,
    across: Option<Locker>,
}

/// A value, decoded and as stored.
struct Found<T> {
    value: T,
    bytes: Vec<u8>,
}

impl<'a, K: ?Sized, F> Remember<'a, K, F> {
    pub(super) fn new(kv: &'a K, key: &'a [u8], ttl: Duration, load: F) -> Self {
        Remember { from: Recall { kv, key, ttl, jitter: 0.0, across: None }, load }
    }

    /// Shortens each ttl at random, by up to this fraction: values that were loaded together then do not
    /// expire together. Between 0, the default, and 1.
    pub fn jitter(mut self, part: f64) -> Self {
        self.from.jitter = part;
        self
    }

    /// Runs the loader under a lock, so that only one of the processes that share the locks loads. The others
    /// wait for it, as long as their locker allows, and read the value that it stored.
    pub fn across(mut self, locker: &Locker) -> Self {
        self.from.across = Some(locker.clone());
        self
    }
}

impl<'a, K, F, L, T, E> IntoFuture for Remember<'a, K, F>
where
    K: Kv + ?Sized,
    F: FnOnce() -> L + Send + 'a,
    L: Future<Output = Result<T, E>> + Send,
    T: Serialize + DeserializeOwned + Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Remember { from, load } = self;
        Box::pin(async move {
            let key = from.key;
            from.run(load).await.map_err(|error| error.in_verb("remember", key))
        })
    }
}

impl<K: Kv + ?Sized> Recall<'_, K> {
    async fn run<T, F, L, E>(self, load: F) -> Result<T, Error>
    where
        F: FnOnce() -> L,
        L: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.check()?;
        if let Some(Ok(Found { value, .. })) = self.look().await? {
            return Ok(value);
        }
        loop {
            match self.kv.flights().join(self.key).await {
                Joined::Landed(outcome) => match verbs::read(&outcome?) {
                    Ok(value) => return Ok(value),
                    // The other load was of another type, which is no value for us.
                    Err(_) => continue,
                },
                Joined::Lead(lead) => {
                    let found = self.fetch(load).await;
                    lead.land(shared(&found));
                    return found.map(|found| found.value);
                }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&self.jitter) {
            let given = self.jitter;
            return Err(Error::invalid(format!("jitter ({given}) must be between 0 and 1")));
        }
        checked_ttl(self.ttl).map(drop)
    }

    /// The ttl for this load.
    fn ttl(&self) -> Duration {
        // Without randomness there is no jitter; that is acceptable.
        let chance = getrandom::u32().map_or(0.0, |random| f64::from(random) / f64::from(u32::MAX));
        self.ttl.mul_f64(1.0 - self.jitter * chance).max(Duration::from_millis(1))
    }

    /// The stored value; the inner error says why it is no `T`.
    async fn look<T: DeserializeOwned>(&self) -> Result<Option<Result<Found<T>, Error>>, Error> {
        let command = Command::new(self.key, Verb::Get);
        let bytes = match self.kv.ask(&command).await? {
            Answer::Nothing => return Ok(None),
            Answer::Bytes(bytes) => bytes,
            _ => return Err(Error::unexpected()),
        };
        Ok(Some(verbs::read(&bytes).map(|value| Found { value, bytes })))
    }

    /// Looks again, since the value may have been stored in the meantime, and loads it if it is still
    /// missing.
    async fn fetch<T, F, L, E>(&self, load: F) -> Result<Found<T>, Error>
    where
        F: FnOnce() -> L,
        L: Future<Output = Result<T, E>>,
        T: Serialize + DeserializeOwned,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let guard = self.lock().await?;
        match self.look().await? {
            Some(Ok(found)) => return Ok(found),
            Some(Err(error)) => {
                self.complain(&error, "what is kept cannot be read: loading afresh")
            }
            None => {}
        }
        let value = load().await.map_err(|error| Error::loader(error.into()))?;
        let bytes = verbs::written(&value)?;
        // If the lock was lost, the next holder has looked since then and stores a newer value.
        if guard.as_ref().is_none_or(Guard::is_held) {
            self.keep(bytes.clone()).await;
        }
        Ok(Found { value, bytes })
    }

    async fn lock(&self) -> Result<Option<Guard>, Error> {
        match &self.across {
            Some(locker) => {
                // Two callers of one process may meet here, and both want the value.
                let request = locker.lock(&*lock_name(self.key));
                Ok(Some(request.within_process(WithinProcess::Queue).await?))
            }
            None => Ok(None),
        }
    }

    /// Stores the value if possible: it was loaded, and can be returned in any case.
    async fn keep(&self, value: Vec<u8>) {
        let verb = Verb::Set { value, ttl: Some(self.ttl()), fence: None };
        if let Err(error) = self.kv.ask(&Command::new(self.key, verb)).await {
            let key = shown(self.key);
            match NOT_KEPT.due() {
                Some(left_out) => {
                    tracing::warn!(component = "tenure", key, left_out, %error, "remember: {UNKEPT}");
                }
                None => tracing::debug!(component = "tenure", key, %error, "remember: {UNKEPT}"),
            }
        }
    }

    fn complain(&self, error: &Error, what: &str) {
        tracing::warn!(component = "tenure", key = shown(self.key), %error, "remember: {what}");
    }
}

/// The outcome for the other callers.
fn shared<T>(found: &Result<Found<T>, Error>) -> Outcome {
    found.as_ref().map(|found| found.bytes.as_slice().into()).map_err(Clone::clone)
}

/// The name of the lock for the loader of `key`. A key may be longer than a lock name, and contain bytes that
/// it may not. Such a key is percent-encoded and truncated, and a hash is appended. Keys with the same lock
/// name load one after the other.
fn lock_name(key: &[u8]) -> String {
    const START: &str = "remember:";
    /// The maximum length of the encoded key: prefix and hash fit into the rest of a lock name.
    const KEPT: usize = KEY_MAX - 64;
    match std::str::from_utf8(key) {
        Ok(name) if name.len() <= KEPT && !name.chars().any(char::is_control) => {
            format!("{START}{name}")
        }
        _ => {
            let spelled = percent_encode(key, NON_ALPHANUMERIC).to_string();
            let kept = &spelled[..spelled.len().min(KEPT)];
            format!("{START}{kept}#{:016x}", fnv(key))
        }
    }
}

/// FNV-1a: the same result on every machine and in every version.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use tenure_core::Key;

    use super::*;

    /// Every key has a valid lock name, and different keys have different ones.
    #[test]
    fn locks_of_any_key() {
        assert_eq!(lock_name(b"user:1"), "remember:user:1");
        let long = |end: &str| ["a".repeat(600), end.into()].concat().into_bytes();
        let names = [b"\xff".to_vec(), b"\n".to_vec(), Vec::new(), long("b"), long("c")];
        let names: Vec<_> = names.iter().map(|key| lock_name(key)).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(Key::new(name).is_ok(), "{name}");
            assert!(!names[..index].contains(name), "{name}");
        }
    }
}

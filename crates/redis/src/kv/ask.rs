//! The verbs, each as a command and how to read its answer. The one place that both the verbs of a
//! client and those of a pipeline come from.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::Fence;

use super::codec::{decode, encode};
use super::command::{Answer, Command, Kv, Verb};
use super::error::Error;

/// The longest ttl: a century. The server counts in milliseconds since 1970 and would overflow.
pub const TTL_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A command, and what its answer means.
pub(crate) struct Ask<'a, T> {
    pub(super) command: Command<'a>,
    pub(super) read: Read<T>,
    /// What was wrong with the words already.
    pub(super) flaw: Option<Error>,
}

pub(crate) type Read<T> = fn(Answer) -> Result<T, Error>;

impl<'a, T> Ask<'a, T> {
    fn new(key: &'a [u8], verb: Verb<'a>, read: Read<T>) -> Self {
        Ask { command: Command::new(key, verb), read, flaw: None }
    }

    /// With a value that may not be one.
    fn with<V: Serialize + ?Sized>(
        key: &'a [u8],
        value: &V,
        verb: impl FnOnce(Vec<u8>) -> Verb<'a>,
        read: Read<T>,
    ) -> Self {
        let (value, flaw) = match written(value) {
            Ok(value) => (value, None),
            Err(flaw) => (Vec::new(), Some(flaw)),
        };
        Ask { flaw, ..Self::new(key, verb(value), read) }
    }

    /// Has it carried out.
    pub(super) async fn on<K: Kv + ?Sized>(self, kv: &K) -> Result<T, Error> {
        let Ask { command, read, flaw } = self;
        if let Some(flaw) = flaw {
            return Err(flaw.of(&command));
        }
        let answer = kv.ask(&command).await;
        answer.and_then(read).map_err(|error| error.of(&command))
    }
}

/// The bytes of a value.
pub(super) fn written<V: Serialize + ?Sized>(value: &V) -> Result<Vec<u8>, Error> {
    encode(value).map_err(|flaw| {
        let name = std::any::type_name::<V>();
        Error::invalid(format!("a `{name}` cannot be written: {flaw}"))
    })
}

/// A ttl that a server can keep.
pub(super) fn checked_ttl(ttl: Duration) -> Result<Duration, Error> {
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(Error::invalid(format!(
            "ttl ({ttl:?}) must be above zero and at most a century"
        )));
    }
    Ok(ttl)
}

/// Gives the ttl to a write.
pub(super) fn set_ttl(verb: &mut Verb<'_>, given: Duration) -> Result<(), Error> {
    if let Verb::Set { ttl, .. } = verb {
        *ttl = Some(checked_ttl(given)?);
    }
    Ok(())
}

/// Gives the fence to a write.
pub(super) fn set_fence(verb: &mut Verb<'_>, given: Fence) -> Result<(), Error> {
    if given == Fence::NONE {
        return Err(Error::invalid("a lock without fencing has no fence to write with"));
    }
    if let Verb::Set { fence, .. } = verb {
        *fence = Some(given);
    }
    Ok(())
}

pub(super) fn get<T: DeserializeOwned>(key: &[u8]) -> Ask<'_, Option<T>> {
    Ask::new(key, Verb::Get, maybe)
}

pub(super) fn set<'a, V: Serialize + ?Sized>(key: &'a [u8], value: &V) -> Ask<'a, ()> {
    Ask::with(key, value, |value| Verb::Set { value, ttl: None, fence: None }, done)
}

pub(super) fn delete(key: &[u8]) -> Ask<'_, bool> {
    Ask::new(key, Verb::Delete, yes)
}

pub(super) fn exists(key: &[u8]) -> Ask<'_, bool> {
    Ask::new(key, Verb::Exists, yes)
}

pub(super) fn expire(key: &[u8], ttl: Duration) -> Ask<'_, bool> {
    let flaw = checked_ttl(ttl).err();
    Ask { flaw, ..Ask::new(key, Verb::Expire { ttl }, yes) }
}

pub(super) fn add(key: &[u8], by: i64) -> Ask<'_, i64> {
    Ask::new(key, Verb::Add { by }, number)
}

pub(super) fn hset<'a, V: Serialize + ?Sized>(
    key: &'a [u8],
    field: &'a [u8],
    value: &V,
) -> Ask<'a, bool> {
    Ask::with(key, value, |value| Verb::HashSet { field: field.into(), value }, yes)
}

pub(super) fn hget<'a, T: DeserializeOwned>(key: &'a [u8], field: &'a [u8]) -> Ask<'a, Option<T>> {
    Ask::new(key, Verb::HashGet { field: field.into() }, maybe)
}

pub(super) fn hget_all<T: DeserializeOwned>(key: &[u8]) -> Ask<'_, HashMap<String, T>> {
    Ask::new(key, Verb::HashGetAll, pairs)
}

pub(super) fn lpush<'a, V: Serialize + ?Sized>(key: &'a [u8], value: &V) -> Ask<'a, i64> {
    Ask::with(key, value, |value| Verb::PushLeft { value }, number)
}

pub(super) fn rpush<'a, V: Serialize + ?Sized>(key: &'a [u8], value: &V) -> Ask<'a, i64> {
    Ask::with(key, value, |value| Verb::PushRight { value }, number)
}

pub(super) fn lpop<T: DeserializeOwned>(key: &[u8]) -> Ask<'_, Option<T>> {
    Ask::new(key, Verb::PopLeft, maybe)
}

pub(super) fn lrange<T: DeserializeOwned>(key: &[u8], start: i64, end: i64) -> Ask<'_, Vec<T>> {
    Ask::new(key, Verb::Range { start, end }, many)
}

pub(super) fn sadd<'a, V: Serialize + ?Sized>(key: &'a [u8], member: &V) -> Ask<'a, bool> {
    Ask::with(key, member, |member| Verb::SetAdd { member }, yes)
}

pub(super) fn smembers<T: DeserializeOwned>(key: &[u8]) -> Ask<'_, Vec<T>> {
    Ask::new(key, Verb::Members, many)
}

/// The value that `bytes` are.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    decode(bytes).map_err(|flaw| Error::undecodable::<T>(&flaw, bytes))
}

fn maybe<T: DeserializeOwned>(answer: Answer) -> Result<Option<T>, Error> {
    match answer {
        Answer::Nothing => Ok(None),
        Answer::Bytes(bytes) => read(&bytes).map(Some),
        _ => Err(Error::unexpected()),
    }
}

fn many<T: DeserializeOwned>(answer: Answer) -> Result<Vec<T>, Error> {
    match answer {
        Answer::Many(all) => all.iter().map(|bytes| read(bytes)).collect(),
        _ => Err(Error::unexpected()),
    }
}

fn pairs<T: DeserializeOwned>(answer: Answer) -> Result<HashMap<String, T>, Error> {
    let Answer::Many(all) = answer else { return Err(Error::unexpected()) };
    let pair = |pair: &[Vec<u8>]| match pair {
        [field, value] => Ok((read(field)?, read(value)?)),
        _ => Err(Error::unexpected()),
    };
    all.chunks(2).map(pair).collect()
}

fn done(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(Error::unexpected()),
    }
}

fn number(answer: Answer) -> Result<i64, Error> {
    match answer {
        Answer::Number(number) => Ok(number),
        _ => Err(Error::unexpected()),
    }
}

fn yes(answer: Answer) -> Result<bool, Error> {
    number(answer).map(|number| number > 0)
}

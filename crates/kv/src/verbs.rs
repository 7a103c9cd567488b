//! The verbs: each is a command and a reader for its answer. The verbs of a client and those of a pipeline
//! both come from here.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::Fence;

use super::codec::{decode, decode_answer, encode, text};
use super::command::{Answer, Command, Kv, Verb, Word};
use super::error::Error;

/// The longest ttl: a century. The server counts in milliseconds since 1970 and would overflow.
pub const TTL_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// A command and the reader for its answer.
pub(crate) struct Ask<'a, T> {
    pub(super) command: Command<'a>,
    pub(super) read: Read<T>,
    /// The error if an argument is invalid.
    pub(super) flaw: Option<Error>,
}

pub(crate) type Read<T> = fn(Answer) -> Result<T, Error>;

impl<'a, T> Ask<'a, T> {
    fn new(key: &'a [u8], verb: Verb, read: Read<T>) -> Self {
        Ask { command: Command::new(key, verb), read, flaw: None }
    }

    /// With a value; if it cannot be encoded, the error is kept.
    fn with<V: Serialize + ?Sized>(
        key: &'a [u8],
        value: &V,
        verb: impl FnOnce(Vec<u8>) -> Verb,
        read: Read<T>,
    ) -> Self {
        let (value, flaw) = match written(value) {
            Ok(value) => (value, None),
            Err(flaw) => (Vec::new(), Some(flaw)),
        };
        Ask { flaw, ..Self::new(key, verb(value), read) }
    }

    /// Checks numbers that the server reads as scores.
    fn numbers<const N: usize>(mut self, all: [f64; N]) -> Self {
        if self.flaw.is_none() && all.iter().any(|number| number.is_nan()) {
            self.flaw = Some(Error::invalid("a score must be a number, not NaN"));
        }
        self
    }

    /// Has `kv` carry out the command.
    pub(super) async fn on<K: Kv + ?Sized>(self, kv: &K) -> Result<T, Error> {
        let Ask { command, read, flaw } = self;
        if let Some(flaw) = flaw {
            return Err(flaw.of(&command));
        }
        let answer = kv.ask(&command).await;
        answer.and_then(read).map_err(|error| error.of(&command))
    }
}

/// The encoded bytes of a value.
pub(super) fn written<V: Serialize + ?Sized>(value: &V) -> Result<Vec<u8>, Error> {
    encode(value).map_err(|flaw| {
        let name = std::any::type_name::<V>();
        Error::invalid(format!("a `{name}` cannot be written: {flaw}"))
    })
}

/// Checks that a server can keep this ttl.
pub(super) fn checked_ttl(ttl: Duration) -> Result<Duration, Error> {
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(Error::invalid(format!(
            "ttl ({ttl:?}) must be above zero and at most a century"
        )));
    }
    Ok(ttl)
}

/// Sets the ttl of a write.
pub(super) fn set_ttl(verb: &mut Verb, given: Duration) -> Result<(), Error> {
    if let Verb::Set { ttl, .. } | Verb::SetIfAbsent { ttl, .. } = verb {
        *ttl = Some(checked_ttl(given)?);
    }
    Ok(())
}

/// Sets the fence of a write.
pub(super) fn set_fence(verb: &mut Verb, given: Fence) -> Result<(), Error> {
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

pub(super) fn set_if_absent<'a, V: Serialize + ?Sized>(key: &'a [u8], value: &V) -> Ask<'a, bool> {
    Ask::with(key, value, |value| Verb::SetIfAbsent { value, ttl: None }, done_or_not)
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
    Ask::with(key, value, |value| Verb::HashSet { field: field.to_vec(), value }, yes)
}

pub(super) fn hget<'a, T: DeserializeOwned>(key: &'a [u8], field: &'a [u8]) -> Ask<'a, Option<T>> {
    Ask::new(key, Verb::HashGet { field: field.to_vec() }, maybe)
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

pub(super) fn zadd<'a, V: Serialize + ?Sized>(
    key: &'a [u8],
    member: &V,
    score: f64,
) -> Ask<'a, bool> {
    Ask::with(key, member, |member| Verb::SortedAdd { member, score }, yes).numbers([score])
}

pub(super) fn zincr_by<'a, V: Serialize + ?Sized>(
    key: &'a [u8],
    member: &V,
    by: f64,
) -> Ask<'a, f64> {
    Ask::with(key, member, |member| Verb::SortedIncrease { member, by }, score).numbers([by])
}

pub(super) fn zscore<'a, V: Serialize + ?Sized>(key: &'a [u8], member: &V) -> Ask<'a, Option<f64>> {
    Ask::with(key, member, |member| Verb::SortedScore { member }, maybe)
}

pub(super) fn zrem<'a, V: Serialize + ?Sized>(key: &'a [u8], member: &V) -> Ask<'a, bool> {
    Ask::with(key, member, |member| Verb::SortedRemove { member }, yes)
}

pub(super) fn zrange<T: DeserializeOwned>(
    key: &[u8],
    start: i64,
    end: i64,
) -> Ask<'_, Vec<(T, f64)>> {
    Ask::new(key, Verb::SortedRange { start, end }, pairs)
}

pub(super) fn zrange_by_score<T: DeserializeOwned>(
    key: &[u8],
    min: f64,
    max: f64,
) -> Ask<'_, Vec<(T, f64)>> {
    Ask::new(key, Verb::SortedBetween { min, max }, pairs).numbers([min, max])
}

pub(super) fn any<T: DeserializeOwned>(name: &str) -> Ask<'static, T> {
    let verb = Verb::Any { name: name.into(), words: Vec::new() };
    Ask::new(b"", verb, |answer| {
        decode_answer(&answer).map_err(|flaw| Error::undecodable::<T>(&flaw, &text(&answer)))
    })
}

/// Adds a key to a [`Verb::Any`]. Messages name the first key.
pub(super) fn add_key(command: &mut Command<'_>, key: &[u8]) {
    if command.verb.is_keyless() {
        command.key = Cow::Owned(key.to_vec());
    }
    add_word(command, Word::Key(key.to_vec()));
}

/// Adds an argument to a [`Verb::Any`].
pub(super) fn add_arg<V: Serialize + ?Sized>(
    command: &mut Command<'_>,
    value: &V,
) -> Result<(), Error> {
    add_word(command, Word::Arg(written(value)?));
    Ok(())
}

fn add_word(command: &mut Command<'_>, word: Word) {
    if let Verb::Any { words, .. } = &mut command.verb {
        words.push(word);
    }
}

/// Decodes a value from `bytes`.
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

/// Reads two values at a time: field and value, or member and score.
fn pairs<A, B, C>(answer: Answer) -> Result<C, Error>
where
    A: DeserializeOwned,
    B: DeserializeOwned,
    C: FromIterator<(A, B)>,
{
    let Answer::Many(all) = answer else { return Err(Error::unexpected()) };
    let pair = |pair: &[Vec<u8>]| match pair {
        [field, value] => Ok((read(field)?, read(value)?)),
        _ => Err(Error::unexpected()),
    };
    all.chunks(2).map(pair).collect()
}

fn score(answer: Answer) -> Result<f64, Error> {
    maybe(answer)?.ok_or_else(Error::unexpected)
}

fn done_or_not(answer: Answer) -> Result<bool, Error> {
    match answer {
        Answer::Nothing => Ok(false),
        other => done(other).map(|()| true),
    }
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

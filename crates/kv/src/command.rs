//! The interface that business code depends on: commands as values, and the trait that carries them out.
//!
//! In: [`Command`]s from the verbs. Out: an [`Answer`] each. No connection, no protocol, no driver: an
//! implementation of [`Kv`] decides how it is done.

use std::borrow::Cow;
use std::time::Duration;

use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::error::{Error, shown};
use super::flight::Flights;
use super::metrics::PIPELINE;

/// A store of values by key: Redis, or a substitute for it.
///
/// Business code takes a `&dyn Kv` (or an `Arc<dyn Kv>`) and calls the verbs of [`KvExt`](super::KvExt),
/// which every `Kv` has. `tenure_redis::Client` is the implementation for a server; a test can write its
/// own in a few lines.
///
/// # Contract
///
/// Each command gets its own answer, never that of another, even after calls that were dropped half-way. If
/// no answer arrives, the error is [`Unknown`](super::ErrorKind::Unknown), not a guess.
pub trait Kv: Send + Sync {
    /// Carries out one command.
    fn ask<'a>(&'a self, command: &'a Command<'a>) -> BoxFuture<'a, Result<Answer, Error>>;

    /// Carries out many commands, in order and in one batch. Each has its own answer; if not even the first
    /// could be sent, there is one error for all.
    fn ask_all<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Answers, Error>>;

    /// The loads of `remember` that are under way: [`Flights::new`], stored beside the values.
    fn flights(&self) -> &Flights;
}

/// An answer or an error for each command of a batch.
pub type Answers = Vec<Result<Answer, Error>>;

/// One command on one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Command<'a> {
    /// The key, without the prefix.
    pub key: Cow<'a, [u8]>,
    /// What to do.
    pub verb: Verb,
}

/// What can be done with a key. Each variant names its answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verb {
    /// [`Answer::Bytes`] or [`Answer::Nothing`].
    Get,
    /// [`Answer::Done`]. Without a ttl the value does not expire. With a fence it is only written if no newer
    /// fence has written it, else the error is [`Error::stale_fence`].
    Set {
        /// The value to store.
        value: Vec<u8>,
        /// How long it is kept.
        ttl: Option<Duration>,
        /// The fence of the writer's lock.
        fence: Option<Fence>,
    },
    /// [`Answer::Done`], or [`Answer::Nothing`] if the key exists: then nothing is written.
    SetIfAbsent {
        /// The value to write.
        value: Vec<u8>,
        /// How long it is kept; without a ttl it does not expire.
        ttl: Option<Duration>,
    },
    /// [`Answer::Number`]: how many keys were deleted, 0 or 1.
    Delete,
    /// [`Answer::Number`]: 0 or 1.
    Exists,
    /// [`Answer::Number`]: 1, or 0 if there is no such key.
    Expire {
        /// How long the key lives from now on.
        ttl: Duration,
    },
    /// [`Answer::Number`]: the new value. An absent key counts as 0.
    Add {
        /// The amount to add.
        by: i64,
    },
    /// [`Answer::Number`]: 1 if the field is new, else 0.
    HashSet {
        /// The field.
        field: Vec<u8>,
        /// The value to store.
        value: Vec<u8>,
    },
    /// [`Answer::Bytes`] or [`Answer::Nothing`].
    HashGet {
        /// The field.
        field: Vec<u8>,
    },
    /// [`Answer::Many`]: field, value, field, value, …
    HashGetAll,
    /// [`Answer::Number`]: the new length of the list.
    PushLeft {
        /// The value to insert at the start.
        value: Vec<u8>,
    },
    /// [`Answer::Number`]: the new length of the list.
    PushRight {
        /// The value to append.
        value: Vec<u8>,
    },
    /// [`Answer::Bytes`], the first value, or [`Answer::Nothing`].
    PopLeft,
    /// [`Answer::Many`].
    Range {
        /// The first position, from 0; negative numbers count from the end.
        start: i64,
        /// The last position, inclusive.
        end: i64,
    },
    /// [`Answer::Number`]: 1 if the member is new, else 0.
    SetAdd {
        /// The member to add.
        member: Vec<u8>,
    },
    /// [`Answer::Many`], in no order.
    Members,
    /// [`Answer::Number`]: 1 if the member is new, else 0.
    SortedAdd {
        /// The member of the sorted set.
        member: Vec<u8>,
        /// Its new score.
        score: f64,
    },
    /// [`Answer::Bytes`]: the new score. An absent member counts as 0.
    SortedIncrease {
        /// The member of the sorted set.
        member: Vec<u8>,
        /// The amount to add to its score.
        by: f64,
    },
    /// [`Answer::Bytes`] or [`Answer::Nothing`].
    SortedScore {
        /// The member of the sorted set.
        member: Vec<u8>,
    },
    /// [`Answer::Number`]: 1 if the member was present, else 0.
    SortedRemove {
        /// The member of the sorted set.
        member: Vec<u8>,
    },
    /// [`Answer::Many`]: member, score, member, score, …, the lowest score first.
    SortedRange {
        /// The first position, from 0; negative numbers count from the end.
        start: i64,
        /// The last position, inclusive.
        end: i64,
    },
    /// Like [`Verb::SortedRange`], but selects by score.
    SortedBetween {
        /// The lowest score.
        min: f64,
        /// The highest score, inclusive.
        max: f64,
    },
    /// One page of the keys that start with the command's key. [`Answer::List`] of two: [`Answer::Bytes`]
    /// with the cursor of the next page, empty after the last, and [`Answer::Many`] with the keys.
    Scan {
        /// Empty for the first page, then the cursor from the previous page.
        cursor: Vec<u8>,
    },
    /// Any other command. The answer has the form of the server's reply. The command's key is the first of
    /// its keys, or empty.
    Any {
        /// Its name: `GETRANGE`, or `CONFIG GET`.
        name: String,
        /// The arguments after the name.
        words: Vec<Word>,
    },
}

/// An argument of a [`Verb::Any`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A key, without the prefix.
    Key(Vec<u8>),
    /// Any other argument, sent unchanged.
    Arg(Vec<u8>),
}

/// Commands that are carried out in one batch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Batch {
    /// The commands, in order.
    pub commands: Vec<Command<'static>>,
    /// Whether no other client may see or do anything between them.
    pub atomic: bool,
    /// The name in logs and metrics: `pipeline`, `get_many` or `set_many`.
    pub name: &'static str,
}

impl Default for Batch {
    fn default() -> Self {
        Batch { commands: Vec::new(), atomic: false, name: PIPELINE }
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// There is no value.
    Nothing,
    /// The command was carried out.
    Done,
    /// A number.
    Number(i64),
    /// A value.
    Bytes(Vec<u8>),
    /// Several values.
    Many(Vec<Vec<u8>>),
    /// Several answers.
    List(Vec<Answer>),
}

impl<'a> Command<'a> {
    /// A command about `key`.
    pub fn new(key: &'a [u8], verb: Verb) -> Self {
        Command { key: key.into(), verb }
    }

    /// The same command without borrowed data.
    pub fn into_owned(self) -> Command<'static> {
        Command { key: self.key.into_owned().into(), verb: self.verb }
    }
}

impl Verb {
    /// The name in messages, logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Set { .. } => "set",
            Verb::Delete => "delete",
            Verb::Exists => "exists",
            Verb::Expire { .. } => "expire",
            Verb::Add { by } if *by < 0 => "decr",
            Verb::Add { .. } => "incr",
            Verb::HashSet { .. } => "hset",
            Verb::HashGet { .. } => "hget",
            Verb::HashGetAll => "hget_all",
            Verb::PushLeft { .. } => "lpush",
            Verb::PushRight { .. } => "rpush",
            Verb::PopLeft => "lpop",
            Verb::Range { .. } => "lrange",
            Verb::SetAdd { .. } => "sadd",
            Verb::Members => "smembers",
            Verb::SetIfAbsent { .. } => "set_if_absent",
            Verb::SortedAdd { .. } => "zadd",
            Verb::SortedIncrease { .. } => "zincr_by",
            Verb::SortedScore { .. } => "zscore",
            Verb::SortedRemove { .. } => "zrem",
            Verb::SortedRange { .. } => "zrange",
            Verb::SortedBetween { .. } => "zrange_by_score",
            Verb::Scan { .. } => "scan",
            Verb::Any { .. } => "command",
        }
    }

    /// The name for messages, where a [`Verb::Any`] has its own name.
    pub(crate) fn shown(&self) -> Cow<'static, str> {
        match self {
            Verb::Any { name, .. } => shown(name.as_bytes()).into(),
            _ => self.name().into(),
        }
    }

    /// Whether the command has no key.
    pub(crate) fn is_keyless(&self) -> bool {
        let is_key = |word: &Word| matches!(word, Word::Key(_));
        matches!(self, Verb::Any { words, .. } if !words.iter().any(is_key))
    }
}

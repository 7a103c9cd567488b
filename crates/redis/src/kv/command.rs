//! The interface that business code depends on: commands as values, and who answers them.
//!
//! In: [`Command`]s from the verbs. Out: an [`Answer`] each. No connection, no protocol, no driver:
//! whoever implements [`Kv`] decides how it is done.

use std::borrow::Cow;
use std::time::Duration;

use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::error::Error;
use super::flight::Flights;

/// A store of values by key: Redis, or what stands in for it.
///
/// Business code takes a `&dyn Kv` (or an `Arc<dyn Kv>`) and calls the verbs of
/// [`KvExt`](super::KvExt), which are there for every `Kv`. [`Client`](crate::Client) is the one on a
/// server; a test can bring its own in a few lines.
///
/// # Contract
///
/// Each command gets its own answer and no other's, also after calls that were dropped half-way. An
/// answer that did not come is [`Unknown`](super::ErrorKind::Unknown), not a guess.
pub trait Kv: Send + Sync {
    /// Carries out one command.
    fn ask<'a>(&'a self, command: &'a Command<'a>) -> BoxFuture<'a, Result<Answer, Error>>;

    /// Carries out many, in their order and in one go. Each has its own answer; where not even the
    /// first was asked, there is one error for all.
    fn ask_all<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Answers, Error>>;

    /// The loads of `remember` that are under way: [`Flights::new`], kept beside the values.
    fn flights(&self) -> &Flights;
}

/// An answer or an error for each command of a batch.
pub type Answers = Vec<Result<Answer, Error>>;

/// What to do with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// The name, without the prefix.
    pub key: Cow<'a, [u8]>,
    /// What to do.
    pub verb: Verb<'a>,
}

/// What can be done with a key. The answer that belongs to each is named.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb<'a> {
    /// [`Answer::Bytes`] or [`Answer::Nothing`].
    Get,
    /// [`Answer::Done`]. Without a ttl the value stays. With a fence it is only written if no newer
    /// fence has written it, else the error is [`Error::stale_fence`].
    Set {
        /// What to keep.
        value: Vec<u8>,
        /// For how long.
        ttl: Option<Duration>,
        /// In whose name.
        fence: Option<Fence>,
    },
    /// [`Answer::Number`]: how many keys are gone, 0 or 1.
    Delete,
    /// [`Answer::Number`]: 0 or 1.
    Exists,
    /// [`Answer::Number`]: 1, or 0 if there is no such key.
    Expire {
        /// How long it lives from now on.
        ttl: Duration,
    },
    /// [`Answer::Number`]: what it is now. A key that is not there counts as 0.
    Add {
        /// How much.
        by: i64,
    },
    /// [`Answer::Number`]: 1 if the field is new, else 0.
    HashSet {
        /// Which field.
        field: Cow<'a, [u8]>,
        /// What to keep.
        value: Vec<u8>,
    },
    /// [`Answer::Bytes`] or [`Answer::Nothing`].
    HashGet {
        /// Which field.
        field: Cow<'a, [u8]>,
    },
    /// [`Answer::Many`]: field, value, field, value, …
    HashGetAll,
    /// [`Answer::Number`]: how long the list is now.
    PushLeft {
        /// What to put first.
        value: Vec<u8>,
    },
    /// [`Answer::Number`]: how long the list is now.
    PushRight {
        /// What to put last.
        value: Vec<u8>,
    },
    /// [`Answer::Bytes`], the first, or [`Answer::Nothing`].
    PopLeft,
    /// [`Answer::Many`].
    Range {
        /// The first, from 0; negative numbers count from the end.
        start: i64,
        /// The last, inclusive.
        end: i64,
    },
    /// [`Answer::Number`]: 1 if it is new, else 0.
    SetAdd {
        /// What to put in.
        member: Vec<u8>,
    },
    /// [`Answer::Many`], in no order.
    Members,
}

/// Commands to be carried out in one go.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Batch {
    /// In their order.
    pub commands: Vec<Command<'static>>,
    /// Whether nobody may see or do anything between them.
    pub atomic: bool,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is nothing.
    Nothing,
    /// It was done.
    Done,
    /// A number.
    Number(i64),
    /// A value.
    Bytes(Vec<u8>),
    /// Several values.
    Many(Vec<Vec<u8>>),
}

impl<'a> Command<'a> {
    pub(crate) fn new(key: &'a [u8], verb: Verb<'a>) -> Self {
        Command { key: key.into(), verb }
    }

    /// The same with nothing borrowed.
    pub fn into_owned(self) -> Command<'static> {
        Command { key: self.key.into_owned().into(), verb: self.verb.into_owned() }
    }
}

impl Verb<'_> {
    /// What people call it, in messages, logs and metrics.
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
        }
    }

    fn into_owned(self) -> Verb<'static> {
        let own = |field: Cow<'_, [u8]>| Cow::Owned(field.into_owned());
        match self {
            Verb::HashSet { field, value } => Verb::HashSet { field: own(field), value },
            Verb::HashGet { field } => Verb::HashGet { field: own(field) },
            Verb::Get => Verb::Get,
            Verb::Set { value, ttl, fence } => Verb::Set { value, ttl, fence },
            Verb::Delete => Verb::Delete,
            Verb::Exists => Verb::Exists,
            Verb::Expire { ttl } => Verb::Expire { ttl },
            Verb::Add { by } => Verb::Add { by },
            Verb::HashGetAll => Verb::HashGetAll,
            Verb::PushLeft { value } => Verb::PushLeft { value },
            Verb::PushRight { value } => Verb::PushRight { value },
            Verb::PopLeft => Verb::PopLeft,
            Verb::Range { start, end } => Verb::Range { start, end },
            Verb::SetAdd { member } => Verb::SetAdd { member },
            Verb::Members => Verb::Members,
        }
    }
}

//! Sends many commands in one round trip, each with its typed result.
//!
//! In: a closure that queues commands and returns the results it needs, as [`Pending`]. Out: these results.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::command::{Answer, Batch, Command, Kv};
use super::error::Error;
use super::metrics::PIPELINE;
use super::verbs::{self, Ask, Read};

/// The commands of a pipeline: it has the same verbs, and each returns a [`Pending`] for its result.
#[derive(Debug, Default)]
pub struct Queue {
    batch: Batch,
    /// The position of the first invalid command, and its error.
    flaw: Option<(usize, Error)>,
}

/// A placeholder for the result of a queued command. Return it from the closure to get the result; drop it to
/// ignore the result.
#[derive(Debug)]
pub struct Pending<T> {
    index: usize,
    read: Read<T>,
}

/// A queued write; its methods set options.
#[derive(Debug)]
pub struct QueuedSet<'q, T = ()> {
    queue: &'q mut Queue,
    pending: Pending<T>,
}

/// A queued command by its name; arguments are added in order.
#[derive(Debug)]
pub struct QueuedCommand<'q, T> {
    queue: &'q mut Queue,
    pending: Pending<T>,
}

impl Queue {
    fn push<T>(&mut self, ask: Ask<'_, T>) -> Pending<T> {
        let index = self.batch.commands.len();
        self.note(index, ask.flaw);
        self.batch.commands.push(ask.command.into_owned());
        Pending { index, read: ask.read }
    }

    fn note(&mut self, index: usize, flaw: Option<Error>) {
        if let (None, Some(flaw)) = (&self.flaw, flaw) {
            self.flaw = Some((index, flaw));
        }
    }

    /// As [`KvExt::get`](super::KvExt::get).
    pub fn get<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Pending<Option<T>> {
        self.push(verbs::get(key.as_ref()))
    }

    /// As [`KvExt::set`](super::KvExt::set).
    pub fn set<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> QueuedSet<'_> {
        let pending = self.push(verbs::set(key.as_ref(), value));
        QueuedSet { queue: self, pending }
    }

    /// As [`KvExt::set_if_absent`](super::KvExt::set_if_absent); [`pending`](QueuedSet::pending) returns its
    /// result.
    pub fn set_if_absent<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> QueuedSet<'_, bool> {
        let pending = self.push(verbs::set_if_absent(key.as_ref(), value));
        QueuedSet { queue: self, pending }
    }

    /// As [`KvExt::delete`](super::KvExt::delete).
    pub fn delete(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Pending<bool> {
        self.push(verbs::delete(key.as_ref()))
    }

    /// As [`KvExt::exists`](super::KvExt::exists).
    pub fn exists(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Pending<bool> {
        self.push(verbs::exists(key.as_ref()))
    }

    /// As [`KvExt::expire`](super::KvExt::expire).
    pub fn expire(&mut self, key: &(impl AsRef<[u8]> + ?Sized), ttl: Duration) -> Pending<bool> {
        self.push(verbs::expire(key.as_ref(), ttl))
    }

    /// As [`KvExt::incr`](super::KvExt::incr).
    pub fn incr(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Pending<i64> {
        self.push(verbs::add(key.as_ref(), 1))
    }

    /// As [`KvExt::incr_by`](super::KvExt::incr_by).
    pub fn incr_by(&mut self, key: &(impl AsRef<[u8]> + ?Sized), by: i64) -> Pending<i64> {
        self.push(verbs::add(key.as_ref(), by))
    }

    /// As [`KvExt::decr`](super::KvExt::decr).
    pub fn decr(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Pending<i64> {
        self.push(verbs::add(key.as_ref(), -1))
    }

    /// As [`KvExt::hset`](super::KvExt::hset).
    pub fn hset<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        field: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Pending<bool> {
        self.push(verbs::hset(key.as_ref(), field.as_ref(), value))
    }

    /// As [`KvExt::hget`](super::KvExt::hget).
    pub fn hget<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        field: &(impl AsRef<[u8]> + ?Sized),
    ) -> Pending<Option<T>> {
        self.push(verbs::hget(key.as_ref(), field.as_ref()))
    }

    /// As [`KvExt::hget_all`](super::KvExt::hget_all).
    pub fn hget_all<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Pending<HashMap<String, T>> {
        self.push(verbs::hget_all(key.as_ref()))
    }

    /// As [`KvExt::lpush`](super::KvExt::lpush).
    pub fn lpush<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Pending<i64> {
        self.push(verbs::lpush(key.as_ref(), value))
    }

    /// As [`KvExt::rpush`](super::KvExt::rpush).
    pub fn rpush<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Pending<i64> {
        self.push(verbs::rpush(key.as_ref(), value))
    }

    /// As [`KvExt::lpop`](super::KvExt::lpop).
    pub fn lpop<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Pending<Option<T>> {
        self.push(verbs::lpop(key.as_ref()))
    }

    /// As [`KvExt::lrange`](super::KvExt::lrange).
    pub fn lrange<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> Pending<Vec<T>> {
        self.push(verbs::lrange(key.as_ref(), start, end))
    }

    /// As [`KvExt::sadd`](super::KvExt::sadd).
    pub fn sadd<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> Pending<bool> {
        self.push(verbs::sadd(key.as_ref(), member))
    }

    /// As [`KvExt::smembers`](super::KvExt::smembers).
    pub fn smembers<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Pending<Vec<T>> {
        self.push(verbs::smembers(key.as_ref()))
    }

    /// As [`KvExt::zadd`](super::KvExt::zadd).
    pub fn zadd<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
        score: f64,
    ) -> Pending<bool> {
        self.push(verbs::zadd(key.as_ref(), member, score))
    }

    /// As [`KvExt::zincr_by`](super::KvExt::zincr_by).
    pub fn zincr_by<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
        by: f64,
    ) -> Pending<f64> {
        self.push(verbs::zincr_by(key.as_ref(), member, by))
    }

    /// As [`KvExt::zscore`](super::KvExt::zscore).
    pub fn zscore<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> Pending<Option<f64>> {
        self.push(verbs::zscore(key.as_ref(), member))
    }

    /// As [`KvExt::zrem`](super::KvExt::zrem).
    pub fn zrem<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> Pending<bool> {
        self.push(verbs::zrem(key.as_ref(), member))
    }

    /// As [`KvExt::zrange`](super::KvExt::zrange).
    pub fn zrange<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> Pending<Vec<(T, f64)>> {
        self.push(verbs::zrange(key.as_ref(), start, end))
    }

    /// As [`KvExt::zrange_by_score`](super::KvExt::zrange_by_score).
    pub fn zrange_by_score<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        min: f64,
        max: f64,
    ) -> Pending<Vec<(T, f64)>> {
        self.push(verbs::zrange_by_score(key.as_ref(), min, max))
    }

    /// As [`KvExt::command`](super::KvExt::command); [`pending`](QueuedCommand::pending) returns its result.
    pub fn command<T: DeserializeOwned>(&mut self, name: &str) -> QueuedCommand<'_, T> {
        let pending = self.push(verbs::any(name));
        QueuedCommand { queue: self, pending }
    }
}

impl<T> QueuedSet<'_, T> {
    /// How long the value is kept; without this it does not expire.
    pub fn ttl(self, ttl: Duration) -> Self {
        let index = self.pending.index;
        let flaw = verbs::set_ttl(&mut self.queue.batch.commands[index].verb, ttl);
        self.queue.note(index, flaw.err());
        self
    }

    /// The placeholder for its result.
    pub fn pending(self) -> Pending<T> {
        self.pending
    }
}

impl QueuedSet<'_> {
    /// As [`Set::fenced`](super::Set::fenced).
    pub fn fenced(self, fence: Fence) -> Self {
        let index = self.pending.index;
        let flaw = verbs::set_fence(&mut self.queue.batch.commands[index].verb, fence);
        self.queue.note(index, flaw.err());
        self
    }
}

impl<T> QueuedCommand<'_, T> {
    /// As [`AnyCommand::key`](super::AnyCommand::key).
    pub fn key(self, key: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        verbs::add_key(&mut self.queue.batch.commands[self.pending.index], key.as_ref());
        self
    }

    /// As [`AnyCommand::arg`](super::AnyCommand::arg).
    pub fn arg<V: Serialize + ?Sized>(self, value: &V) -> Self {
        let index = self.pending.index;
        let flaw = verbs::add_arg(&mut self.queue.batch.commands[index], value);
        self.queue.note(index, flaw.err());
        self
    }

    /// The placeholder for its result.
    pub fn pending(self) -> Pending<T> {
        self.pending
    }
}

/// Commands in one round trip, made by [`KvExt::pipeline`](super::KvExt::pipeline). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct Pipeline<'a, K: ?Sized, S> {
    kv: &'a K,
    queue: Queue,
    pending: S,
}

impl<'a, K: ?Sized, S> Pipeline<'a, K, S> {
    pub(super) fn new(kv: &'a K, fill: impl FnOnce(&mut Queue) -> S) -> Self {
        let mut queue = Queue::default();
        let pending = fill(&mut queue);
        Pipeline { kv, queue, pending }
    }

    /// Runs the commands as a transaction (`MULTI`, `EXEC`): no other client sees or does anything between
    /// them. If one of them cannot even be queued, none is carried out; one that fails during execution does
    /// not undo the others.
    pub fn atomic(mut self) -> Self {
        self.queue.batch.atomic = true;
        self
    }

    /// An atomic pipeline that is a verb of its own, under this name.
    pub(super) fn named(mut self, name: &'static str) -> Self {
        self.queue.batch.name = name;
        self.atomic()
    }

    /// Sets the ttl of every write.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        for index in 0..self.queue.batch.commands.len() {
            let flaw = verbs::set_ttl(&mut self.queue.batch.commands[index].verb, ttl);
            self.queue.note(index, flaw.err());
        }
    }

    async fn run(self) -> Result<S::Results, Error>
    where
        K: Kv,
        S: PendingResults,
    {
        let Pipeline { kv, queue: Queue { batch, flaw }, pending } = self;
        if let Some((index, flaw)) = flaw {
            return Err(flaw.at(index + 1, &batch.commands[index]));
        }
        let mut results = Results::of(kv, batch).await?;
        pending.take(&mut results)
    }
}

impl<'a, K: Kv + ?Sized, S: PendingResults + Send + 'a> IntoFuture for Pipeline<'a, K, S> {
    type Output = Result<S::Results, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let name = self.queue.batch.name;
        Box::pin(async move {
            let results = self.run().await;
            results.map_err(|error| if name == PIPELINE { error } else { error.in_batch(name) })
        })
    }
}

/// The answers to the commands of a pipeline; each can be taken once.
pub struct Results {
    commands: Vec<Command<'static>>,
    answers: Vec<Option<Answer>>,
}

impl Results {
    async fn of<K: Kv + ?Sized>(kv: &K, batch: Batch) -> Result<Self, Error> {
        let answers =
            if batch.commands.is_empty() { Vec::new() } else { kv.ask_all(&batch).await? };
        let commands = batch.commands;
        if answers.len() != commands.len() {
            return Err(Error::unexpected());
        }
        let good = answers.into_iter().enumerate().map(|(index, answer)| {
            answer.map(Some).map_err(|error| error.at(index + 1, &commands[index]))
        });
        let answers = good.collect::<Result<_, _>>()?;
        Ok(Results { commands, answers })
    }

    fn take<T>(&mut self, pending: &Pending<T>) -> Result<T, Error> {
        // A `Pending` of another pipeline may be out of range, or its answer may have been taken.
        let answer = self.answers.get_mut(pending.index).and_then(Option::take);
        let answer = answer.ok_or_else(|| Error::invalid("the result is of another pipeline"))?;
        (pending.read)(answer)
            .map_err(|error| error.at(pending.index + 1, &self.commands[pending.index]))
    }
}

/// The requested results of a pipeline: a [`Pending`], or a tuple or `Vec` of them, or `()`.
pub trait PendingResults {
    /// The type of the results.
    type Results;

    /// Takes the results out.
    ///
    /// # Errors
    ///
    /// For a value that is not of the requested type; the error names the command.
    fn take(self, results: &mut Results) -> Result<Self::Results, Error>;
}

impl<T> PendingResults for Pending<T> {
    type Results = T;

    fn take(self, results: &mut Results) -> Result<T, Error> {
        results.take(&self)
    }
}

impl<S: PendingResults> PendingResults for Vec<S> {
    type Results = Vec<S::Results>;

    fn take(self, results: &mut Results) -> Result<Self::Results, Error> {
        self.into_iter().map(|pending| pending.take(results)).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(#[allow(non_snake_case, unused_variables, clippy::unused_unit, reason = "one pattern for all lengths")]
        impl<$($name: PendingResults),*> PendingResults for ($($name,)*) {
            type Results = ($($name::Results,)*);

            fn take(self, results: &mut Results) -> Result<Self::Results, Error> {
                let ($($name,)*) = self;
                Ok(($($name.take(results)?,)*))
            }
        })*
    };
}

tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

//! Many commands in one round trip, each with its typed result.
//!
//! In: a closure that queues commands and says which results it wants. Out: those results.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::ask::{self, Ask, Read};
use super::command::{Answer, Batch, Command, Kv};
use super::error::Error;

/// What a pipeline is filled with: the verbs again, each giving a [`Slot`] for its result.
#[derive(Debug, Default)]
pub struct Queue {
    batch: Batch,
    /// The first that cannot be asked, from its place on.
    flaw: Option<(usize, Error)>,
}

/// Where the result of a queued command will be. Return it from the closure to have it; leave it to
/// do without.
#[derive(Debug)]
pub struct Slot<T> {
    index: usize,
    read: Read<T>,
}

/// A queued write, to say more of.
#[derive(Debug)]
pub struct QueuedSet<'q> {
    queue: &'q mut Queue,
    index: usize,
}

impl Queue {
    fn push<T>(&mut self, ask: Ask<'_, T>) -> Slot<T> {
        let index = self.batch.commands.len();
        self.note(index, ask.flaw);
        self.batch.commands.push(ask.command.into_owned());
        Slot { index, read: ask.read }
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
    ) -> Slot<Option<T>> {
        self.push(ask::get(key.as_ref()))
    }

    /// As [`KvExt::set`](super::KvExt::set).
    pub fn set<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> QueuedSet<'_> {
        let Slot { index, .. } = self.push(ask::set(key.as_ref(), value));
        QueuedSet { queue: self, index }
    }

    /// As [`KvExt::delete`](super::KvExt::delete).
    pub fn delete(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Slot<bool> {
        self.push(ask::delete(key.as_ref()))
    }

    /// As [`KvExt::exists`](super::KvExt::exists).
    pub fn exists(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Slot<bool> {
        self.push(ask::exists(key.as_ref()))
    }

    /// As [`KvExt::expire`](super::KvExt::expire).
    pub fn expire(&mut self, key: &(impl AsRef<[u8]> + ?Sized), ttl: Duration) -> Slot<bool> {
        self.push(ask::expire(key.as_ref(), ttl))
    }

    /// As [`KvExt::incr`](super::KvExt::incr).
    pub fn incr(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Slot<i64> {
        self.push(ask::add(key.as_ref(), 1))
    }

    /// As [`KvExt::decr`](super::KvExt::decr).
    pub fn decr(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Slot<i64> {
        self.push(ask::add(key.as_ref(), -1))
    }

    /// As [`KvExt::hset`](super::KvExt::hset).
    pub fn hset<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        field: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Slot<bool> {
        self.push(ask::hset(key.as_ref(), field.as_ref(), value))
    }

    /// As [`KvExt::hget`](super::KvExt::hget).
    pub fn hget<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        field: &(impl AsRef<[u8]> + ?Sized),
    ) -> Slot<Option<T>> {
        self.push(ask::hget(key.as_ref(), field.as_ref()))
    }

    /// As [`KvExt::hget_all`](super::KvExt::hget_all).
    pub fn hget_all<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Slot<HashMap<String, T>> {
        self.push(ask::hget_all(key.as_ref()))
    }

    /// As [`KvExt::lpush`](super::KvExt::lpush).
    pub fn lpush<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Slot<i64> {
        self.push(ask::lpush(key.as_ref(), value))
    }

    /// As [`KvExt::rpush`](super::KvExt::rpush).
    pub fn rpush<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        value: &V,
    ) -> Slot<i64> {
        self.push(ask::rpush(key.as_ref(), value))
    }

    /// As [`KvExt::lpop`](super::KvExt::lpop).
    pub fn lpop<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Slot<Option<T>> {
        self.push(ask::lpop(key.as_ref()))
    }

    /// As [`KvExt::lrange`](super::KvExt::lrange).
    pub fn lrange<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        start: i64,
        end: i64,
    ) -> Slot<Vec<T>> {
        self.push(ask::lrange(key.as_ref(), start, end))
    }

    /// As [`KvExt::sadd`](super::KvExt::sadd).
    pub fn sadd<V: Serialize + ?Sized>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
        member: &V,
    ) -> Slot<bool> {
        self.push(ask::sadd(key.as_ref(), member))
    }

    /// As [`KvExt::smembers`](super::KvExt::smembers).
    pub fn smembers<T: DeserializeOwned>(
        &mut self,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Slot<Vec<T>> {
        self.push(ask::smembers(key.as_ref()))
    }
}

impl QueuedSet<'_> {
    /// How long the value is kept; for ever unless said.
    pub fn ttl(self, ttl: Duration) -> Self {
        let flaw = ask::set_ttl(&mut self.queue.batch.commands[self.index].verb, ttl);
        self.queue.note(self.index, flaw.err());
        self
    }

    /// As [`Set::fenced`](super::Set::fenced).
    pub fn fenced(self, fence: Fence) -> Self {
        let flaw = ask::set_fence(&mut self.queue.batch.commands[self.index].verb, fence);
        self.queue.note(self.index, flaw.err());
        self
    }
}

/// Commands in one round trip, made by [`KvExt::pipeline`](super::KvExt::pipeline). Await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct Pipeline<'a, K: ?Sized, S> {
    kv: &'a K,
    queue: Queue,
    slots: S,
}

impl<'a, K: ?Sized, S> Pipeline<'a, K, S> {
    pub(super) fn new(kv: &'a K, fill: impl FnOnce(&mut Queue) -> S) -> Self {
        let mut queue = Queue::default();
        let slots = fill(&mut queue);
        Pipeline { kv, queue, slots }
    }

    /// Lets nobody see or do anything between the commands (`MULTI`, `EXEC`). If one of them cannot
    /// even be queued, none is carried out; one that fails when it is its turn does not undo the
    /// others.
    pub fn atomic(mut self) -> Self {
        self.queue.batch.atomic = true;
        self
    }
}

impl<'a, K: Kv + ?Sized, S: Slots + Send + 'a> IntoFuture for Pipeline<'a, K, S> {
    type Output = Result<S::Results, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Pipeline { kv, queue: Queue { batch, flaw }, slots } = self;
            if let Some((index, flaw)) = flaw {
                return Err(flaw.at(index + 1, &batch.commands[index]));
            }
            let mut results = Results::of(kv, batch).await?;
            slots.take(&mut results)
        })
    }
}

/// The answers to the commands of a pipeline, to be taken.
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

    fn take<T>(&mut self, slot: &Slot<T>) -> Result<T, Error> {
        // A slot of another pipeline may lie beyond this one, or have been taken.
        let answer = self.answers.get_mut(slot.index).and_then(Option::take);
        let answer = answer.ok_or_else(|| Error::invalid("the slot is of another pipeline"))?;
        (slot.read)(answer).map_err(|error| error.at(slot.index + 1, &self.commands[slot.index]))
    }
}

/// Results that are wanted of a pipeline: a [`Slot`], or a tuple or `Vec` of them, or `()`.
pub trait Slots {
    /// What is in them.
    type Results;

    /// Takes it out.
    ///
    /// # Errors
    ///
    /// For a value that is not of the type that was asked for; the error says which.
    fn take(self, results: &mut Results) -> Result<Self::Results, Error>;
}

impl<T> Slots for Slot<T> {
    type Results = T;

    fn take(self, results: &mut Results) -> Result<T, Error> {
        results.take(&self)
    }
}

impl<S: Slots> Slots for Vec<S> {
    type Results = Vec<S::Results>;

    fn take(self, results: &mut Results) -> Result<Self::Results, Error> {
        self.into_iter().map(|slot| slot.take(results)).collect()
    }
}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {
        $(#[allow(non_snake_case, unused_variables, clippy::unused_unit, reason = "one pattern for all lengths")]
        impl<$($name: Slots),*> Slots for ($($name,)*) {
            type Results = ($($name::Results,)*);

            fn take(self, results: &mut Results) -> Result<Self::Results, Error> {
                let ($($name,)*) = self;
                Ok(($($name.take(results)?,)*))
            }
        })*
    };
}

tuples! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

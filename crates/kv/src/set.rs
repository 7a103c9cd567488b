//! `set`, `set_if_absent` and `set_many`, with their options.

use std::future::IntoFuture;
use std::time::Duration;

use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::command::Kv;
use super::error::Error;
use super::pipeline::Pipeline;
use super::verbs::{self, Ask};

/// A write, made by [`KvExt::set`](super::KvExt::set) or
/// [`KvExt::set_if_absent`](super::KvExt::set_if_absent). Await it.
#[must_use = "nothing is written until it is awaited"]
pub struct Set<'a, K: ?Sized, T = ()> {
    pub(super) kv: &'a K,
    pub(super) ask: Ask<'a, T>,
}

impl<K: ?Sized, T> Set<'_, K, T> {
    /// How long the value is kept; without this it does not expire.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let flaw = verbs::set_ttl(&mut self.ask.command.verb, ttl).err();
        self.note(flaw)
    }

    /// The first error is reported.
    fn note(mut self, flaw: Option<Error>) -> Self {
        self.ask.flaw = self.ask.flaw.or(flaw);
        self
    }
}

impl<K: ?Sized> Set<'_, K> {
    /// Writes only if no newer fence has written this key: a late write of a holder that has lost its lock
    /// has no effect, and fails with [`is_stale_fence`](Error::is_stale_fence).
    ///
    /// The comparison and the write are one step on the server. The highest fence is stored beside the value,
    /// and is kept a day longer than the value itself. Writes without a fence are not compared.
    pub fn fenced(mut self, fence: Fence) -> Self {
        let flaw = verbs::set_fence(&mut self.ask.command.verb, fence).err();
        self.note(flaw)
    }
}

impl<'a, K: Kv + ?Sized, T: 'a> IntoFuture for Set<'a, K, T> {
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask.on(self.kv))
    }
}

/// An atomic write of many values, made by [`KvExt::set_many`](super::KvExt::set_many). Await it.
#[must_use = "nothing is written until it is awaited"]
pub struct SetMany<'a, K: ?Sized>(pub(super) Pipeline<'a, K, ()>);

impl<K: ?Sized> SetMany<'_, K> {
    /// How long the values are kept; without this they do not expire.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.set_ttl(ttl);
        self
    }
}

impl<'a, K: Kv + ?Sized> IntoFuture for SetMany<'a, K> {
    type Output = Result<(), Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.0.into_future()
    }
}

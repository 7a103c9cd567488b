//! `set`, with what may be said besides.

use std::future::IntoFuture;
use std::time::Duration;

use tenure_core::Fence;
use tenure_core::backend::BoxFuture;

use super::ask::{self, Ask};
use super::command::Kv;
use super::error::Error;

/// A write, made by [`KvExt::set`](super::KvExt::set). Await it.
#[must_use = "nothing is written until it is awaited"]
pub struct Set<'a, K: ?Sized> {
    pub(super) kv: &'a K,
    pub(super) ask: Ask<'a, ()>,
}

impl<K: ?Sized> Set<'_, K> {
    /// How long the value is kept; for ever unless said.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let flaw = ask::set_ttl(&mut self.ask.command.verb, ttl).err();
        self.note(flaw)
    }

    /// Writes only if no newer fence has written this key: what a holder that lost its lock does
    /// too late has no effect, and is told so by [`is_stale_fence`](Error::is_stale_fence).
    ///
    /// The comparison and the write are one step on the server. The highest fence is kept beside the
    /// value, a day longer than the value itself. Writes without a fence are not compared.
    pub fn fenced(mut self, fence: Fence) -> Self {
        let flaw = ask::set_fence(&mut self.ask.command.verb, fence).err();
        self.note(flaw)
    }

    /// The first flaw is the one to report.
    fn note(mut self, flaw: Option<Error>) -> Self {
        self.ask.flaw = self.ask.flaw.or(flaw);
        self
    }
}

impl<'a, K: Kv + ?Sized> IntoFuture for Set<'a, K> {
    type Output = Result<(), Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask.on(self.kv))
    }
}

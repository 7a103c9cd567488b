//! `command`: sends any command of the server that has no verb here.

use std::future::IntoFuture;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::backend::BoxFuture;

use super::command::Kv;
use super::error::Error;
use super::verbs::{self, Ask};

/// A command by its name, made by [`KvExt::command`](super::KvExt::command). Add its arguments in order and
/// await it.
#[must_use = "nothing is sent until it is awaited"]
pub struct AnyCommand<'a, K: ?Sized, T> {
    pub(super) kv: &'a K,
    pub(super) ask: Ask<'static, T>,
}

impl<K: ?Sized, T> AnyCommand<'_, K, T> {
    /// Adds a key. It gets the prefix; keys of the locks are rejected.
    pub fn key(mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        verbs::add_key(&mut self.ask.command, key.as_ref());
        self
    }

    /// Adds an argument that is not a key, encoded as by [`KvExt::set`](super::KvExt::set). A key that is
    /// added here gets no prefix and is not checked.
    pub fn arg<V: Serialize + ?Sized>(mut self, value: &V) -> Self {
        let flaw = verbs::add_arg(&mut self.ask.command, value).err();
        self.ask.flaw = self.ask.flaw.or(flaw);
        self
    }
}

impl<'a, K: Kv + ?Sized, T: DeserializeOwned + Send + 'a> IntoFuture for AnyCommand<'a, K, T> {
    type Output = Result<T, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask.on(self.kv))
    }
}

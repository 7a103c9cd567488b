//! The links for commands: one, or as many as were configured.
//!
//! In: a key. Out: its link, always the same. So no request about a key overtakes an earlier one: an abandon
//! never arrives before the acquire that it undoes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use tenure_core::Key;
use tokio::runtime::Handle;

use super::{Link, Server};

#[derive(Debug)]
pub(crate) struct Pool {
    first: Link,
    more: Vec<Link>,
}

impl Pool {
    /// Makes `size` links to `server`. Each connects when it is first used.
    pub(crate) fn new(server: &Arc<Server>, size: NonZeroUsize) -> Self {
        let link = || Link::new(server.clone());
        Pool { first: link(), more: (1..size.get()).map(|_| link()).collect() }
    }

    /// The link for all requests about `key`.
    pub(crate) fn of(&self, key: &Key) -> &Link {
        self.of_name(key.as_str().as_bytes())
    }

    /// The link for all requests about the key `name`, which may have any bytes.
    pub(crate) fn of_name(&self, name: &[u8]) -> &Link {
        if self.more.is_empty() {
            return &self.first;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let at = hasher.finish() % (self.more.len() as u64 + 1);
        self.all().nth(usize::try_from(at).unwrap_or(0)).unwrap_or(&self.first)
    }

    /// A link for requests about no key, or about many.
    pub(crate) fn any(&self) -> &Link {
        &self.first
    }

    /// Whether any link has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.all().any(|link| link.current().is_some())
    }

    /// Connections run on this runtime from now on.
    pub(crate) fn pin_to_runtime(&self, runtime: &Handle) {
        self.all().for_each(|link| link.pin_to_runtime(runtime.clone()));
    }

    /// Closes the connections; the next request makes a new one.
    pub(crate) fn close(&self) {
        self.all().for_each(Link::close);
    }

    fn all(&self) -> impl Iterator<Item = &Link> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

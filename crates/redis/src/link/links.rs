//! The links that carry commands: one, or as many as the caller asked for.
//!
//! In: a key. Out: its link, always the same, so that nothing that is sent for a key overtakes what
//! was sent for it before: an abandon never arrives ahead of the acquire that it undoes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use tenure_core::Key;
use tokio::runtime::Handle;

use super::{Link, Server};

#[derive(Debug)]
pub(crate) struct Links {
    first: Link,
    more: Vec<Link>,
}

impl Links {
    /// So many links to `server`. Each connects when it is first used.
    pub(crate) fn new(server: &Arc<Server>, size: NonZeroUsize) -> Self {
        let link = || Link::new(server.clone());
        Links { first: link(), more: (1..size.get()).map(|_| link()).collect() }
    }

    /// The link of everything that is about `key`.
    pub(crate) fn of(&self, key: &Key) -> &Link {
        self.of_name(key.as_str().as_bytes())
    }

    /// The same for a key of any bytes.
    pub(crate) fn of_name(&self, name: &[u8]) -> &Link {
        if self.more.is_empty() {
            return &self.first;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let at = hasher.finish() % (self.more.len() as u64 + 1);
        self.all().nth(usize::try_from(at).unwrap_or(0)).unwrap_or(&self.first)
    }

    /// A link for what is about no key, or about many.
    pub(crate) fn any(&self) -> &Link {
        &self.first
    }

    /// Whether any of them has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.all().any(|link| link.current().is_some())
    }

    /// Makes connections live on this runtime from now on.
    pub(crate) fn settle_on(&self, home: &Handle) {
        self.all().for_each(|link| link.settle_on(home.clone()));
    }

    /// Lets go of the connections, until somebody asks for something again.
    pub(crate) fn close(&self) {
        self.all().for_each(Link::close);
    }

    fn all(&self) -> impl Iterator<Item = &Link> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

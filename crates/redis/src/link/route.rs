//! How the address of a server is found.
//!
//! In: a request for an address, and the errors of the server behind it. Out: the address of the next
//! connection, and a notification when another server has taken over.
//!
//! The links know no more of Sentinels and clusters than this trait. A fixed address is here; the other
//! routes are in `sentinel/` and `cluster/`.

use std::sync::Arc;

use tenure_core::backend::{BoxFuture, Notifier};
use tokio::sync::watch;

use super::{Link, Pool};
use crate::error::{EngineError, Redirect};
use crate::url::Address;
use crate::wire::keys::Keys;

pub(crate) trait Route: Send + Sync {
    /// The address of the server, as far as it is known, for messages.
    fn shown(&self) -> String;

    /// Finds the address for a new connection.
    fn find(&self) -> BoxFuture<'_, Result<Found, EngineError>>;

    /// The mode in which the server must run.
    fn mode(&self) -> ServerMode {
        ServerMode::Alone
    }

    /// Whether another server may replace this one.
    fn has_stand_ins(&self) -> bool {
        false
    }

    /// How often another server has become the master, as far as it is known. It is read at every reply.
    fn moves(&self) -> u64 {
        0
    }

    /// Notifies of every change of `moves`; `None` if it never changes.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// The task that keeps `moves` up to date, and sends a notice of each move; `None` if there is no need
    /// for one.
    fn watcher(&self, _: Notifier) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Handles an error of the server.
    fn note(&self, _: &EngineError) {}

    /// The links to the server that a redirect names, if redirects are followed.
    fn redirect_target(&self, _: &Redirect) -> Option<RedirectTarget> {
        None
    }
}

/// The address of the server, and how often another server had become the master before.
pub(crate) struct Found {
    pub(crate) address: Address,
    pub(crate) moves: u64,
}

/// The mode in which a server must run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerMode {
    Alone,
    Cluster,
}

/// A server that always has the same address.
impl Route for Address {
    fn shown(&self) -> String {
        self.to_string()
    }

    fn find(&self) -> BoxFuture<'_, Result<Found, EngineError>> {
        Box::pin(async { Ok(Found { address: self.clone(), moves: 0 }) })
    }
}

/// The links to the node that a redirect names.
pub(crate) struct RedirectTarget {
    pub(crate) keys: Keys,
    pub(crate) commands: Arc<Pool>,
    pub(crate) renewals: Arc<Link>,
}

impl RedirectTarget {
    /// The link for requests about the lock whose key on the server is `raw`.
    pub(crate) fn of_lock(&self, raw: &[u8]) -> &Link {
        self.commands.of_name(self.keys.name_in(raw).unwrap_or(raw))
    }

    /// A link for read-only requests.
    pub(crate) fn any(&self) -> &Link {
        self.commands.any()
    }

    /// The link for renewals, which runs on the engine's thread.
    pub(crate) fn renewals(&self) -> &Link {
        &self.renewals
    }
}

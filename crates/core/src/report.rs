//! What an operator sees of locks: who holds them, who waits for them, and how claims ended.

use crate::fault::Loss;
use crate::fence::Fence;
use crate::holder::{Holder, Process};
use crate::key::Key;
use crate::mode::Mode;
use crate::time::UnixMillis;
use crate::token::Token;

/// Which locks to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The lock with this key.
    Key(Key),
    /// The locks with these keys.
    Keys(Vec<Key>),
    /// The locks whose key matches a [glob](crate::glob).
    Glob(String),
}

impl Query {
    /// Whether the query includes the key `name`.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Query::Key(key) => key.as_str() == name,
            Query::Keys(keys) => keys.iter().any(|key| key.as_str() == name),
            Query::Glob(pattern) => crate::glob::matches(pattern, name),
        }
    }
}

/// A lock that has a holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The key of the lock.
    pub key: Key,
    /// The holders: none, one, or several that hold the lock together.
    pub holders: Vec<Holding>,
    /// The waiters in the order of their arrival; `None` if the engine does not know them.
    pub waiters: Option<Vec<Waiting>>,
}

impl LockInfo {
    /// A lock with its holders and waiters.
    pub fn new(key: Key, holders: Vec<Holding>, waiters: Option<Vec<Waiting>>) -> Self {
        LockInfo { key, holders, waiters }
    }

    /// How the lock is held; of a free lock, how its first waiter wants it.
    pub fn mode(&self) -> &Mode {
        let held = self.holders.first().map(|holding| &holding.mode);
        let wanted = self.waiters.iter().flatten().next().map(|waiting| &waiting.mode);
        held.or(wanted).unwrap_or(&Mode::Exclusive)
    }
}

/// One holder of a lock, with what an operator needs to release it by force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// Who holds the lock.
    pub holder: Holder,
    /// The fence of the grant; `None` if the engine does not store it.
    pub fence: Option<Fence>,
    /// The token of the claim. A secret: pass it to `force_release`, and do not show it.
    pub token: Option<Token>,
    /// How it holds the lock.
    pub mode: Mode,
    /// The slot of a numbered permit.
    pub slot: Option<u32>,
}

impl Holding {
    /// An exclusive holder with its fence and its token.
    pub fn new(holder: Holder, fence: Option<Fence>, token: Option<Token>) -> Self {
        Holding { holder, fence, token, mode: Mode::Exclusive, slot: None }
    }

    /// Sets how the lock is held.
    pub fn mode(self, mode: Mode, slot: Option<u32>) -> Self {
        Holding { mode, slot, ..self }
    }
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The process; `None` if its queue entry cannot be read.
    pub process: Option<Process>,
    /// The label of the request.
    pub label: Option<String>,
    /// Why the lock is wanted, if the request gave a reason.
    pub reason: Option<String>,
    /// Since when it waits.
    pub since: Option<UnixMillis>,
    /// How it wants to hold the lock.
    pub mode: Mode,
}

impl Waiting {
    /// A waiter for an exclusive lock that arrived at `since`, described as the holder that it would be.
    pub fn new(holder: Holder, since: Option<UnixMillis>) -> Self {
        let Holder { process, label, reason, .. } = holder;
        Waiting { process, label, reason, since, mode: Mode::Exclusive }
    }

    /// Sets how it wants to hold the lock.
    pub fn mode(self, mode: Mode) -> Self {
        Waiting { mode, ..self }
    }
}

/// How a claim that held a lock ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEnd {
    /// It was released.
    Released,
    /// It was lost.
    Lost(Loss),
}

impl From<Loss> for ClaimEnd {
    fn from(loss: Loss) -> ClaimEnd {
        ClaimEnd::Lost(loss)
    }
}

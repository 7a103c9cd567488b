//! What can go wrong at an engine: a [`Fault`] of one call, and the [`Loss`] of a lock.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the lease ended by our clock.
    Expired,
    /// The engine no longer knows the claim as the holder: the lock is free or has another holder.
    Gone,
    /// An operator released it by force; the text says who, and why.
    Forced(String),
    /// It was held for its `max_hold`.
    MaxHold,
    /// The session with the server ended.
    Session,
    /// The `Locker` was shut down.
    Shutdown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Expired => f.write_str("no renewal was confirmed in time"),
            Loss::Gone => f.write_str("the engine no longer knows it as ours"),
            Loss::Forced(by) => write!(f, "released by force: {by}"),
            Loss::MaxHold => f.write_str("held for as long as allowed"),
            Loss::Session => f.write_str("the session with the server ended"),
            Loss::Shutdown => f.write_str("the locker was shut down"),
        }
    }
}

impl Loss {
    /// The value of the `reason` label in metrics.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Gone => "gone",
            Loss::Forced(_) => "forced",
            Loss::MaxHold => "max_hold",
            Loss::Session => "session",
            Loss::Shutdown => "shutdown",
        }
    }
}

/// An error of a backend.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    kind: FaultKind,
    message: String,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The kind of a [`Fault`], which decides whether a retry makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The engine could not be reached, or could not do it now. Nothing was done; a retry may succeed.
    Unavailable,
    /// The request was sent and not answered. It may have been done.
    Unknown,
    /// The engine refused permanently: missing rights, a wrong type, a full disk, a corrupt counter. Nothing
    /// was done.
    Refused,
    /// The request is not valid for this engine.
    Invalid,
    /// This engine cannot do that.
    Unsupported,
}

impl Fault {
    /// A fault of `kind`. The message is lower case, has no full stop, and names the value that is wrong.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into(), source: None }
    }

    /// Adds the cause. The message must not repeat it.
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind of the fault.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }
}

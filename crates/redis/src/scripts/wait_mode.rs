//! How a claim waits.
//!
//! In: whether its process is subscribed. Out: the words of `acquire.lua`.

use std::time::Duration;

/// Whether and how a claim waits if it is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// It does not wait.
    No,
    /// It waits in the queue and is notified of its grant. Its heartbeat is valid for this long.
    Pubsub(Duration),
    /// It waits in the queue and finds its grant by asking again.
    Poll(Duration),
}

impl WaitMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            WaitMode::No => "",
            WaitMode::Pubsub(_) => "push",
            WaitMode::Poll(_) => "poll",
        }
    }

    pub(crate) fn alive_for(self) -> Duration {
        match self {
            WaitMode::No => Duration::ZERO,
            WaitMode::Pubsub(good) | WaitMode::Poll(good) => good,
        }
    }
}

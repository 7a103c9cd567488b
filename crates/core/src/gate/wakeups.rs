//! Turns to be sent to waiters.
//!
//! They are decided with the mutex locked, and sent after it is unlocked: waking a task runs foreign code and
//! may be slow. A turn whose waiter has left is dropped, and so passes itself on.

use tokio::sync::oneshot;

use super::Turn;

/// Turns that have been decided and not been sent yet.
#[derive(Default)]
#[must_use = "turns that are not sent are given to others"]
pub(super) struct Wakeups {
    first: Option<(oneshot::Sender<Turn>, Turn)>,
    /// Usually empty; filled only when several waiters share the new holder's owner, or several are refused
    /// at once.
    more: Vec<(oneshot::Sender<Turn>, Turn)>,
}

impl Wakeups {
    pub(super) fn add(&mut self, to: oneshot::Sender<Turn>, turn: Turn) {
        match self.first {
            None => self.first = Some((to, turn)),
            Some(_) => self.more.push((to, turn)),
        }
    }

    pub(super) fn send(self) {
        for (to, turn) in self.first.into_iter().chain(self.more) {
            drop(to.send(turn));
        }
    }
}

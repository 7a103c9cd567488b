//! Turns on their way to those who waited for them.
//!
//! Decided under the mutex, sent outside of it: waking a task is another's code and may be slow. A
//! turn that finds nobody any more is dropped, and so passes itself on.

use tokio::sync::oneshot;

use super::Turn;

/// Turns that have been given and not been sent yet.
#[derive(Default)]
#[must_use = "turns that are not sent are given to others"]
pub(super) struct Post {
    first: Option<(oneshot::Sender<Turn>, Turn)>,
    /// Rarely any: only owners that wait several times get theirs together.
    more: Vec<(oneshot::Sender<Turn>, Turn)>,
}

impl Post {
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

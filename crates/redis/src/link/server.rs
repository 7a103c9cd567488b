//! The server that all links of a client lead to: one at a time, known by its `run_id`.
//!
//! In: connections as they are made. Out: whether they may be used, and when the others are to be
//! left.
//!
//! An address can come to lead elsewhere: a server was restarted, a name or a proxy points to
//! another. The first link to find that out moves the client on: it is a new *turn*, and connections
//! of an earlier turn are dropped by their links. Otherwise a lock could be had from one server and
//! renewed at another.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Notice, Notices};
use tenure_core::time::{Clock, Time};
use tokio::sync::broadcast;

use super::{Live, Target};
use crate::trouble::{Cause, Trouble};
use crate::url::Address;

/// How many notices a slow listener may be behind before it is told that it missed some.
const NOTICES_KEPT: usize = 1024;
/// The shortest time between two moves. No server restarts twice within it; two servers that answer
/// in turn under one name would, and have every connection remade at each request.
const MOVES_APART: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Server {
    target: Target,
    clock: Clock,
    notices: broadcast::Sender<Notice>,
    /// Counts the moves. Read without the mutex at every reply; changed with it held.
    turn: AtomicU64,
    met: Mutex<Option<Met>>,
}

/// The server of this turn, and when it took the place of another.
#[derive(Debug)]
struct Met {
    run_id: String,
    moved: Option<Time>,
}

impl Server {
    pub(crate) fn new(target: Target, clock: Clock) -> Self {
        let (turn, met) = Default::default();
        let notices = broadcast::Sender::new(NOTICES_KEPT);
        Server { target, clock, notices, turn, met }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Where it listens, for messages.
    pub(crate) fn address(&self) -> &Address {
        self.target.address()
    }

    pub(crate) fn trouble(&self, cause: Cause, what: impl fmt::Display) -> Trouble {
        Trouble::new(cause, self.address(), what)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Tells every locker on this client.
    pub(crate) fn tell(&self, notice: Notice) {
        // Nobody may be listening yet, or any more.
        let _ = self.notices.send(notice);
    }

    pub(crate) fn notices(&self) -> Notices {
        Notices::of(&self.notices)
    }

    /// Whether a connection of this turn leads to where the others do.
    pub(crate) fn is_at(&self, turn: u64) -> bool {
        self.turn.load(Ordering::Acquire) == turn
    }

    /// Takes note of where `live` leads, in the place of `old`: to the same server as the others, or
    /// to a new one, and then the others have to follow.
    ///
    /// Says once that connections came back: whoever follows in a move has nothing to add.
    pub(crate) fn meet(&self, live: Live, old: Option<&Live>) -> Result<Live, Trouble> {
        let (turn, moved) = self.turn_of(live.run_id())?;
        let back = old.is_some_and(|old| old.turn() == turn);
        if moved || back {
            tracing::debug!(address = %self.address(), moved, "reconnected");
            self.tell(Notice::Reconnected);
        }
        Ok(live.of_turn(turn))
    }

    /// The turn in which the server is `run_id`, and whether that is a move.
    pub(super) fn turn_of(&self, run_id: &str) -> Result<(u64, bool), Trouble> {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, turn) = (self.clock.now(), self.turn.load(Ordering::Acquire));
        let moved = match &*met {
            None => None,
            Some(met) if met.run_id == run_id => return Ok((turn, false)),
            Some(met) if met.moved.is_some_and(|at| now < at.after(MOVES_APART)) => {
                let what = "another server answers than a moment ago";
                return Err(self.trouble(Cause::Down, what));
            }
            Some(_) => Some(now),
        };
        *met = Some(Met { run_id: run_id.into(), moved });
        self.turn.store(turn + 1, Ordering::Release);
        Ok((turn + 1, moved.is_some()))
    }
}

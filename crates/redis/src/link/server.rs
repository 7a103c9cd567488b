//! The server that all links of a client lead to: one at a time, known by its `run_id`.
//!
//! In: connections as they are made. Out: whether they may be used, and when the others are to be
//! left.
//!
//! An address can come to lead elsewhere: a server was restarted, a name or a proxy points to
//! another. The first link to find that out moves the client on: it is a new *turn*, and connections
//! of an earlier turn are dropped by their links. Otherwise a lock could be had from one server and
//! renewed at another. Where Sentinels say which server it is, their word that it is another ends the
//! turn too, before anybody has reached the new one.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Notice, Notices};
use tenure_core::time::{Clock, Time};
use tokio::runtime::Handle;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::{Live, Target};
use crate::trouble::{Cause, Trouble};

/// How many notices a slow listener may be behind before it is told that it missed some.
const NOTICES_KEPT: usize = 1024;
/// The shortest time between two moves. No server restarts twice within it; two servers that answer
/// in turn under one name would, and have every connection remade at each request.
const MOVES_APART: Duration = Duration::from_millis(100);
/// How long those who wait for a lock wait for a new master: Sentinels take a server for dead after
/// 30 s unless told otherwise, a cluster after 15 s, and then they have to agree.
pub(crate) const FAILOVER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Server {
    target: Target,
    clock: Clock,
    notices: broadcast::Sender<Notice>,
    /// Counts the moves. Read without the mutex at every reply; changed with it held.
    turn: AtomicU64,
    met: Mutex<Option<Met>>,
    /// The task that listens to the Sentinels.
    watch: Mutex<Option<AbortHandle>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_watch();
    }
}

/// The server of this turn, and when it took the place of another.
#[derive(Debug)]
struct Met {
    run_id: String,
    moved: Option<Time>,
}

impl Server {
    pub(crate) fn new(target: Target, clock: Clock) -> Self {
        Self::with_notices(target, clock, Self::new_notices())
    }

    /// One of several, with whose notices its own are to come.
    pub(crate) fn with_notices(
        target: Target,
        clock: Clock,
        notices: broadcast::Sender<Notice>,
    ) -> Self {
        let (turn, met, watch) = Default::default();
        Server { target, clock, notices, turn, met, watch }
    }

    /// For the notices of several.
    pub(crate) fn new_notices() -> broadcast::Sender<Notice> {
        broadcast::Sender::new(NOTICES_KEPT)
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Where it listens, for messages.
    pub(crate) fn shown(&self) -> String {
        self.target.shown()
    }

    pub(crate) fn trouble(&self, cause: Cause, what: impl fmt::Display) -> Trouble {
        Trouble::new(cause, &self.shown(), what)
    }

    /// Makes sure that the Sentinels are listened to, where there are any, by a task on this runtime
    /// or on the one where it runs already.
    pub(crate) fn keep_watch(&self) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.as_ref().is_none_or(|task| task.is_finished()) {
            *watch = self.spawn_watch();
        }
    }

    /// Has them listened to on this runtime, wherever that was done before.
    pub(crate) fn keep_watch_here(&self) {
        self.end_watch();
        self.keep_watch();
    }

    /// Listens to nobody any more.
    pub(crate) fn end_watch(&self) {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner).take();
        watch.inspect(AbortHandle::abort);
    }

    fn spawn_watch(&self) -> Option<AbortHandle> {
        let sentinels = self.target.sentinels()?.clone();
        let here = Handle::try_current().ok()?;
        Some(here.spawn(sentinels.watch(self.notices.clone())).abort_handle())
    }

    /// Waits until the Sentinels have ended this turn.
    pub(crate) async fn left(&self, turn: u64) {
        let Some(sentinels) = self.target.sentinels() else { return pending().await };
        let mut moves = sentinels.changes();
        while self.is_at(turn) && moves.changed().await.is_ok() {}
    }

    /// How long one that cannot be reached is waited for by those who wait for a lock.
    pub(crate) fn patience(&self) -> Duration {
        match self.target.has_stand_ins() {
            true => FAILOVER,
            false => self.target.connect_timeout(),
        }
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

    /// How often it has moved.
    pub(crate) fn turn(&self) -> u64 {
        // Neither ever falls: the sum is the same only if both are.
        self.turn.load(Ordering::Acquire) + self.target.moves()
    }

    /// Whether a connection of this turn leads to where the others do.
    pub(crate) fn is_at(&self, turn: u64) -> bool {
        self.turn() == turn
    }

    /// Takes note of where `live` leads, in the place of `old`: to the same server as the others, or
    /// to a new one, and then the others have to follow.
    ///
    /// Says once that connections came back: whoever follows in a move has nothing to add.
    pub(crate) fn meet(&self, live: Live, old: Option<&Live>) -> Result<Live, Trouble> {
        if live.moves() != self.target.moves() {
            return Err(self.trouble(Cause::Down, "another server has become the master"));
        }
        let (turn, moved) = self.turn_of(live.run_id())?;
        let turn = turn + live.moves();
        let back = old.is_some_and(|old| old.turn() == turn);
        if moved || back {
            tracing::debug!(address = %self.shown(), moved, "reconnected");
            self.tell(Notice::Reconnected);
        }
        Ok(live.of_turn(turn, self.clock.now()))
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

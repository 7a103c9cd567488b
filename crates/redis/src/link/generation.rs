//! The server that all links of a client lead to: one at a time, identified by its `run_id`.
//!
//! In: connections as they are made. Out: whether they may be used, and when the other connections must be
//! replaced.
//!
//! An address can start to lead to another server: a server was restarted, or a name or a proxy points
//! elsewhere. The first link that notices this starts a new *epoch* for the client, and the links close their
//! connections of earlier epochs. Otherwise a lock could be acquired on one server and renewed on another.
//! A route (`route.rs`) may report another master; that ends the epoch too, even before any link has reached
//! the new master.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Notice, Notices, Notifier};
use tenure_core::time::{Clock, Time};

use super::{BackgroundTask, Connection, Target};
use crate::error::{Cause, EngineError};

/// The shortest time between two moves. No server restarts twice within it. Two servers that answer
/// alternately under one name would move within it, and every request would make all connections anew.
const MOVES_APART: Duration = Duration::from_millis(100);
/// How long a waiting claim waits for a new master: by default Sentinels declare a server dead after 30 s, a
/// cluster after 15 s, and then they have to agree.
pub(crate) const FAILOVER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Server {
    target: Target,
    clock: Clock,
    notifier: Notifier,
    /// Counts the moves. Read without the mutex at every reply; changed with the mutex held.
    run_epoch: AtomicU64,
    known: Mutex<Option<KnownServer>>,
    /// The task of the route that looks for another master.
    watch: BackgroundTask,
}

/// The server of this epoch, and when it replaced another.
#[derive(Debug)]
struct KnownServer {
    run_id: String,
    moved: Option<Time>,
}

impl Server {
    pub(crate) fn new(target: Target, clock: Clock) -> Self {
        Self::with_notifier(target, clock, Notifier::default())
    }

    /// One of several servers that share their notices.
    pub(crate) fn with_notifier(target: Target, clock: Clock, notifier: Notifier) -> Self {
        let (run_epoch, known, watch) = Default::default();
        Server { target, clock, notifier, run_epoch, known, watch }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Its address, for messages.
    pub(crate) fn shown(&self) -> String {
        self.target.shown()
    }

    pub(crate) fn error(&self, cause: Cause, what: impl fmt::Display) -> EngineError {
        EngineError::new(cause, &self.shown(), what)
    }

    /// Makes sure that the watcher of the route runs, if it has one: on this runtime, or on the one where it
    /// already runs.
    pub(crate) fn keep_watch(&self) {
        self.watch.keep(|| self.watcher());
    }

    /// Moves that task to this runtime, wherever it ran before.
    pub(crate) fn start_watcher_on_current(&self) {
        self.watch.move_here(|| self.watcher());
    }

    /// Ends that task.
    pub(crate) fn end_watch(&self) {
        self.watch.end();
    }

    fn watcher(&self) -> Option<BoxFuture<'static, ()>> {
        self.target.route().watcher(self.notifier.clone())
    }

    /// Waits until the route has ended this epoch.
    pub(crate) async fn left(&self, epoch: u64) {
        let Some(mut moves) = self.target.route().changes() else { return pending().await };
        while self.is_at(epoch) && moves.changed().await.is_ok() {}
    }

    /// How long it may take until a server can be reached again.
    pub(crate) fn reachable_within(&self) -> Duration {
        match self.target.route().has_stand_ins() {
            true => FAILOVER,
            false => self.target.connect_timeout(),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends a notice to every locker on this client.
    pub(crate) fn notify(&self, notice: Notice) {
        self.notifier.send(notice);
    }

    pub(crate) fn notices(&self) -> Notices {
        self.notifier.notices()
    }

    /// The epoch: the number of moves so far.
    pub(crate) fn epoch(&self) -> u64 {
        // Neither number ever falls: the sum is the same only if both are.
        self.run_epoch.load(Ordering::Acquire) + self.target.route().moves()
    }

    /// Whether a connection of this epoch leads to the same server as the others.
    pub(crate) fn is_at(&self, epoch: u64) -> bool {
        self.epoch() == epoch
    }

    /// Records which server `live`, the successor of `old`, leads to: the same as the others, or a new one,
    /// and then the others have to follow.
    ///
    /// Sends one notice that connections are back: a link that only follows in a move sends none.
    pub(crate) fn observe_run_id(
        &self,
        live: Connection,
        old: Option<&Connection>,
    ) -> Result<Connection, EngineError> {
        if live.moves() != self.target.route().moves() {
            return Err(self.error(Cause::Unreachable, "another server has become the master"));
        }
        let (epoch, moved) = self.epoch_of(live.run_id())?;
        let epoch = epoch + live.moves();
        let back = old.is_some_and(|old| old.epoch() == epoch);
        if moved || back {
            tracing::debug!(address = %self.shown(), moved, "reconnected");
            self.notify(Notice::Reconnected);
        }
        Ok(live.of_epoch(epoch, self.clock.now()))
    }

    /// The epoch in which the server is `run_id`, and whether that is a move.
    pub(super) fn epoch_of(&self, run_id: &str) -> Result<(u64, bool), EngineError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, epoch) = (self.clock.now(), self.run_epoch.load(Ordering::Acquire));
        let moved = match &*known {
            None => None,
            Some(server) if server.run_id == run_id => return Ok((epoch, false)),
            Some(server) if server.moved.is_some_and(|at| now < at.after(MOVES_APART)) => {
                let what = "another server answers than a moment ago";
                return Err(self.error(Cause::Unreachable, what));
            }
            Some(_) => Some(now),
        };
        *known = Some(KnownServer { run_id: run_id.into(), moved });
        self.run_epoch.store(epoch + 1, Ordering::Release);
        Ok((epoch + 1, moved.is_some()))
    }
}

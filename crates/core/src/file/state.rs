//! What this process has to do with the locks of one directory: holds, and waits.
//!
//! In: locks that the kernel gave. Out: which claim they belong to.
//!
//! One short mutex over everything; the files of a lock that is held here are only touched under it
//! or after the lock was taken out of it, so that a release and a look at the same lock never meet.
//!
//! Absent on purpose: a `Drop`. What is left when the last handle goes is closed, and the kernel
//! frees it; removing files is for the process that made them, and a drop can happen in its child.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast};

use super::count::Count;
use super::files::{Files, Locked};
use super::mark::Mark;
use crate::backend::{Fault, Grant, Notice};
use crate::claim::Token;
use crate::key::Key;
use crate::time::{Clock, Time};

/// How many notices a reader may be behind before it misses one.
const NOTICES: usize = 1024;
/// How long a lock that others wait for is left to them before we ask for it again: a waiter that
/// was just woken needs a moment, and we would always be faster.
const GRACE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) clock: Clock,
    pub(super) count: Count,
    pub(super) notices: broadcast::Sender<Notice>,
    /// The process that opened it. A forked child has the memory but not the threads.
    pub(super) pid: u32,
    state: Mutex<State>,
}

/// How many of the dead are remembered, the last ones: they are asked for right after they were found.
const BURIED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct State {
    /// The claims of processes that ended without giving their lock back, as far as we found them.
    buried: VecDeque<Token>,
    /// By claim: the locks that the kernel gave us.
    pub(super) held: HashMap<Token, Held>,
    /// By claim: those who wait.
    pub(super) tickets: HashMap<Token, Ticket>,
    /// By key: who is next. There is an entry, if only an empty one, while a thread waits in the
    /// kernel for that key.
    pub(super) queues: HashMap<Key, VecDeque<Token>>,
    /// Whether the thread of `heed.rs` runs.
    pub(super) heeding: bool,
    /// By key: until when to leave it to others.
    left: HashMap<Key, Time>,
}

/// A lock that the kernel gave to a claim.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: Key,
    pub(super) locked: Locked,
    /// What was answered; none as long as the fence and the record are missing.
    pub(super) grant: Option<Grant>,
    /// Whether the engine wants to know of others who wait.
    pub(super) heeded: bool,
}

/// A claim's place among those who wait in this process.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) mark: Option<Mark>,
    /// Why waiting came to nothing.
    pub(super) fault: Option<Fault>,
    pub(super) wake: Arc<Notify>,
}

impl Shared {
    pub(super) fn new(dir: PathBuf, clock: Clock) -> Self {
        Shared {
            count: Count::in_dir(&dir),
            dir,
            clock,
            notices: broadcast::Sender::new(NOTICES),
            pid: std::process::id(),
            state: Mutex::default(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn files(&self, key: &Key) -> Files {
        Files::of(&self.dir, key)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel gave the lock to this claim.
    pub(super) fn won(&self, key: &Key, token: Token, locked: Locked) {
        self.state().won(key, token, locked);
    }

    /// The lock is no longer this claim's to keep; it is the caller's to end.
    pub(super) fn take_out(&self, token: Token) -> Option<Held> {
        self.state().held.remove(&token)
    }

    /// Ends a lock that was taken out.
    pub(super) fn give_back(&self, held: Held) {
        if held.locked.give_back() {
            self.state().leave_to_others(held.key);
        }
    }

    /// Waits until others had their chance at a lock that we gave back while they waited.
    pub(super) async fn let_others(&self, key: &Key) {
        let until = self.state().left.remove(key);
        if let Some(until) = until {
            Clock::system().sleep_until(until).await;
        }
    }
}

impl State {
    pub(super) fn bury(&mut self, token: Token) {
        self.buried.truncate(BURIED_MAX - 1);
        self.buried.push_front(token);
    }

    pub(super) fn is_buried(&self, token: Token) -> bool {
        self.buried.contains(&token)
    }

    pub(super) fn won(&mut self, key: &Key, token: Token, locked: Locked) {
        let held = Held { key: key.clone(), locked, grant: None, heeded: false };
        self.held.insert(token, held);
    }

    fn leave_to_others(&mut self, key: Key) {
        let now = Clock::system().now();
        self.left.retain(|_, until| *until > now);
        self.left.insert(key, now.after(GRACE));
    }
}
